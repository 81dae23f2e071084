"""The JSON messages of the protocol, one frozen dataclass each.

- Field names are in snake_case.
- `ts` is the time of sending in seconds since 1970.
- `nonce` is new in each round. Each update repeats the nonce of its task.
- `signature` is empty until the message is signed.
- `started` orders the runs of an aggregator: each later run has a larger value, in milliseconds since 1970.
- A number that is not finite is sent as null and read as NaN.
- Every field must be present, except for the fields that a class names in `OPTIONAL`. A missing optional
  field has its default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Ranges = tuple[tuple[int, int], ...]

JOINING_PHASE = "joining"
STOPPED_PHASE = "stopped"
PAUSED_BY_OPERATOR = "operator"
REFUSAL_PREFIX = "refuses "
"""Starts the `paused` of a device that refuses the plan or the tasks of this federation.

Such a device does not resume by itself.
"""
DIVERGED_PREFIX = "diverged: "
"""Follows `REFUSAL_PREFIX` and the round if the device refuses a task because training diverged.

Training has diverged if the loss is not a finite number.
"""
ReceiptOutcome = Literal["ok", "wait", "missing", "rejected"]


@dataclass(frozen=True, slots=True)
class State:
    """The progress of the federation, retained on `state`.

    Attributes:
        session: identifies one start of the federation. A device does not continue work of another session.
        phase: `joining`, a phase of the algorithm, `done` or `stopped`.
        round: current round, from 1.
        rounds: number of rounds of the federation.
        cohort_size: number of clients in the cohort of a round.
        deadline_s: seconds until a round closes with a quorum.
        plan: sha256 of the plan in hex.
        settings: numbers from the configuration, for programs that watch. A reader ignores unknown names.
    """

    OPTIONAL = frozenset({"settings"})

    federation: str
    session: str
    phase: str
    round: int
    rounds: int
    cohort_size: int
    deadline_s: float
    plan: str
    ts: float
    signature: str = ""
    started: int = 0
    settings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a device, retained on `device/{id}/status`.

    The last will is the same message with `online` false.

    Attributes:
        boot_id: identifies one start of the device's service.
        born: time of that start in seconds since 1970.
        num_samples: number of training samples of the device.
        version: version of edgefl on the device.
        paused: reason why the device accepts no task now, such as operator, busy, on battery or outside
            22:00-06:00. Empty if it accepts tasks. Starts with `REFUSAL_PREFIX` if the device refuses the
            plan or the tasks.
        draining: whether the paused device still works on an earlier task.
    """

    client_id: str
    boot_id: str
    online: bool
    born: float
    num_samples: int
    version: str
    ts: float
    paused: str = ""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """The question of a starting device whether its id is in use.

    A device that uses the id answers with its status.

    Attributes:
        boot_id: identifies one start of the device's service.
    """

    boot_id: str
    ts: float


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one client in a round.

    Attributes:
        session: identifies one start of the federation.
        plan: sha256 of the plan in hex.
        models: sha256 in hex of each model of the broadcast, by name.
        scalars: scalars of the broadcast, by name.
        seed: random seed of the federation.
        deadline_s: seconds until the round closes with a quorum.
        codec: codec of the update.
        max_staleness: number of rounds by which an update may be late.
        budget_s: approximate training time in seconds, in whole epochs. 0 trains all epochs.
        granted: whether an upload slot is reserved. The device then sends all chunks right after `Begin`.
        chunk_bytes: size in bytes of the chunks of the update.
        settings: numbers from the configuration. A device ignores unknown names, and no setting may change
            the update. `evaluate` above 0 requests the accuracy on the device's validation samples.
    """

    OPTIONAL = frozenset({"settings"})

    session: str
    round: int
    phase: str
    plan: str
    models: Mapping[str, str]
    scalars: Mapping[str, float]
    seed: int
    deadline_s: float
    codec: str
    max_staleness: int
    budget_s: float
    nonce: str
    ts: float
    signature: str = ""
    granted: bool = False
    started: int = 0
    chunk_bytes: int = 240 * 1024
    settings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The size and number of chunks of a blob.

    Attributes:
        sha256: digest of the blob in hex.
        size: size of the blob in bytes.
        count: number of chunks.
        chunk_bytes: size in bytes of every chunk but the last.
        retained: whether the broker retains all chunks, so that no device has to request them.
        session: session of the aggregator that stores the blob.
    """

    sha256: str
    size: int
    count: int
    chunk_bytes: int
    ts: float
    retained: bool = False
    session: str = ""


@dataclass(frozen=True, slots=True)
class Begin:
    """The announcement of an update: the manifest of its blob, and everything in it except for the tensors.

    Attributes:
        session: session of the task.
        round: round of the task.
        plan: sha256 of the plan in hex.
        sha256: digest of the encoded update in hex.
        size: size of the encoded update in bytes.
        count: number of chunks.
        chunk_bytes: size in bytes of every chunk but the last.
        num_samples: number of training samples of the client.
        metrics: metrics of the client, by name.
        nonce: nonce of the task.
        follows: whether all chunks follow immediately because the task granted a slot. Otherwise a receipt
            requests them.
    """

    client_id: str
    session: str
    round: int
    plan: str
    sha256: str
    size: int
    count: int
    chunk_bytes: int
    num_samples: int
    metrics: Mapping[str, float]
    nonce: str
    ts: float
    signature: str = ""
    follows: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The end of an upload: the device has sent all chunks that were requested.

    Attributes:
        sha256: digest of the encoded update in hex.
        count: number of chunks sent.
    """

    sha256: str
    count: int
    ts: float


@dataclass(frozen=True, slots=True)
class Receipt:
    """The aggregator's answer to an update.

    Attributes:
        sha256: digest of the encoded update in hex.
        outcome: `ok`, `wait` for an upload slot, `missing` if chunks are missing, or `rejected`.
        missing: half-open ranges of the chunks to send.
        reason: why the update was rejected.
        nonce: nonce of the task.
    """

    round: int
    sha256: str
    outcome: str
    missing: Ranges
    reason: str
    nonce: str
    ts: float
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Want:
    """A device's request for chunks of a blob.

    Attributes:
        sha256: digest of the blob in hex.
        missing: half-open ranges of chunk numbers. Empty requests the manifest and all chunks.
    """

    sha256: str
    missing: Ranges
    ts: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a round.

    Attributes:
        updates: number of updates in the aggregate.
        loss: median loss over the updates. Null if fewer than half of them report a loss.
        accuracy_mean: mean accuracy over the updates. Null if fewer than half of them report an accuracy.
        accuracy_p10: 10th percentile of these accuracies.
        accuracy_p90: 90th percentile of these accuracies.
        bytes_up: payload bytes sent to the aggregator.
        bytes_down: payload bytes sent by the aggregator.
        seconds: duration of the round.
        dropped: ids of the clients without an update in time, at most MAX_DROPPED of them.
        metrics: spread over clients of every metric that at least half of them report, as NAME_mean,
            NAME_median, NAME_p10 and NAME_p90. The accuracy fields repeat a part of it for readers that do
            not know this map. For another task than classification they repeat the R2, or the AUC at the end.
            The map then has no accuracy, see `edgefl.base.verdict.read_round_metric`.
    """

    OPTIONAL = frozenset({"metrics"})
    MAX_DROPPED = 256

    round: int
    phase: str
    updates: int
    loss: float
    accuracy_mean: float
    accuracy_p10: float
    accuracy_p90: float
    bytes_up: int
    bytes_down: int
    seconds: float
    dropped: tuple[str, ...]
    ts: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of a device after its part of a round, for programs that watch.

    The message contains numbers only. No result is computed from it.

    Attributes:
        values: loss, accuracy and other metrics, as in the update's `Begin`.
        rss_mb: resident memory of the device's service now, in units of 10^6 bytes. Null if unknown.
        peak_rss_mb: largest resident memory so far, in units of 10^6 bytes. Null if unknown.
        temperature_c: processor temperature in degrees Celsius. Null if unknown.
        seconds: duration of the device's part of the round.
    """

    MAX_BYTES = 4096

    client_id: str
    round: int
    values: Mapping[str, float]
    rss_mb: float
    peak_rss_mb: float
    temperature_c: float
    seconds: float
    ts: float


@dataclass(frozen=True, slots=True)
class Anomaly:
    """The latest result of a device's anomaly detector, retained on `device/{id}/anomaly`.

    Only `edgefl device detect` sends it. The message contains no reading, sample or weight.

    Attributes:
        score: mean error of the reconstruction, in units of the loss. If the device has several sensors, it
            is the highest of their latest scores.
        threshold: a higher score is an alarm.
        alarm: whether the score is above the threshold.
        windows: number of windows that were scored since the command started.
        alarms: number of these windows with a score above the threshold.
    """

    MAX_BYTES = 4096

    client_id: str
    score: float
    threshold: float
    alarm: bool
    windows: int
    alarms: int
    ts: float


@dataclass(frozen=True)
class Clusters:
    """The cluster or expert of each client after a round, retained on `clusters`.

    The fields from `layer` to `cut` describe the comparison of client weights. They are empty, null or 0 if
    the algorithm compared no weights, or if there were more than 100 clients.

    Attributes:
        session: session of the federation.
        assignment: cluster or expert by client id.
        layer: layer whose weights were compared.
        clients: order of the clients in `matrix` and `linkage`.
        matrix: cosine similarity of the clients, shape (n, n), with three digits.
        linkage: the merges, each (first, second, height, size) as in scipy. Heights are in the algorithm's
            distance.
        cut: height above which no merge was made.
        compared: round of the comparison.
    """

    MAX_BYTES = 200 * 1024

    session: str
    round: int
    assignment: Mapping[str, int]
    layer: str
    clients: tuple[str, ...]
    matrix: tuple[tuple[float, ...], ...]
    linkage: tuple[tuple[int, int, float, int], ...]
    cut: float
    ts: float
    compared: int = 0


@dataclass(frozen=True)
class Verdict:
    """The verdict of the federation, retained on `verdict` after it has ended.

    `edgefl.base.verdict` defines the figures. A missing figure is null.

    Attributes:
        session: session of the federation.
        rows: (id, local, federated, shipped, int8, kind, comparison) of the devices that gained least, at
            most 500. Empty with secure aggregation.
    """

    MAX_ROWS = 500

    session: str
    measure: str
    devices: int
    means: Mapping[str, float]
    worst: Mapping[str, float]
    better: int
    as_good: int
    worse: int
    overall: str
    gain_points: float
    kinds: Mapping[str, int]
    sentence: str
    rows: tuple[tuple[str, float, float, float, float, str, str], ...]
    ts: float

"""What is said in JSON: one frozen dataclass a message, snake_case fields, `ts` in seconds since 1970.

`nonce` is fresh in each round and comes back with each update; `signature` is empty until messages are
signed.
Numbers that are not finite travel as null and arrive as NaN.

A message must have all of its fields. `OPTIONAL` of a class names the exceptions: a field that may be
missing, and then has its default.

`started` orders the runs of an aggregator: it is larger in each later run. Unit: milliseconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Ranges = tuple[tuple[int, int], ...]

JOINING_PHASE = "joining"
STOPPED_PHASE = "stopped"
PAUSED_BY_OPERATOR = "operator"
REFUSAL_PREFIX = "refuses "
"""How the `paused` of a device begins that refuses the plan or the tasks of this federation. It does not come
back by itself.
"""
DIVERGED_PREFIX = "diverged: "
"""Follows `REFUSES` and the round where the device refuses a task because its loss is no finite number."""
ReceiptOutcome = Literal["ok", "wait", "missing", "rejected"]


@dataclass(frozen=True, slots=True)
class State:
    """Retained on `state`: where the federation stands.

    `phase`: joining, an algorithm's phase, done or stopped.

    `session` names one start of the federation: what a device kept of another session is not continued.
    settings: numbers of the configuration, for programs that watch; a reader ignores the names that it does
    not know.
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
    """Retained on `device/{id}/status`; the last will is the same with `online` false.

    `born`: seconds since 1970.

    `paused`: why the device takes up no task now (operator, busy, on battery, outside 22:00-06:00), empty
    when it does. It begins with `REFUSES` when the device refuses what this federation asks for.
    `draining`: paused, and still at work on a task that it has.
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
    """A device that starts asks whether its id is taken; who has it answers with its status."""

    boot_id: str
    ts: float


@dataclass(frozen=True, slots=True)
class Task:
    """What one client shall do in a round. `models`: the sha256 of each model of the broadcast, by name.

    max_staleness: so many rounds later the update is still taken; budget_s: train about so long, in whole
    epochs, 0 for all of them. granted: a place is kept for the update, so that its chunks may follow at once
    on its Begin.
    chunk_bytes: the size of the chunks that the device sends its update in.
    settings: numbers of the configuration; a device ignores the names that it does not know, and none may
    change the update. `evaluate` above 0 asks for the accuracy on the device's validation samples.
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
    """Size in bytes and number of chunks of the blob with that sha256; retained: the broker keeps them all,
    nobody needs to ask.

    `session`: that of the aggregator that holds it.
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
    """An update is ready to be sent: its blob's manifest, and all of the update that is not a tensor.

    `follows`: all of its chunks come right behind, by the task's grant; else a receipt says when and which.
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
    """All chunks that were asked for are sent."""

    sha256: str
    count: int
    ts: float


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to an update.

    `outcome`: ok, wait (for an upload slot), missing (send these ranges), rejected (why).
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
    """A device lacks these chunks of a blob, as half-open ranges.

    None given means manifest and all chunks.
    """

    sha256: str
    missing: Ranges
    ts: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What a round gave: `loss` and `accuracy` over the updates that report them, else null.

    Traffic in payload bytes.

    metrics: the spread over clients of every metric that they report: NAME_mean, NAME_p10, NAME_p90. The
        fields of the accuracy are there for readers that do not know the map.
    """

    OPTIONAL = frozenset({"metrics"})

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
    """What a device tells of itself after its part of a round, for whoever watches: numbers only, and no
    result is made of them.

    `values`: loss, accuracy and the like, as in the update's Begin. Of the board, null where it does not say:
    memory in MB of 10^6 bytes, now and at most; processor temperature in degrees Celsius; seconds of its part
    of the round.
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


@dataclass(frozen=True)
class Clusters:
    """Retained on `clusters`: which cluster or expert each client is with after a round, by client id.

    Where the algorithm compared its clients' weights, and there were at most 100: `layer` says which weights,
    `clients` the order, `matrix` float[n, n] their cosine similarity in three digits, `linkage` the merges
    (one, other, height, size) in the algorithm's own distance, as scipy has them, `cut` the height above
    which none was made, and `compared` the round; else these are empty, null and 0.
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
    """Retained on `verdict` once the federation has ended: what it gave its devices, see `edgefl.verdict`.

    `rows`: (id, local, federated, shipped, int8, kind, comparison) of at most 500 devices, the ones that
    gained least; empty under secure aggregation. A missing figure is null.
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

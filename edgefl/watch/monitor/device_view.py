"""Builds the view of one device from the messages to and from it.

No I/O. Callers pass the time, in seconds since 1970.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from edgefl.base.verdict import DEFAULT_MEASURE, DeviceFigures, find_round_metric, name_measure
from edgefl.protocol.wire.messages import Anomaly, Begin, Metrics, Receipt, Status, Task

MAX_TRACE_ROUNDS = 60
MAX_GATE_WEIGHTS = 64
MAX_TEXT_LENGTH = 300
METRIC_FIGURES = {
    "loss": "loss",
    "accuracy": "accuracy",
    "accuracy_local": "accuracy_local",
    "accuracy_federated": "accuracy_federated",
    "accuracy_mixture": "accuracy_mixture",
    "accuracy_shipped": "accuracy_shipped",
    "accuracy_mixture_int8": "accuracy_int8",
    "accuracy_shipped_int8": "accuracy_int8",
    "shipped": "shipped",
    "bytes_up": "bytes_up",
}
"""Metrics of a device that the view stores, with their names in the view.

For another task than classification, the view stores the R2 or the AUC under the names of the accuracies.
"""
RESULT_FIGURES = ("accuracy_shipped", "accuracy_mixture")
"""Figures of a device that has its own model. One of them is enough."""
TRACED_METRICS = ("accuracy", "r2", "loss")
"""The metric of a trace is the first of these metrics that the device reports."""
SENT = "sent"
OK = "ok"
REJECTED = "rejected"


def clamp_timestamp(ts: float, now: float) -> float:
    """Return the time of a retained message, limited to the range from 1970 to `now`.

    The clock of the sender may be wrong.

    Args:
        ts: the sender's time in seconds since 1970. A NaN or infinite value counts as `now`.
        now: the receiver's time, in seconds since 1970.
    """
    return min(max(0.0, ts), now) if math.isfinite(ts) else now


def limit_text(text: str) -> str:
    """Return the first 300 characters of a text from the network."""
    return text[:MAX_TEXT_LENGTH]


@dataclass
class DeviceView:
    """The view of one device.

    Attributes:
        client_id: id of the device.
        status: the latest status, or None before the first one.
        last_seen: time of the last message from the device, in seconds since 1970.
        task: session and round of the latest task.
        task_at: time of the latest task, in seconds since 1970.
        waiting_since: time since which the device owes an answer, in seconds since 1970. If several tasks in
            a row have no answer, it is the time of the first one.
        answer: outcome of the latest task: `sent`, `ok` or `rejected`. Empty while there is none.
        answered_at: time of the answer, in seconds since 1970.
        reason: why the aggregator rejected the update.
        round: the latest round that the device reported figures for.
        figures: the latest figures by name, see `METRIC_FIGURES`.
        board: memory in MB, temperature in °C and training time in seconds, by name.
        gate: gate weight of each expert.
        expert: index of the cluster or of the preferred expert.
        trace: pairs (round, figure) of the last rounds.
        trace_of: name of the metric in `trace`: accuracy or r2 if the device reports one, otherwise loss.
        anomaly: the latest result of the device's anomaly detector, or None before the first result.
        measure: name of the measure of the accuracies for readers, one of `edgefl.base.verdict.MEASURES`.
        announced: SHA-256 of the update that the device announced last.
        bytes_up: size of all announced updates, in bytes.
        rejected: number of rejected updates.
        last_error: the latest problem as text.
        changes: number that grows with each message.
    """

    client_id: str
    status: Status | None = None
    last_seen: float | None = None
    task: tuple[str, int] | None = None
    task_at: float = 0.0
    waiting_since: float = 0.0
    answer: str = ""
    answered_at: float = 0.0
    reason: str = ""
    round: int | None = None
    figures: dict[str, float] = field(default_factory=dict)
    board: dict[str, float] = field(default_factory=dict)
    gate: list[float] = field(default_factory=list)
    expert: int | None = None
    trace: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MAX_TRACE_ROUNDS))
    trace_of: str = ""
    measure: str = DEFAULT_MEASURE
    anomaly: Anomaly | None = None
    announced: str = ""
    bytes_up: int = 0
    rejected: int = 0
    last_error: str = ""
    changes: int = 0

    @property
    def has_result(self) -> bool:
        """Whether the device has measured its own model in this session."""
        return any(name in self.figures for name in RESULT_FIGURES)

    def on_status(self, status: Status, now: float) -> None:
        """Process a status. The last will of an earlier boot is ignored.

        Args:
            status: the status. A retained one may be old, and its `ts` shows how old.
            now: time of arrival, in seconds since 1970.
        """
        previous = self.status
        if previous and not status.online and previous.boot_id != status.boot_id:
            return
        if status.online:
            self._update_last_seen(clamp_timestamp(status.ts, now) if previous is None else now)
        elif previous is None:
            self._update_last_seen(clamp_timestamp(status.ts, now))
        self.status = status

    def on_task(self, task: Task, now: float) -> None:
        """Process a task.

        The repetition of a task that the device has answered is ignored, except for masked updates. A masked
        update may need another attempt.

        Args:
            now: time of arrival, in seconds since 1970.
        """
        if (
            self.task == (task.session, task.round)
            and self.answer in (SENT, OK)
            and not task.codec.endswith("+masked")
        ):
            return
        if self.answer or not self.task or self.task[0] != task.session:
            self.waiting_since = now
        if self.task != (task.session, task.round) or self.answer:
            self.task_at = now
        self.task = (task.session, task.round)
        self.answer = ""
        self.reason = ""

    def on_begin(self, begin: Begin, now: float) -> None:
        """Process the announcement of an update. A repeated announcement adds no bytes.

        Args:
            begin: the announcement.
            now: time of arrival, in seconds since 1970.
        """
        self._update_last_seen(now)
        self.waiting_since = now
        if begin.sha256 != self.announced:
            self.announced = begin.sha256
            self.bytes_up += max(0, begin.size)
        if self.task == (begin.session, begin.round) and self.answer != OK:
            self.answer = SENT
            self.answered_at = now
        self._record_figures(begin.round, begin.metrics)

    def on_receipt(self, receipt: Receipt, now: float) -> None:
        """Process a receipt of the aggregator.

        Args:
            now: time of arrival, in seconds since 1970.
        """
        if receipt.outcome == OK and self.task and self.answer != OK:
            if self.answer != SENT:
                self.answered_at = now
            self.answer = OK
        elif receipt.outcome == REJECTED:
            self.rejected += 1
            self.answer = REJECTED
            self.reason = limit_text(receipt.reason)
            self.last_error = f"round {receipt.round}: {self.reason}"

    def on_metrics(self, metrics: Metrics, now: float) -> None:
        """Process the metrics that the device reports.

        Args:
            now: time of arrival, in seconds since 1970.
        """
        self._update_last_seen(now)
        vitals = {
            "rss_mb": metrics.rss_mb,
            "peak_rss_mb": metrics.peak_rss_mb,
            "temperature_c": metrics.temperature_c,
        }
        self.board.update({**vitals, "seconds": metrics.seconds})
        self._record_figures(metrics.round, metrics.values)

    def on_anomaly(self, anomaly: Anomaly, now: float) -> None:
        """Process a result of the device's anomaly detector.

        Args:
            anomaly: the result. A retained one may be old, and its `ts` shows how old.
            now: time of arrival, in seconds since 1970.
        """
        self._update_last_seen(clamp_timestamp(anomaly.ts, now))
        self.anomaly = anomaly

    def on_verdict(self, row: DeviceFigures) -> None:
        """Add the figures of the verdict that the device has not reported itself."""
        judged = {
            "accuracy_local": row.local,
            "accuracy_federated": row.federated,
            "accuracy_shipped": row.shipped,
            "accuracy_int8": row.int8,
        }
        for name, value in judged.items():
            if value is not None:
                self.figures.setdefault(name, value)

    def mark_dropped(self, round: int) -> None:
        """Record that a round ended without this device's update."""
        if self.answer != REJECTED:
            self.last_error = f"round {round} ended without its update"

    def forget_session(self) -> None:
        """Clear everything that belongs to an earlier session of the aggregator.

        The status, the time of the last message, the figures of the board and the anomaly remain.
        """
        fresh = DeviceView(
            client_id=self.client_id,
            status=self.status,
            last_seen=self.last_seen,
            board=self.board,
            anomaly=self.anomaly,
        )
        self.__dict__.update(fresh.__dict__)

    def _update_last_seen(self, at: float) -> None:
        self.last_seen = at if self.last_seen is None else max(self.last_seen, at)

    def _record_figures(self, round: int, values: Mapping[str, float]) -> None:
        self.round = round if self.round is None else max(self.round, round)
        self._record_model_figures(values)
        if "seconds" in values:
            self.board["seconds"] = values["seconds"]
        if gate := _read_numbered(values, "gate_"):
            self.gate = gate
        chosen = _read_numbered(values, "q/") or gate
        if chosen and all(map(math.isfinite, chosen)):
            self.expert = chosen.index(max(chosen))
        if math.isfinite(expert := values.get("expert", math.nan)) and 0 <= expert < 2**31:
            self.expert = int(expert)
        self._extend_trace(round, values)

    def _record_model_figures(self, values: Mapping[str, float]) -> None:
        metric = find_round_metric(values)
        prefix = metric.partition("_")[0]
        if metric in values:
            self.measure = name_measure(metric)
        renamed = ((key.replace(DEFAULT_MEASURE, prefix), name) for key, name in METRIC_FIGURES.items())
        self.figures.update({name: values[key] for key, name in renamed if key in values})

    def _extend_trace(self, round: int, values: Mapping[str, float]) -> None:
        figure = self.trace_of or next(
            (key for key in TRACED_METRICS if math.isfinite(values.get(key, math.nan))), ""
        )
        value = values.get(figure, math.nan)
        if not figure or not math.isfinite(value):
            return
        self.trace_of = figure
        if self.trace and self.trace[-1][0] == round:
            self.trace[-1] = (round, value)
        elif not self.trace or self.trace[-1][0] < round:
            self.trace.append((round, value))


def _read_numbered(values: Mapping[str, float], prefix: str) -> list[float]:
    """Return the figures `prefix0`, `prefix1` and so on, up to the first missing one and at most 64."""
    figures: list[float] = []
    while len(figures) < MAX_GATE_WEIGHTS and f"{prefix}{len(figures)}" in values:
        figures.append(values[f"{prefix}{len(figures)}"])
    return figures

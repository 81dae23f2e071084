"""Metrics of a federation for Prometheus, in the text exposition format at /metrics.

The metrics of rounds come from the messages `round/{r}/summary`. With `[privacy]` no such message is
published, so these metrics are missing.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgefl.base.errors import ConfigError, WireError
from edgefl.base.system.format import escape_unprintable
from edgefl.base.verdict import DEFAULT_MEASURE, read_comparison_counts
from edgefl.learning.algorithms import PHASE_DONE
from edgefl.protocol.wire.messages import Receipt, Summary
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.topics import parse_topic
from edgefl.watch.monitor.device_activity import ACTIVITY_KINDS
from edgefl.watch.monitor.view import FederationView, snapshot

REASON_PHRASES = (
    ("stale", ("stale:",)),
    ("duplicate", ("duplicate:",)),
    ("replayed", ("a replayed update",)),
    ("no task", ("is not in the cohort", "has no task", " is open; wait for its task", "wait for a task")),
    ("other plan", ("runs the plan",)),
    ("not enrolled", ("was revoked", "is not enrolled", "signature", "signed")),
    ("not finite", ("NaN or infinite",)),
)
"""Kinds of rejection, each with phrases of its reasons. The first match counts.

Any other reason is malformed: another shape, size, dtype or encoding.
"""
MALFORMED = "malformed"
SILENT_SCRAPER_TIMEOUT_S = 5.0
"""Longest time without a byte from a scraper, after which its connection is closed."""


def classify_reason(reason: str) -> str:
    """Return the kind of a receipt's reason, for a label with few values."""
    return next(
        (kind for kind, phrases in REASON_PHRASES if any(phrase in reason for phrase in phrases)), MALFORMED
    )


class FederationMetrics:
    """Turns a federation's messages into metrics. Thread-safe.

    prometheus_client calls `collect` for each scrape.

    Args:
        federation: name of the federation.
    """

    def __init__(self, federation: str) -> None:
        self._federation = federation
        self._lock = threading.Lock()
        self._view = FederationView(federation)
        self._rejected = Counter[str](dict.fromkeys((*(kind for kind, _ in REASON_PHRASES), MALFORMED), 0))
        self._rounds = self._updates = self._up = self._down = 0
        self._last: Summary | None = None
        self._is_scraped = False
        self._end_scraped = threading.Event()

    def take(self, topic: str, payload: bytes, now_s: float) -> None:
        """Read one message. A message that does not follow the protocol only counts as broken.

        Args:
            payload: content of the message.
            now_s: time of arrival, in seconds since 1970.
        """
        with self._lock:
            self._view.take(topic, payload, now_s)
            try:
                kind = parse_topic(topic).kind
                if kind == "receipt":
                    receipt = decode_json(Receipt, payload)
                    if receipt.outcome == "rejected":
                        self._rejected[classify_reason(receipt.reason)] += 1
                elif kind == "summary":
                    summary = self._last = decode_json(Summary, payload)
                    self._rounds = self._rounds + 1
                    self._updates = self._updates + summary.updates
                    self._up = self._up + summary.bytes_up
                    self._down = self._down + summary.bytes_down
            except WireError:
                return

    def collect(self) -> Iterator[Any]:
        """Yield every metric family."""
        with self._lock:
            seen = snapshot(self._view, time.time())
            last = self._last
            rejected = dict(self._rejected)
            totals = (self._rounds, self._updates, self._up, self._down)
        last_row = seen["history"][-1] if last and seen["history"] else {}
        yield self._make_gauge("round", "Number of the open round, or of the last one.", seen["round"])
        yield self._make_gauge(
            "rounds", "Rounds of the federation before clients personalize.", seen["rounds"]
        )
        yield self._make_gauge(
            "phase",
            "1 for the current phase of the federation.",
            {seen["phase"]: 1} if seen["phase"] else {},
            "phase",
        )
        yield self._make_gauge("cohort_size", "Clients in the open round.", seen["cohort_size"])
        counts = Counter(device["state"] for device in seen["devices"])
        yield self._make_gauge(
            "devices",
            "Devices by activity.",
            {activity: counts[activity] for activity in ACTIVITY_KINDS},
            "state",
        )
        offline = counts["offline"]
        yield self._make_gauge(
            "devices_online", "Devices that are connected.", len(seen["devices"]) - offline
        )
        yield self._make_gauge(
            "round_updates", "Updates in the last round that closed.", last_row.get("updates")
        )
        yield self._make_gauge(
            "round_loss",
            "Mean training loss over samples in the last round with a loss.",
            _find_latest(seen, "loss"),
        )
        accuracy = {part: _find_latest(seen, f"accuracy_{part}") for part in ("mean", "p10", "p90")}
        measure = next(
            (row["measure"] for row in reversed(seen["history"]) if row["accuracy_mean"] is not None),
            DEFAULT_MEASURE,
        )
        title = measure if measure.isupper() else measure.capitalize()
        yield self._make_gauge(
            f"round_{measure.lower()}",
            f"{title} over clients in the last round with an {measure}: mean and percentiles.",
            accuracy,
            "of",
        )
        yield from self._collect_verdict(seen["verdict"], seen["measure"])
        yield self._make_gauge("round_seconds", "Seconds that the last round took.", last_row.get("seconds"))
        yield self._make_counter("rounds_closed", "Rounds that closed since this process started.", totals[0])
        yield self._make_counter("updates", "Updates in those rounds.", totals[1])
        yield self._make_counter(
            "payload_bytes",
            "Payload bytes in those rounds.",
            {"up": totals[2], "down": totals[3]},
            "direction",
        )
        yield self._make_counter(
            "rejected_updates", "Rejected updates by kind of reason.", rejected, "reason"
        )
        yield self._make_counter(
            "broken_messages", "Messages that do not follow the protocol.", seen["broken"]
        )
        self._is_scraped = True
        if seen["phase"] == PHASE_DONE:
            self._end_scraped.set()

    def is_awaiting_scrape(self) -> bool:
        """Return whether metrics were scraped before, but not since the end of the federation."""
        with self._lock:
            has_ended = self._view.state is not None and self._view.state.phase == PHASE_DONE
        return self._is_scraped and has_ended and not self._end_scraped.is_set()

    def wait_for_scrape(self, timeout_s: float) -> None:
        """Wait until the end of the federation is scraped, or until the timeout in seconds."""
        self._end_scraped.wait(timeout_s)

    def _collect_verdict(self, verdict: dict[str, Any] | None, measure: str) -> Iterator[Any]:
        """Yield the metric families of the verdict. They have no samples until the federation ends."""
        yield self._make_gauge(
            f"verdict_{measure.lower()}",
            f"Mean {measure} over devices at the end: trained alone, federated, shipped, shipped int8.",
            verdict["means"] if verdict else {},
            "of",
        )
        yield self._make_gauge(
            "verdict_devices",
            "Devices by how their shipped model compares to training alone.",
            read_comparison_counts(verdict) if verdict else {},
            "against_local",
        )
        yield self._make_gauge(
            "verdict_gain_points",
            "Mean gain of the shipped model over training alone, in percentage points.",
            verdict["gain_points"] if verdict else None,
        )
        yield self._make_gauge(
            "verdict_info",
            "1 for the sentence of the verdict.",
            {escape_unprintable(verdict["sentence"]): 1} if verdict else {},
            "sentence",
        )

    def _make_gauge(
        self, name: str, about: str, value: float | dict[str, Any] | None, label: str = ""
    ) -> Any:
        from prometheus_client.metrics_core import GaugeMetricFamily

        return self._fill_family(GaugeMetricFamily, name, about, value, label)

    def _make_counter(
        self, name: str, about: str, value: float | dict[str, Any] | None, label: str = ""
    ) -> Any:
        from prometheus_client.metrics_core import CounterMetricFamily

        return self._fill_family(CounterMetricFamily, name, about, value, label)

    def _fill_family(
        self, family: Any, name: str, about: str, value: float | dict[str, Any] | None, label: str
    ) -> Any:
        made = family(f"edgefl_{name}", about, labels=["federation", *([label] if label else [])])
        for key, sample in (value if isinstance(value, dict) else {"": value}).items():
            if sample is not None:
                made.add_metric([self._federation, *([key] if label else [])], sample)
        return made


def _find_latest(seen: dict[str, Any], name: str) -> float | None:
    latest: float | None = next(
        (row[name] for row in reversed(seen["history"]) if row[name] is not None), None
    )
    return latest


@contextmanager
def serve_metrics(metrics: FederationMetrics, host: str, port: int) -> Iterator[str]:
    """Serve http://HOST:PORT/metrics from a thread and yield the URL.

    Args:
        host: address to listen on.
        port: TCP port. 0 chooses a free port.

    Raises:
        ConfigError: the address cannot be used.
        ModuleNotFoundError: the extra `prometheus` is not installed.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} for --metrics-port: {error.strerror or error}; pass another port"
        ) from error
    # Closing the server waits for the answers that are being sent, so that the last scrape is complete.
    server.daemon_threads = False
    server.RequestHandlerClass.timeout = SILENT_SCRAPER_TIMEOUT_S
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

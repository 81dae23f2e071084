"""Builds a view of a federation from its messages, and takes snapshots of it.

No I/O, bounded memory. No message on any topic raises an error. Invalid messages are counted. Retained
messages may arrive in any order.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from edgefl.base.errors import WireError
from edgefl.base.names import check_federation
from edgefl.base.system.files import to_json_value
from edgefl.base.verdict import (
    DEFAULT_MEASURE,
    MEASURES,
    DeviceFigures,
    as_dict,
    name_measure,
    read_round_metric,
)
from edgefl.program.plan.measured_values import describe_measured_values
from edgefl.protocol.wire.divergence_message import explain_divergence, read_divergence
from edgefl.protocol.wire.messages import (
    Anomaly,
    Begin,
    Clusters,
    Metrics,
    Receipt,
    State,
    Status,
    Summary,
    Task,
    Verdict,
)
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.topics import Address, FederationTopics, parse_topic
from edgefl.protocol.wire.verdict_message import read_verdict
from edgefl.watch.monitor.device_activity import Activity, classify_activity, find_typical_seconds
from edgefl.watch.monitor.device_view import DeviceView, clamp_timestamp

MAX_DEVICES = 2000
MAX_HISTORY_ROUNDS = 500
MAX_CLUSTERINGS = 60
DEVICE_ACCURACIES = (
    "accuracy_local",
    "accuracy_federated",
    "accuracy_mixture",
    "accuracy_shipped",
    "accuracy_int8",
)
"""Accuracies on the held-out samples of a device: of its own model, and of models to compare with."""
CURRENT_ACCURACY_KEYS = ("accuracy_shipped", "accuracy_mixture", "accuracy")
"""The current accuracy of a device is the first of these figures that it has."""
_DEVICE_MESSAGES = {
    "status": Status,
    "metrics": Metrics,
    "anomaly": Anomaly,
    "task": Task,
    "receipt": Receipt,
    "begin": Begin,
}


def list_view_subscriptions(federation: str) -> dict[str, int]:
    """Return the topic filters that a view needs, with the QoS of each.

    Blobs and chunks are not among them. QoS 0 is enough for a message that the next one of its kind replaces.

    Raises:
        ConfigError: the name is not a valid federation name.
    """
    topics = FederationTopics(federation)
    device = topics.format_device
    return {
        topics.state: 1,
        topics.clusters: 1,
        topics.verdict: 1,
        f"{topics.root}/round/+/summary": 1,
        device("+", "status"): 1,
        device("+", "metrics"): 0,
        device("+", "anomaly"): 1,
        device("+", "task"): 0,
        device("+", "receipt"): 0,
        topics.format_upload("+", "+", "begin"): 0,
    }


class FederationView:
    """The view of one federation. Not thread-safe.

    Attributes:
        federation: name of the federation.
        state: the latest state, or None before the first one.
        round_started: start of the current round or phase, in seconds since 1970.
        saw_round_start: whether the view was open when the current round or phase started.
        broken: number of messages that were invalid or of another federation.
        devices: the devices by id, at most 2,000.
        history: summaries of the last rounds, at most 500.
        clusterings: the last assignments of devices to clusters, at most 60.
        similarity: the latest cluster message with a similarity matrix, or None.
        verdict: the verdict of this session, or None.
        judged: the rows of the verdict by device id.
        cached_rows: the device entries of the last snapshot, with the keys that they were built for.
    """

    def __init__(self, federation: str) -> None:
        self.federation = check_federation(federation)
        self.state: State | None = None
        self.round_started: float | None = None
        self.saw_round_start = False
        self.broken = 0
        self.devices: dict[str, DeviceView] = {}
        self.history: deque[Summary] = deque(maxlen=MAX_HISTORY_ROUNDS)
        self.clusterings: deque[Clusters] = deque(maxlen=MAX_CLUSTERINGS)
        self.similarity: Clusters | None = None
        self.verdict: Verdict | None = None
        self.judged: dict[str, DeviceFigures] = {}
        self.cached_rows: dict[str, tuple[Any, dict[str, Any]]] = {}

    def take(self, topic: str, payload: bytes, now_s: float) -> None:
        """Process one message. An invalid message only increases `broken`.

        Args:
            payload: payload of the message. An empty one clears a retained message.
            now_s: time of arrival, in seconds since 1970.
        """
        try:
            address = parse_topic(topic)
            if address.federation != self.federation:
                raise WireError(f"a message of the federation {address.federation}")
            self._take(address, payload, now_s)
        except WireError:
            self.broken += 1

    def _take(self, address: Address, payload: bytes, now: float) -> None:
        if not payload:  # clears a retained message
            if address.kind == "status":
                self.devices.pop(address.client_id, None)
                self.cached_rows.pop(address.client_id, None)
            elif address.kind == "anomaly" and address.client_id in self.devices:
                self.devices[address.client_id].changes += 1
                self.devices[address.client_id].anomaly = None
            elif address.kind == "verdict":
                self.verdict = None
                self.judged = {}
            return
        if address.kind == "state":
            self._on_state(decode_json(State, payload), now)
        elif address.kind == "summary":
            self._on_summary(decode_json(Summary, payload), address.round)
        elif address.kind == "clusters":
            self._on_clusters(decode_json(Clusters, payload))
        elif address.kind == "verdict":
            self.verdict = decode_json(Verdict, payload)
            self._take_verdict()
        elif address.kind in _DEVICE_MESSAGES:
            message: Any = decode_json(_DEVICE_MESSAGES[address.kind], payload)
            if getattr(message, "client_id", address.client_id) != address.client_id:
                raise WireError(f"the message names {message.client_id}, its topic {address.client_id}")
            device = self._find_device(address.client_id)
            device.changes += 1
            getattr(device, f"on_{address.kind}")(message, now)

    def _find_device(self, client_id: str) -> DeviceView:
        device = self.devices.get(client_id)
        if device is None:
            if len(self.devices) >= MAX_DEVICES:
                raise WireError(f"more than {MAX_DEVICES} devices")
            device = self.devices[client_id] = DeviceView(client_id=client_id)
            if client_id in self.judged:
                device.on_verdict(self.judged[client_id])
        return device

    def _on_state(self, state: State, now: float) -> None:
        if state.federation != self.federation:
            raise WireError(f"the state names {state.federation}")
        before = self.state
        if before and before.session != state.session:
            self.history.clear()
            for device in self.devices.values():
                device.forget_session()
            self.cached_rows.clear()
        if not before or (before.session, before.round, before.phase) != (
            state.session,
            state.round,
            state.phase,
        ):
            self.saw_round_start = before is not None
            self.round_started = clamp_timestamp(state.ts, now)
        self.state = state
        self._keep_clusterings()
        self._take_verdict()

    def _on_summary(self, summary: Summary, round: int) -> None:
        if summary.round != round:
            raise WireError(f"the summary is for round {summary.round}, its topic for {round}")
        if self.history and self.history[-1].round >= round:  # repeated after a restart
            earlier = [previous for previous in self.history if previous.round < round]
            self.history.clear()
            self.history.extend(earlier)
        self.history.append(summary)
        for client_id in summary.dropped:
            if client_id in self.devices:
                self.devices[client_id].changes += 1
                self.devices[client_id].mark_dropped(round)

    def _on_clusters(self, clusters: Clusters) -> None:
        while self.clusterings and self.clusterings[-1].round >= clusters.round:
            self.clusterings.pop()
        self.clusterings.append(clusters)
        if clusters.matrix:
            self.similarity = clusters
        self._keep_clusterings()

    def _keep_clusterings(self) -> None:
        # Retained clusters may arrive before the state, and may belong to an earlier session.
        if self.state is None:
            return
        session = self.state.session
        if any(clustering.session != session for clustering in self.clusterings):
            current = [clustering for clustering in self.clusterings if clustering.session == session]
            self.clusterings.clear()
            self.clusterings.extend(current)
        if self.similarity and self.similarity.session != session:
            self.similarity = None

    def _take_verdict(self) -> None:
        # Like the clusters, the verdict may arrive before the state and belong to an earlier session.
        self.judged = {}
        if self.verdict is None or self.state is None:
            return
        if self.verdict.session != self.state.session:
            self.verdict = None
            return
        self.judged = {row.id: row for row in read_verdict(self.verdict).rows}
        for client_id in self.judged.keys() & self.devices.keys():
            self.devices[client_id].changes += 1
            self.devices[client_id].on_verdict(self.judged[client_id])


def snapshot(view: FederationView, now_s: float) -> dict[str, Any]:
    """Return the view as a dict for JSON.

    NaN becomes None, and times are in seconds since 1970. Round `rounds + 1` is the personalization.

    `measure` names what the accuracies are: accuracy, R2 or AUC. At the top level it is the latest one, for
    figures over devices. In the entry of a device, `slow` marks a device that takes much longer than the
    others. `trace` holds the figures that `trace_of` names. The entry of an unchanged device is the same dict
    as in the previous snapshot, so callers must not modify it. `recipe` is a text with the learning rate that
    was found, and with mean and std of the model.

    Args:
        now_s: the current time, in seconds since 1970.
    """
    state = view.state
    assignment = view.clusterings[-1].assignment if view.clusterings else {}
    divergence = read_divergence(state) if state else None
    typical_s = find_typical_seconds(view.devices.values(), state)
    judged = frozenset(row[0] for row in view.verdict.rows) if view.verdict else frozenset()
    return {
        "federation": view.federation,
        "session": state.session if state else "",
        "phase": state.phase if state else "",
        "round": state.round if state else 0,
        "rounds": state.rounds if state else 0,
        "needed": _to_count(state.settings.get("min_clients")) if state else None,
        "experts": _name_experts(view),
        "measure": _find_measure(view),
        "cohort_size": state.cohort_size if state else 0,
        "deadline_s": to_json_value(state.deadline_s) if state else None,
        "round_started_ts": view.round_started,
        "ts": now_s,
        "broken": view.broken,
        "recipe": describe_measured_values(state.settings) if state else "",
        "stopped_because": explain_divergence(divergence) if divergence else "",
        "differential_privacy": bool(state and state.settings.get("differential_privacy", 0.0) > 0),
        "verdict": as_dict(read_verdict(view.verdict)) if view.verdict and state else None,
        "history": [_describe_round(entry) for entry in view.history],
        "devices": [
            _describe_device(view.devices[client_id], view, assignment, typical_s, now_s, judged)
            for client_id in sorted(view.devices)
        ],
        "clusters": {
            "rounds": [{"round": entry.round, "assignment": entry.assignment} for entry in view.clusterings],
            "similarity": _describe_similarity(view.similarity),
        },
    }


def _find_measure(view: FederationView) -> str:
    """Return the measure of the verdict, of the latest round with one, or of a device."""
    if view.verdict and view.state and view.verdict.measure in MEASURES.values():
        return view.verdict.measure
    metrics = (read_round_metric({"metrics": entry.metrics}) for entry in reversed(view.history))
    reported = (name_measure(metric) for metric in metrics)
    devices = (device.measure for device in view.devices.values())
    return next((name for name in (*reported, *devices) if name != DEFAULT_MEASURE), DEFAULT_MEASURE)


def _to_count(value: float | None) -> int | None:
    """Return a count that the network delivers as a float, or None for any other number."""
    return int(value) if value is not None and math.isfinite(value) and 0 < value < 2**31 else None


def _name_experts(view: FederationView) -> list[str]:
    """Return the names of the experts of a gate, the same as in a simulation."""
    count = max((len(device.gate) for device in view.devices.values()), default=0)
    num_local = _to_count(view.state.settings.get("own_experts")) if view.state else None
    if not count or not num_local:
        return [f"expert {index}" for index in range(count)]
    if count == 2:
        return ["global", "local"]
    return [*(f"expert {index}" for index in range(count - 1)), "local"]


def _describe_round(summary: Summary) -> dict[str, Any]:
    figures = ("loss", "accuracy_mean", "accuracy_p10", "accuracy_p90", "seconds")
    return {
        "round": summary.round,
        "phase": summary.phase,
        "updates": summary.updates,
        **{name: to_json_value(getattr(summary, name)) for name in figures},
        "measure": name_measure(read_round_metric({"metrics": summary.metrics})),
        "bytes_up": summary.bytes_up,
        "bytes_down": summary.bytes_down,
        "dropped": list(summary.dropped),
        "metrics": {name: to_json_value(value) for name, value in summary.metrics.items()},
    }


def _describe_device(
    device: DeviceView,
    view: FederationView,
    assignment: Mapping[str, int],
    typical_s: float | None,
    now: float,
    judged: Collection[str],
) -> dict[str, Any]:
    activity = classify_activity(device, view.state, typical_s, view.saw_round_start, now, judged)
    expert = assignment.get(device.client_id, device.expert)
    key = device.changes, activity, expert
    before = view.cached_rows.get(device.client_id)
    if before is None or before[0] != key:
        before = view.cached_rows[device.client_id] = key, _build_device_tree(device, activity, expert)
    return before[1]


def _build_device_tree(device: DeviceView, activity: Activity, expert: int | None) -> dict[str, Any]:
    figures = {name: to_json_value(value) for name, value in device.figures.items()}
    board = {name: to_json_value(value) for name, value in device.board.items()}
    accuracy = next(
        (figure for key in CURRENT_ACCURACY_KEYS if (figure := figures.get(key)) is not None), None
    )
    return {
        "id": device.client_id,
        "state": activity.kind,
        "why": activity.why,
        "slow": activity.slow,
        "samples": device.status.num_samples if device.status else None,
        "version": device.status.version[:40] if device.status else "",
        "last_seen_ts": device.last_seen,
        "round": device.round,
        "measure": device.measure,
        "accuracy": accuracy,
        "loss": figures.get("loss"),
        **{key: figures.get(key) for key in DEVICE_ACCURACIES},
        "shipped": figures.get("shipped"),
        **{key: board.get(key) for key in ("rss_mb", "peak_rss_mb", "temperature_c", "seconds")},
        "expert": expert,
        "gate": [to_json_value(entry) for entry in device.gate] or None,
        "bytes_up": max(device.bytes_up, int(min(figures.get("bytes_up") or 0, 2**53))),
        "rejected": device.rejected,
        "last_error": device.last_error,
        "anomaly": _describe_anomaly(device.anomaly),
        "trace": [list(entry) for entry in device.trace],
        "trace_of": device.trace_of,
    }


def _describe_anomaly(anomaly: Anomaly | None) -> dict[str, Any] | None:
    if anomaly is None:
        return None
    return {
        "alarm": anomaly.alarm,
        "score": to_json_value(anomaly.score),
        "threshold": to_json_value(anomaly.threshold),
        "windows": anomaly.windows,
        "alarms": anomaly.alarms,
        "ts": to_json_value(anomaly.ts),
    }


def _describe_similarity(clusters: Clusters | None) -> dict[str, Any] | None:
    if clusters is None:
        return None
    return {
        "round": clusters.compared,
        "layer": clusters.layer,
        "clients": list(clusters.clients),
        "matrix": [[to_json_value(value) for value in row] for row in clusters.matrix],
        "linkage": [[a, b, to_json_value(height), size] for a, b, height, size in clusters.linkage],
        "cut": to_json_value(clusters.cut),
    }

"""Formats a snapshot as text: a summary of the federation, and one row per device. Pure functions."""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.base.system import format as text_format
from edgefl.base.verdict import DEFAULT_MEASURE, MAX_TABLE_ROWS, from_dict, render_verdict_table
from edgefl.protocol.wire.messages import JOINING_PHASE, STOPPED_PHASE
from edgefl.watch.monitor.device_activity import ACTIVITY_KINDS

DeviceRow = Mapping[str, Any]
Snapshot = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of the device table.

    Attributes:
        name: the heading.
        width: in characters, 0 for the rest of the line.
        narrow: whether terminals of 80 columns show it too.
        text: formats the cell of a device. The second argument is the time in seconds since 1970.
        key: sort key.
        right: whether the text is right-aligned.
    """

    name: str
    width: int
    narrow: bool
    text: Callable[[DeviceRow, float], str]
    key: Callable[[DeviceRow], Any]
    right: bool = False


def _format_key(key: str, text: Callable[[Any], str]) -> Callable[[DeviceRow, float], str]:
    return lambda device, now: text(device[key])


def _sort_by(key: str) -> Callable[[DeviceRow], Any]:
    return lambda device: device[key]


def _rank_state(device: DeviceRow) -> tuple[int, bool]:
    return ACTIVITY_KINDS.index(device["state"]), not device["slow"]


def _name_state(device: DeviceRow, now: float) -> str:
    return "slow" if device["slow"] and device["state"] == "training" else str(device["state"])


def format_anomaly(anomaly: Mapping[str, Any] | None) -> str:
    """Return the result of a device's anomaly detector as text, empty without a result.

    Args:
        anomaly: the entry `anomaly` of a device in a snapshot.
    """
    if anomaly is None:
        return ""
    score, threshold = (text_format.format_number(anomaly[name]) for name in ("score", "threshold"))
    state = f"ALARM: score {score} above" if anomaly["alarm"] else f"normal: score {score}, threshold"
    return f"{state} {threshold}, {anomaly['alarms']} alarms in {anomaly['windows']} windows"


def _explain_row(device: DeviceRow) -> str:
    anomaly = device["anomaly"]
    alarm = format_anomaly(anomaly) if anomaly and anomaly["alarm"] else ""
    return "; ".join(filter(None, (alarm, text_format.escape_unprintable(device["why"]))))


def _format_whole(value: int | None) -> str:
    return text_format.NO_VALUE if value is None else str(value)


def _format_tenth(value: float | None) -> str:
    return text_format.format_number(value, 1)


def _format_rounded(value: float | None) -> str:
    return text_format.format_number(value, 0)


COLUMNS = (
    Column(
        name="device", width=14, narrow=True, text=lambda device, now: str(device["id"]), key=_sort_by("id")
    ),
    Column(name="state", width=8, narrow=True, text=_name_state, key=_rank_state),
    Column(
        name="round",
        width=5,
        narrow=True,
        text=_format_key("round", _format_whole),
        key=_sort_by("round"),
        right=True,
    ),
    Column(
        name="acc",
        width=6,
        narrow=True,
        text=_format_key("accuracy", text_format.format_percent),
        key=_sort_by("accuracy"),
        right=True,
    ),
    Column(
        name="loss",
        width=7,
        narrow=True,
        text=_format_key("loss", text_format.format_number),
        key=_sort_by("loss"),
        right=True,
    ),
    Column(
        name="exp",
        width=3,
        narrow=False,
        text=_format_key("expert", _format_whole),
        key=_sort_by("expert"),
        right=True,
    ),
    Column(
        name="s",
        width=6,
        narrow=False,
        text=_format_key("seconds", _format_tenth),
        key=_sort_by("seconds"),
        right=True,
    ),
    Column(
        name="MB",
        width=5,
        narrow=False,
        text=_format_key("rss_mb", _format_rounded),
        key=_sort_by("rss_mb"),
        right=True,
    ),
    Column(
        name="°C",
        width=4,
        narrow=False,
        text=_format_key("temperature_c", _format_rounded),
        key=_sort_by("temperature_c"),
        right=True,
    ),
    Column(
        name="up",
        width=7,
        narrow=False,
        text=_format_key("bytes_up", text_format.format_bytes),
        key=_sort_by("bytes_up"),
        right=True,
    ),
    Column(
        name="seen",
        width=6,
        narrow=True,
        text=lambda device, now: text_format.format_age(device["last_seen_ts"], now),
        key=_sort_by("last_seen_ts"),
        right=True,
    ),
    Column(
        name="why not in the round",
        width=0,
        narrow=True,
        text=lambda device, now: _explain_row(device),
        key=_sort_by("why"),
    ),
)
COLUMN_BY_NAME = {column.name: column for column in COLUMNS}
SORT_COLUMNS = ("state", "device", "round", "acc", "loss", "exp", "s", "°C", "up", "seen")
MIN_WIDE_WIDTH = 110


def choose_columns(width: int) -> tuple[Column, ...]:
    """Return the columns for a terminal of this width in characters."""
    return COLUMNS if width >= MIN_WIDE_WIDTH else tuple(column for column in COLUMNS if column.narrow)


def format_line(cells: Iterable[str], columns: Sequence[Column], width: int) -> str:
    """Return the cells as one line of at most `width` characters.

    Args:
        cells: one text per column.
        width: maximum length, in characters.
    """
    fixed = [
        text_format.truncate(cell, column.width).rjust(column.width)
        if column.right
        else text_format.truncate(cell, column.width).ljust(column.width)
        for cell, column in zip(cells, columns, strict=True)
        if column.width
    ]
    last = [cell for cell, column in zip(cells, columns, strict=True) if not column.width]
    return text_format.truncate(" ".join([*fixed, *last]), width)


def format_header(columns: Sequence[Column], width: int, measure: str = DEFAULT_MEASURE) -> str:
    """Return the header line of at most `width` characters.

    Args:
        width: maximum length, in characters.
        measure: name of the measure of the accuracies.
    """
    heading = "acc" if measure == DEFAULT_MEASURE else measure
    names = [heading if column.name == "acc" else column.name for column in columns]
    return format_line(names, columns, width)


def format_row(device: DeviceRow, columns: Sequence[Column], width: int, now: float) -> str:
    """Return the line of a device.

    Args:
        device: the entry of the device in a snapshot.
        width: maximum length, in characters.
        now: the time of the snapshot, in seconds since 1970.
    """
    return format_line([column.text(device, now) for column in columns], columns, width)


def select_devices(devices: Sequence[DeviceRow], sort: str, reverse: bool, query: str) -> list[DeviceRow]:
    """Return the devices that match a query, sorted.

    Devices that lack the sorted figure come last. Devices with equal figures keep their order, which is by id
    in a snapshot.

    Args:
        devices: device entries of a snapshot.
        sort: name of a column, one of `SORT_COLUMNS`.
        reverse: sorts in descending order.
        query: words separated by spaces. The id, state or reason must contain all of them. Case is ignored.
    """
    parts = query.lower().split()
    matching = [
        device
        for device in devices
        if all(
            part in f"{device['id']} {_name_state(device, 0)} {device['state']} {device['why']}".lower()
            for part in parts
        )
    ]
    key = COLUMN_BY_NAME[sort].key
    having, lacking = (
        [device for device in matching if (key(device) is None) is missing] for missing in (False, True)
    )
    return sorted(having, key=key, reverse=reverse) + lacking


def format_head(tree: Snapshot, width: int, limit: int = 0) -> list[str]:
    """Return the summary lines of a federation.

    They show the progress, the verdict, the number of devices by state, the figures of the last round, the
    communication cost, the clusters, and what was measured before round 1.

    Args:
        width: maximum length of a line, in characters.
        limit: maximum number of devices in the table of the verdict.
    """
    others = [
        _describe_counts(tree["devices"]),
        _describe_figures(tree, width),
        _describe_traffic(tree, width),
        _describe_clusters(tree),
        f"recipe: {tree['recipe']}" if tree["recipe"] else "",
    ]
    reasons = [text_format.escape_unprintable(tree["stopped_because"]), _explain_missing_figures(tree)]
    reason = [line for text in reasons for line in textwrap.wrap(text, width)]
    lines = [
        _describe_progress(tree, width),
        *reason,
        *_format_verdict(tree, width, limit),
        *filter(None, others),
    ]
    return [text_format.truncate(text_format.escape_unprintable(text), width) for text in lines]


def _describe_progress(tree: Snapshot, width: int) -> str:
    name = tree["federation"]
    phase = tree["phase"]
    if not phase:
        return f"{name}: no message from an aggregator yet"
    if phase in (JOINING_PHASE, STOPPED_PHASE, "done"):
        ended = {
            JOINING_PHASE: _describe_waiting(tree),
            STOPPED_PHASE: "the aggregator has stopped",
            "done": f"done after {tree['rounds']} rounds",
        }
        return f"{name}: {ended[phase]}"
    sent = sum(device["state"] == "sent" for device in tree["devices"])
    took = max(0.0, tree["ts"] - (tree["round_started_ts"] or tree["ts"]))
    deadline_s = tree["deadline_s"] or 0.0
    position = (
        phase if tree["round"] > tree["rounds"] else f"round {tree['round']} of {tree['rounds']}, {phase}"
    )
    text = f"{name}: {position}, {sent} of {tree['cohort_size']} updates, {took:.0f} of {deadline_s:.0f} s "
    share = sent / tree["cohort_size"] if tree["cohort_size"] else 0.0
    return text + text_format.draw_bar(share, max(0, min(20, width - len(text))))


def _format_verdict(tree: Snapshot, width: int, limit: int) -> list[str]:
    """Return the table of the verdict with at most `limit` devices, and its sentence."""
    if tree["verdict"] is None:
        return []
    verdict = from_dict(tree["verdict"])
    sentence = text_format.escape_unprintable(verdict.sentence)
    return [*render_verdict_table(verdict, limit).splitlines(), *textwrap.wrap(sentence, width)]


def _explain_missing_figures(tree: Snapshot) -> str:
    """Return why figures that a reader expects are missing, or an empty text."""
    is_done = tree["phase"] == "done"
    if tree["differential_privacy"]:
        if is_done:
            return (
                "Differential privacy is on, so the aggregator publishes no figures and no verdict. `edgefl "
                "report` shows them from the aggregator's folder."
            )
        return "Differential privacy is on, so the aggregator publishes no figures for the rounds."
    verdict = tree["verdict"]
    if is_done and verdict is None:
        return "The broker has no verdict for this federation. `edgefl report` shows the aggregator's result."
    if verdict and verdict["devices"] and not verdict["rows"]:
        return "Updates are masked, so the verdict has no figures for single devices."
    return ""


def _describe_waiting(tree: Snapshot) -> str:
    needed = tree["needed"]
    ready = sum(device["state"] == "idle" for device in tree["devices"])
    if not needed or ready >= needed:
        return "waiting for devices"
    plural = "s" if needed > 1 else ""
    return f"waiting for {needed - ready} of {needed} device{plural}; start them with `edgefl device start`"


def _describe_counts(devices: Sequence[DeviceRow]) -> str:
    if not devices:
        return "no message from a device yet"
    count = Counter(_name_state(device, 0) for device in devices)
    parts = [
        f"{count[kind]} {kind}" for kind in (*ACTIVITY_KINDS[:4], "slow", *ACTIVITY_KINDS[4:]) if count[kind]
    ]
    if alarms := sum(bool(device["anomaly"] and device["anomaly"]["alarm"]) for device in devices):
        parts.append(f"{alarms} with an ALARM")
    return f"{len(devices)} device{'s' if len(devices) > 1 else ''}: {', '.join(parts)}"


def _describe_figures(tree: Snapshot, width: int) -> str:
    rows = tree["history"]
    parts = [f"round {rows[-1]['round']}: loss {text_format.format_number(rows[-1]['loss'])}"] if rows else []
    last = next((row for row in reversed(rows) if row["accuracy_mean"] is not None), None)
    if last:
        spread = [last[f"accuracy_{name}"] for name in ("mean", "p10", "p90")]
    else:
        accuracies = [row["accuracy"] for row in tree["devices"] if row["accuracy"] is not None]
        spread = (
            [
                sum(accuracies) / len(accuracies),
                text_format.percentile(accuracies, 0.1),
                text_format.percentile(accuracies, 0.9),
            ]
            if accuracies
            else []
        )
    if spread:
        mean, low, high = map(text_format.format_percent, spread)
        measure = last["measure"] if last else tree["measure"]
        parts.append(f"{measure} mean {mean}, p10 {low}, p90 {high}")
    line = ", ".join(parts)
    # Personalization measures other models on other samples, so it is no point of this curve.
    curve = [row["accuracy_mean"] for row in rows if row["round"] <= tree["rounds"]]
    reported = [mean for mean in curve if mean is not None]
    return (
        f"{line} {text_format.draw_sparkline(reported, width - len(line) - 1)}" if len(reported) > 1 else line
    )


def _describe_traffic(tree: Snapshot, width: int) -> str:
    rows = tree["history"]
    if not rows:
        return ""
    up, down = (sum(row[key] for row in rows) for key in ("bytes_up", "bytes_down"))
    text = f"{text_format.format_bytes(up)} up, {text_format.format_bytes(down)} down in {len(rows)} rounds"
    losses = [row["loss"] for row in rows if row["loss"] is not None]
    return (
        f"{text}, loss {text_format.draw_sparkline(losses, min(40, width - len(text) - 7))}"
        if losses
        else text
    )


def _describe_clusters(tree: Snapshot) -> str:
    rounds = tree["clusters"]["rounds"]
    if not rounds:
        return ""
    count = Counter(rounds[-1]["assignment"].values())
    return f"clusters after round {rounds[-1]['round']}: " + ", ".join(
        f"{cluster} has {count[cluster]}" for cluster in sorted(count)
    )


def format_snapshot(tree: Snapshot, width: int, sort: str = "state", query: str = "") -> list[str]:
    """Return the summary and the device table as lines, for output without a terminal.

    Args:
        width: maximum length of a line, in characters.
        sort: name of a column, one of `SORT_COLUMNS`.
        query: words to filter by, see `select_devices`.
    """
    columns = choose_columns(width)
    rows = [
        format_row(device, columns, width, tree["ts"])
        for device in select_devices(tree["devices"], sort, False, query)
    ]
    return [
        *format_head(tree, width, MAX_TABLE_ROWS),
        "",
        format_header(columns, width, tree["measure"]),
        *rows,
    ]

"""Formats the page of one device: figures, gate, trace and last error. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.base.system import format as text_format
from edgefl.base.verdict import MEASURES
from edgefl.watch.monitor.table import format_anomaly


def format_device_page(
    device: Mapping[str, Any], now: float, width: int, experts: Sequence[str] = ()
) -> list[str]:
    """Return the lines of the page of a device.

    Args:
        device: the entry of the device in a snapshot, see `edgefl.watch.monitor.view.snapshot`.
        now: the time of the snapshot, in seconds since 1970.
        width: maximum length of a line, in characters.
        experts: names of the experts of the gate.
    """
    reason = text_format.escape_unprintable(device["why"])
    state = device["state"]
    status = reason if reason.startswith(state) else ", ".join(filter(None, (state, reason)))
    lines = [f"{device['id']}: {status}"]
    rejected = f"{device['rejected']} updates rejected; " if device["rejected"] else ""
    lines += [f"last error: {rejected}{text_format.escape_unprintable(device['last_error']) or 'none'}", ""]
    board = {
        "last message": text_format.format_age(device["last_seen_ts"], now),
        "samples": text_format.format_number(device["samples"], 0),
        "version": text_format.escape_unprintable(device["version"]) or text_format.NO_VALUE,
        "memory": f"{text_format.format_number(device['rss_mb'], 0)} MB, peak "
        f"{text_format.format_number(device['peak_rss_mb'], 0)} MB",
        "processor": f"{text_format.format_number(device['temperature_c'], 0)} °C",
    }
    figures = {
        "round": text_format.format_number(device["round"], 0),
        "time": f"{text_format.format_number(device['seconds'], 1)} s",
        "sent": text_format.format_bytes(device["bytes_up"]),
        "loss": text_format.format_number(device["loss"]),
        device["measure"]: text_format.format_percent(device["accuracy"]),
        "federated": text_format.format_percent(device["accuracy_federated"]),
        "local": text_format.format_percent(device["accuracy_local"]),
        "shipped": text_format.format_percent(device["accuracy_shipped"]),
        "int8": text_format.format_percent(device["accuracy_int8"]),
        "cluster or expert": text_format.format_number(device["expert"], 0),
    }
    lines += [f"{name:18} {value}" for name, value in (board | figures).items()]
    if device["anomaly"]:
        age = text_format.format_age(device["anomaly"]["ts"], now)
        lines.append(f"{'anomaly':18} {format_anomaly(device['anomaly'])}, {age}")
    for index, share in enumerate(device["gate"] or ()):
        expert = experts[index] if index < len(experts) else f"expert {index}"
        lines.append(
            f"{f'gate, {expert}':18} {text_format.draw_bar(share or 0.0, 20)} "
            f"{text_format.format_percent(share)}"
        )
    if device["trace"]:
        values = [value for _, value in device["trace"]]
        first = device["trace"][0][0]
        last = device["trace"][-1][0]
        traced = MEASURES.get(device["trace_of"], device["trace_of"])
        lines.append(f"{traced:18} {text_format.draw_sparkline(values, width - 19)}")
        lines.append(
            f"{'':18} rounds {first} to {last}, from {text_format.format_number(values[0])} to "
            f"{text_format.format_number(values[-1])}"
        )
    return [piece for line in lines for piece in _wrap_line(line, width)]


def _wrap_line(text: str, width: int) -> list[str]:
    return [text[i : i + width] for i in range(0, len(text), max(1, width))] or [""]

"""One device as lines of text: figures, gate, trace, what went wrong last. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.system import format as words


def page(device: Mapping[str, Any], now: float, width: int, experts: Sequence[str] = ()) -> list[str]:
    """Return the lines of a device's page. experts: the names of the experts of its gate."""
    told = words.printable(device["why"])
    lines = [
        f"{device['id']}: "
        f"{told if told.startswith(device['state']) else ', '.join(filter(None, (device['state'], told)))}"
    ]
    rejected = f"{device['rejected']} updates rejected; " if device["rejected"] else ""
    lines += [f"last error: {rejected}{words.printable(device['last_error']) or 'none'}", ""]
    board = {
        "last heard": words.ago(device["last_seen_ts"], now),
        "samples": words.number(device["samples"], 0),
        "version": words.printable(device["version"]) or words.NONE,
        "memory": f"{words.number(device['rss_mb'], 0)} MB, at most {words.number(device['peak_rss_mb'], 0)} "
        "MB",
        "processor": f"{words.number(device['temperature_c'], 0)} °C",
    }
    figures = {
        "round": words.number(device["round"], 0),
        "took": f"{words.number(device['seconds'], 1)} s",
        "sent": words.size(device["bytes_up"]),
        "loss": words.number(device["loss"]),
        "accuracy": words.percent(device["accuracy"]),
        "federated": words.percent(device["accuracy_federated"]),
        "local": words.percent(device["accuracy_local"]),
        "shipped": words.percent(device["accuracy_shipped"]),
        "int8": words.percent(device["accuracy_int8"]),
        "cluster or expert": words.number(device["expert"], 0),
    }
    lines += [f"{name:18} {value}" for name, value in (board | figures).items()]
    for index, share in enumerate(device["gate"] or ()):
        expert = experts[index] if index < len(experts) else f"expert {index}"
        lines.append(f"{f'gate, {expert}':18} {words.bar(share or 0.0, 20)} {words.percent(share)}")
    if device["trace"]:
        values = [value for _, value in device["trace"]]
        first = device["trace"][0][0]
        last = device["trace"][-1][0]
        lines.append(f"{device['trace_of']:18} {words.sparkline(values, width - 19)}")
        lines.append(
            f"{'':18} rounds {first} to {last}, from {words.number(values[0])} to {words.number(values[-1])}"
        )
    return [piece for each in lines for piece in _wrapped(each, width)]


def _wrapped(text: str, width: int) -> list[str]:
    return [text[i : i + width] for i in range(0, len(text), max(1, width))] or [""]

"""The demo's result as a record for programs and as a table for people."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

CLIENT_KEYS = (
    "id",
    "n_train",
    "accuracy_local",
    "accuracy_federated",
    "accuracy_mixture",
    "accuracy_mixture_int8",
    "tflite_bytes",
    "peak_rss_mb",
    "bytes_up",
    "bytes_down",
)
COUNTS = {"n_train", "tflite_bytes", "bytes_up", "bytes_down"}
ACCURACIES = tuple(key for key in CLIENT_KEYS if key.startswith("accuracy"))
HEADS = (
    "client",
    "samples",
    "local",
    "federated",
    "mixture",
    "int8",
    "model KB",
    "RSS MB",
    "up KB",
    "down KB",
)


def client_row(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of one client in their order; what was not measured is None."""
    row: dict[str, Any] = {}
    for key in CLIENT_KEYS:
        value = raw.get(key)
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        row[key] = int(value) if key in COUNTS and value is not None else value
    return row


def means(clients: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the plain mean over clients of each accuracy; None when a client lacks it."""
    result: dict[str, float | None] = {}
    for key in ACCURACIES:
        values = [client[key] for client in clients]
        result[key] = None if not values or None in values else sum(values) / len(values)
    return result


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key.startswith("accuracy"):
        return f"{100 * value:.1f}%"
    if key in ("tflite_bytes", "bytes_up", "bytes_down"):
        return f"{value / 1000:,.0f}"
    return f"{value:.0f}" if key == "peak_rss_mb" else str(value)


def table(clients: Sequence[Mapping[str, Any]]) -> str:
    """Return one line a client and one of means; KB are 1000 bytes."""
    rows = [HEADS, *(tuple(_cell(key, client[key]) for key in CLIENT_KEYS) for client in clients)]
    mean = means(clients)
    rows.append(
        tuple("mean" if key == "id" else _cell(key, mean[key]) if key in mean else "" for key in CLIENT_KEYS)
    )
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])

"""Figures and text for a terminal. Pure functions; None is a dash."""

import math
from collections.abc import Sequence

NO_VALUE = "-"
SPARKLINE_BLOCKS = "▁▂▃▄▅▆▇█"
SHARE_METRICS = frozenset({"accuracy"})
"""First words of the metrics that are shares of 1."""


def format_percent(share: float | None, digits: int = 1, sign: str = "%") -> str:
    """Return a share of 1 as `91.2%`."""
    return NO_VALUE if share is None else f"{100 * share:.{digits}f}{sign}"


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number in at most 8 characters."""
    if value is None:
        return NO_VALUE
    text = f"{value:.{digits}f}"
    return text if len(text) <= 8 else f"{value:.1e}"


def format_metric(name: str, value: float | None) -> str:
    """Return the value of a metric of devices: a share of 1 in per cent, anything else as a number."""
    return format_percent(value) if name.partition("_")[0] in SHARE_METRICS else format_number(value)


def format_spread(name: str, mean: float, low: float, high: float) -> str:
    """Return a metric over clients as `accuracy 87.5% (p10 80.0%, p90 95.0%)`."""
    return (
        f"{name} {format_metric(name, mean)} (p10 {format_metric(name, low)}, p90 "
        f"{format_metric(name, high)})"
    )


def format_bytes(count: float | None) -> str:
    """Return bytes as `950 B`, `12 KB`, `2.5 MB`, of 1,000 each."""
    if count is None:
        return NO_VALUE
    for unit in ("B", "KB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.1f} {unit}" if count < 9.95 and unit != "B" else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def format_age(then: float | None, now: float) -> str:
    """Return how long ago something was, in one unit: `now`, `7 s`, `3 min`, `5 h`, `2 d`."""
    if then is None:
        return NO_VALUE
    seconds = max(0.0, now - then)
    if seconds < 1.5:
        return "now"
    for unit, length in (("s", 60), ("min", 60), ("h", 48)):
        if seconds < length:
            return f"{seconds:.0f} {unit}"
        seconds /= 60 if unit != "h" else 24
    return f"{seconds:.0f} d" if seconds < 10_000 else NO_VALUE


def draw_sparkline(values: Sequence[float], width: int) -> str:
    """Return the last `width` values as blocks of eight heights between their least and most.

    One of height in the middle for equals.
    """
    shown = list(values)[-width:] if width > 0 else []
    if not shown:
        return ""
    least = min(shown)
    most = max(shown)
    if most <= least or not math.isfinite(most - least):
        return SPARKLINE_BLOCKS[3] * len(shown)
    return "".join(SPARKLINE_BLOCKS[round(7 * ((value - least) / (most - least)))] for value in shown)


def draw_bar(share: float, width: int) -> str:
    """Return a bar of `width` characters, `share` (0 to 1) of it filled."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which a share of the values lies, linear between two; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def truncate(text: str, width: int) -> str:
    """Return the text in at most so many characters, with a sign of what was cut off."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[: max(0, width)]


def shorten_names(names: Sequence[str]) -> str:
    """Return the first four names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of equal length as aligned text: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def format_duration(seconds: float) -> str:
    """Return a duration for a person: 8 s, 3 min, 2 h 05 min."""
    minutes = round(seconds / 60)
    hours = int(seconds // 3600)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if hours == 0 else f"{hours} h {round(seconds / 60) % 60:02d} min"


def escape_unprintable(text: str) -> str:
    """Return text from the network without what would break a line, move a terminal's cursor or colour it."""
    return (
        text
        if text.isprintable()
        else "".join(
            character if character.isprintable() else f"\\x{ord(character):02x}" for character in text
        )
    )

"""Pure functions that format numbers and text for a terminal. None becomes a dash."""

import math
from collections.abc import Sequence

NO_VALUE = "-"
SPARKLINE_BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_GAP = "·"
"""Character for a value that is not finite."""
SHARE_METRICS = frozenset({"accuracy", "auc", "r2"})
"""First words of the names of metrics between 0 and 1."""


def format_percent(share: float | None, digits: int = 1, sign: str = "%") -> str:
    """Return a share between 0 and 1 as a text such as `91.2%`.

    Args:
        share: the share. None becomes a dash.
        digits: number of decimals.
        sign: text after the number.
    """
    return NO_VALUE if share is None else f"{100 * share:.{digits}f}{sign}"


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` decimals, or in exponent form if that needs more than 8 characters.

    Args:
        value: the number. None becomes a dash.
    """
    if value is None:
        return NO_VALUE
    text = f"{value:.{digits}f}"
    return text if len(text) <= 8 else f"{value:.1e}"


def format_metric(name: str, value: float | None) -> str:
    """Return the value of a metric: in per cent for the names in `SHARE_METRICS`, otherwise as a number.

    Args:
        name: name of the metric, such as `accuracy_mixture`. Only the part before the first
            `_` counts, in any case.
        value: the value. None becomes a dash.
    """
    return format_percent(value) if name.partition("_")[0].lower() in SHARE_METRICS else format_number(value)


def format_spread(name: str, mean: float, low: float, high: float) -> str:
    """Return a metric over clients, such as `accuracy 87.5% (p10 80.0%, p90 95.0%)`.

    Args:
        low: 10th percentile.
        high: 90th percentile.
    """
    return (
        f"{name} {format_metric(name, mean)} (p10 {format_metric(name, low)}, p90 "
        f"{format_metric(name, high)})"
    )


def format_bytes(count: float | None) -> str:
    """Return a number of bytes such as `950 B`, `12 KB` or `2.5 MB`. 1 KB is 1000 bytes."""
    if count is None:
        return NO_VALUE
    for unit in ("B", "KB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.1f} {unit}" if count < 9.95 and unit != "B" else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def format_age(then: float | None, now: float) -> str:
    """Return the age of an event in one unit: `now`, `7 s`, `3 min`, `5 h` or `2 d`.

    Args:
        then: time of the event, in seconds since 1970. None becomes a dash.
        now: the current time, in seconds since 1970.
    """
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
    """Return the last `width` values as blocks of eight heights between their minimum and maximum.

    Equal values become blocks of medium height. A value that is not finite becomes `SPARKLINE_GAP`.

    Args:
        values: the values, oldest first.
        width: maximum number of characters. With 0 or less, the result is empty.
    """
    shown = list(values)[-width:] if width > 0 else []
    finite = [value for value in shown if math.isfinite(value)]
    least = min(finite, default=0.0)
    half_range = max(finite, default=0.0) / 2 - least / 2  # half, because the range itself may overflow

    def draw(value: float) -> str:
        if not math.isfinite(value):
            return SPARKLINE_GAP
        return SPARKLINE_BLOCKS[round(7 * ((value / 2 - least / 2) / half_range)) if half_range else 3]

    return "".join(map(draw, shown))


def draw_bar(share: float, width: int) -> str:
    """Return a bar of `width` characters.

    Args:
        share: filled part, between 0 and 1.
    """
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile with linear interpolation, or None if there are no values.

    Args:
        values: the values, in any order.
        share: the percentile as a share between 0 and 1.
    """
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def truncate(text: str, width: int) -> str:
    """Return the text in at most `width` characters. A shortened text ends with an ellipsis.

    Args:
        width: maximum length, in characters. With 0 or less, the result is empty.
    """
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[: max(0, width)]


def shorten_names(names: Sequence[str]) -> str:
    """Return the first four names and the number of further names."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned text: the first column left-aligned, the others right-aligned.

    Args:
        rows: at least one row. All rows have the same length.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def format_duration(seconds: float) -> str:
    """Return a duration such as `8 s`, `3 min` or `2 h 05 min`."""
    minutes = round(seconds / 60)
    hours = int(seconds // 3600)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if hours == 0 else f"{hours} h {round(seconds / 60) % 60:02d} min"


def escape_unprintable(text: str) -> str:
    """Return text from the network with escaped control characters.

    The result cannot break a line, move the cursor of a terminal or change its colours.
    """
    return (
        text
        if text.isprintable()
        else "".join(
            character if character.isprintable() else f"\\x{ord(character):02x}" for character in text
        )
    )

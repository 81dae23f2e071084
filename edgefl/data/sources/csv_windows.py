"""Cuts CSV recordings into windows.

A source is a file or a folder of files. Each file has a header, and each row is one reading.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.system.format import shorten_names
from edgefl.base.system.natural_order import make_natural_key
from edgefl.data.sources import DataSource, is_csv
from edgefl.data.sources.classes import CLASS_LIST_FILE, number_classes, pack_class_names
from edgefl.data.sources.csv_table import HEAD_ROWS, ColumnRequest, CsvTable, list_columns, read_table
from edgefl.data.sources.windows import count_windows, cut_rows, cut_windows, find_epoch_unit

COUNTS_ROWS = "counts the rows"
"""A part of the note on a column that only counts."""
NO_NAME = "no name; give it one to use it"
"""A part of the note on a column without a name."""
NO_NUMBER = "which is no number"
"""A part of the note on a column of text that contains decimal numbers."""
LEAVE_OUT_REMEDY = "name the other columns in --channels to leave it out"
"""A part of the note on a channel that is probably none."""
PAUSE_REMEDY = "windows join the rows around them: write one file for each recording, sorted by time"
"""A part of the note on times."""
RATE_REMEDY = "a window has another length in time: record at one rate"
"""A part of the note on files with different rates."""
MAX_INTERVAL_RATIO = 1.5
"""Readings of one rate have usual times between rows within this factor."""
PAUSE_FACTOR = 10.0
"""A pause is this many times as long as the usual time between two rows."""
MAX_USUAL_UNITS = 2.5
"""A pause is longer than this many units of the clock."""
MIN_UNITS = 20
"""A file shows its rate if it lasts this many units of its clock."""
MIN_GROWING_STEPS = 8
MIN_ROWS_PER_PART = 8
"""Minimum mean number of rows with the same value, if a column numbers parts of a recording."""
MIN_GROWING_SHARE = 0.9
"""A column with this share of steps above 0 is a time or a counter, which may begin again."""


def read_csv_windows(source: DataSource) -> dict[str, NDArray[Any]]:
    """Read CSV recordings and cut them into windows.

    Channels are the requested columns. Without a request, they are the columns of numbers of the first file,
    in natural order of their names. Left out are the label and the targets, columns without a name, and times
    since 1970. Files are read in natural order of their names. A window never spans
    two files. It has the most frequent label of its rows, or the targets of its last row.

    Returns:
        `x`, shape (n, window, channels), float32. With a label column, `y`, shape (n,), int64. With target
        columns, `target`, shape (n, columns), float32, and `targets`, their names. `recording`, the number of
        the file of each window. `first_row`, the first row of each window in its file. `class_names`, if
        labels are names: see `number_classes`. `channels`, the names of the channels, and `columns`, the same
        in the order of the header. `interval`, the usual time between two rows in seconds, if there is a
        column of times.
        `notes`, sentences on how the columns were read.

    Raises:
        DataError: there is no file or no complete window, or a row cannot be used. The message names file and
            line.
    """
    path = Path(source.data)
    folder = path if path.is_dir() else path.parent
    files = [path]
    others: list[str] = []
    if path.is_dir():
        visible = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
        visible.sort(key=lambda entry: make_natural_key(entry.name))
        files = [entry for entry in visible if is_csv(entry) and not entry.is_dir()]
        others = [entry.name for entry in visible if entry not in files and entry.name != CLASS_LIST_FILE]
    if not files:
        raise DataError(f"{path} contains no .csv file; copy recordings to it, each with a header")
    request = ColumnRequest(
        label=source.label, targets=source.target, channels=source.channels, skip_empty=source.skip_empty
    )
    names = dict[str, int]()
    first = read_table(files[0], request, names)
    if not first.num_rows:
        raise DataError(
            f"{files[0]} has no row below its header, expected {source.window} or more; remove the file"
        )
    channels, left_out = _choose_channels(first, request)
    if not channels:
        raise DataError(
            f"{files[0]}: no column with a number besides labels and targets, expected at least one"
            + (f"; {_describe_left_out(left_out)}" if left_out else "")
        )
    later = replace(request, channels=channels)
    tables = [first, *(read_table(file, later, names, first.texts) for file in files[1:])]
    for table in tables[1:]:
        for name in list_columns(table, request):
            if name not in first.header:
                left_out[name] = f"not in {files[0].name}"
    shown = channels if source.channels else [_describe_channel(tables, name) for name in channels]
    note = f"channels {', '.join(shown)}"
    notes = [f"{note}; {_describe_left_out(left_out)}" if left_out else note]
    if others:
        notes.append(f"files and folders that are no .csv file are left out: {shorten_names(others)}")
    clocks = {
        file.name: clock
        for file, table in zip(files, tables, strict=True)
        if table.time and (clock := _measure_clock(table))
    }
    if sentence := _describe_pauses(first.time, list(clocks.values())):
        notes.append(sentence)
    intervals = [clock.interval for clock in clocks.values()]
    if sentence := _describe_rates(
        {name: clock.interval for name, clock in clocks.items() if clock.is_exact}
    ):
        notes.append(sentence)
    columns = [name for name in first.header if name in channels]
    return {
        **({"interval": np.asarray(np.median(intervals))} if intervals else {}),
        **_cut_tables(path, folder, source, tables, channels, names, notes),
        **({"targets": np.array(source.target)} if source.target else {}),
        "channels": np.array(channels),
        "columns": np.array(columns),
        "notes": np.array(notes),
    }


@dataclass(frozen=True)
class RowClock:
    """Summary of the column of times of a file.

    Attributes:
        interval: usual time between two rows, in seconds.
        pauses: number of rows that follow much later than usual.
        longest: the longest pause, in seconds.
        steps_back: number of rows that are earlier than the row above.
        is_exact: whether the file is long enough to know the interval, if the clock has a low resolution.
    """

    interval: float
    pauses: int
    longest: float
    steps_back: int
    is_exact: bool


def _measure_clock(table: CsvTable) -> RowClock | None:
    """Return interval, pauses and steps back of the times of a file, or None for few times.

    Times may have a low resolution, such as a second. No step of one or two units is a pause.
    """
    times = np.frombuffer(table.times, np.float64)
    steps = np.diff(times[np.isfinite(times)])
    forward = steps[steps > 0]
    if len(steps) < MIN_GROWING_STEPS or not len(forward):
        return None
    longest_usual = max(PAUSE_FACTOR * float(np.median(steps)), MAX_USUAL_UNITS * float(forward.min()))
    usual = steps[(steps >= 0) & (steps <= longest_usual)]
    pauses = steps[steps > longest_usual]
    return RowClock(
        interval=float(usual.mean()),
        pauses=len(pauses),
        longest=float(pauses.max(initial=0)),
        steps_back=int((steps < 0).sum()),
        is_exact=bool(usual.sum() >= MIN_UNITS * forward.min()),
    )


def _describe_pauses(name: str, clocks: Sequence[RowClock]) -> str:
    pauses, steps_back = (sum(getattr(clock, key) for clock in clocks) for key in ("pauses", "steps_back"))
    parts = []
    if pauses:
        parts.append(f"{pauses} pauses of up to {max(clock.longest for clock in clocks):.3g} s")
    if steps_back:
        parts.append(f"{steps_back} rows that are earlier than the row above")
    return f"the times in {name} have {' and '.join(parts)}; {PAUSE_REMEDY}" if parts else ""


def find_other_rates(intervals: Mapping[str, float]) -> tuple[str, str] | None:
    """Return the names with the shortest and the longest time between rows, or None if all have one rate.

    Args:
        intervals: by name, the usual time between two rows in seconds.
    """
    low, high = (choose(intervals, key=lambda name: intervals[name], default="") for choose in (min, max))
    return (low, high) if intervals and intervals[high] > MAX_INTERVAL_RATIO * intervals[low] else None


def _describe_rates(intervals: Mapping[str, float]) -> str:
    others = find_other_rates(intervals)
    if others is None:
        return ""
    low, high = others
    return (
        f"rows are {intervals[low]:.3g} s apart in {low} and {intervals[high]:.3g} s in {high}; {RATE_REMEDY}"
    )


def _choose_channels(table: CsvTable, request: ColumnRequest) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the channels of a table in order, and the reason for each column that is left out."""
    left_out = {}
    channels = []
    for name in list_columns(table, request):
        values = np.frombuffer(table.heads[name], np.float64) if name in table.heads else None
        if request.channels:
            if name not in request.channels:
                left_out[name] = "not requested"
        elif values is None or not len(values):
            left_out[name] = _describe_text(table.texts[name][0]) if name in table.texts else "empty"
        elif name in table.unnamed:
            left_out[name] = f"no name, {COUNTS_ROWS}" if _counts_rows(values) else NO_NAME
        elif find_epoch_unit(float(np.median(values)), float(values.max())):  # a clock may be set late
            left_out[name] = "time since 1970"
        else:
            channels.append(name)
    return request.channels or tuple(sorted(channels, key=make_natural_key)), left_out


def _describe_text(text: str) -> str:
    is_decimal = re.search(r"\d[.,]\d", text) and not re.search(r":|\d[./-]\d+[./-]\d", text)
    return f"text such as {text[:40]!r}" + (f", {NO_NUMBER}" if is_decimal else "")


def _describe_left_out(left_out: Mapping[str, str]) -> str:
    return f"left out: {', '.join(f'{name} ({reason})' for name, reason in left_out.items())}"


def _describe_channel(tables: Sequence[CsvTable], name: str) -> str:
    heads = [np.frombuffer(table.heads[name], np.float64) for table in tables]
    steps = np.concatenate([np.diff(head) for head in heads])
    values, labels = _draw_labelled(tables, name)
    reason = ""
    if len(steps) and (steps == 1).all():
        reason = COUNTS_ROWS
    elif len(steps) >= MIN_GROWING_STEPS and (steps > 0).mean() >= MIN_GROWING_SHARE:
        reason = "grows like a time or a counter"
    elif len(steps) >= MIN_GROWING_STEPS and (steps < 0).mean() >= MIN_GROWING_SHARE:
        reason = "falls like a countdown"
    elif _has_value_per_label(values, labels):
        reason = "has one value for each label"
    elif _has_label_per_value(values, labels):
        reason = "has one label for each of its values"
    return f"{name} ({reason}; {LEAVE_OUT_REMEDY})" if reason else name


def _draw_labelled(tables: Sequence[CsvTable], name: str) -> tuple[NDArray[np.float32], NDArray[np.intc]]:
    """Return values of a column with their labels, of up to `HEAD_ROWS` complete rows of each file."""
    values, labels = [], []
    for table in tables:
        rows = np.unique(np.linspace(0, table.num_rows - 1, HEAD_ROWS).astype(np.int64))
        rows = np.setdiff1d(rows, table.incomplete)
        if len(table.labels):
            values.append(np.frombuffer(table.numbers[name], np.float32)[rows])
            labels.append(np.frombuffer(table.labels, np.intc)[rows])
    return (
        np.concatenate(values) if values else np.zeros(0, np.float32),
        np.concatenate(labels) if labels else np.zeros(0, np.intc),
    )


def _has_value_per_label(values: NDArray[np.float32], labels: NDArray[np.intc]) -> bool:
    """Return whether a column is another form of the labels, such as their numbers."""
    ranges = [(part.min(), part.max()) for label in np.unique(labels) for part in [values[labels == label]]]
    return all(low == high for low, high in ranges) and len(set(ranges)) > 1


def _has_label_per_value(values: NDArray[np.float32], labels: NDArray[np.intc]) -> bool:
    """Return whether a column numbers parts with one label each, such as sessions."""
    if not len(labels) or (labels == labels[0]).all() or (values != np.round(values)).any():
        return False
    numbers, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rows_per_value = len(values) / len(numbers)
    return rows_per_value >= MIN_ROWS_PER_PART and bool((labels == labels[first][inverse]).all())


def _counts_rows(values: NDArray[np.float64]) -> bool:
    return len(values) > 1 and bool((np.diff(values) == 1).all())


def _cut_tables(
    path: Path,
    folder: Path,
    source: DataSource,
    tables: list[CsvTable],
    channels: tuple[str, ...],
    names: Mapping[str, int],
    notes: list[str],
) -> dict[str, NDArray[Any]]:
    """Return the windows of all tables. A sentence about windows that are left out is added to `notes`."""
    window, step = source.window, source.step
    longest = max(table.num_rows for table in tables)
    if longest < window:
        raise DataError(
            f"{path}: no file is as long as a window: the longest has {longest} rows, expected {window}; use "
            "a smaller --window"
        )
    counts = [count_windows(table.num_rows, window, step) for table in tables]
    x = np.empty((sum(counts), window, len(channels)), np.float32)
    first_row = np.concatenate([np.arange(count, dtype=np.int64) * step for count in counts])
    files_of = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    arrays: dict[str, NDArray[Any]] = {"x": x, "recording": files_of, "first_row": first_row}
    is_complete = np.ones(len(x), bool)
    number_of = np.zeros(1, np.int64)
    if source.label:
        numbers, classes = number_classes(names, folder)
        number_of = np.array([*(numbers[name] for name in names), 0], np.int64)  # the last for no label
        arrays |= {"y": np.empty(len(x), np.int64), **pack_class_names(classes)}
    elif source.target:
        arrays["target"] = np.empty((len(x), len(source.target)), np.float32)
    end = 0
    for table, count in zip(tables, counts, strict=True):
        begin = end
        end = end + count
        rows = np.stack([np.frombuffer(table.numbers[name], np.float32) for name in channels], axis=1)
        if table.incomplete:
            empty = np.zeros(table.num_rows + 1, np.int64)
            empty[np.array(table.incomplete) + 1] = 1
            passed = np.cumsum(empty)
            starts = first_row[begin:end]
            is_complete[begin:end] = passed[starts + window] == passed[starts]
        if source.label:
            labels = number_of[np.frombuffer(table.labels, np.intc)]
            x[begin:end], arrays["y"][begin:end] = cut_windows(rows, labels, window, step)
            continue
        x[begin:end] = cut_rows(rows, window, step)
        if source.target:
            columns = [np.frombuffer(table.numbers[name], np.float32) for name in source.target]
            arrays["target"][begin:end] = np.stack(columns, axis=1)[window - 1 :: step][:count]
    if is_complete.all():
        return arrays
    if not is_complete.any():
        raise DataError(
            f"{path}: each of the {len(x)} windows has an empty cell, expected complete ones; use a smaller "
            "--window, or leave a column out with --channels"
        )
    notes.append(f"{int((~is_complete).sum())} of {len(x)} windows have an empty cell and are left out")
    return {name: values if name == "class_names" else values[is_complete] for name, values in arrays.items()}

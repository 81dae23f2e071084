"""Cuts CSV recordings into windows.

A source is a file or a folder of files. Each file has a header, and each row is one reading.
"""

import csv
import math
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.config import suggest_nearest
from edgefl.data.sources import DataSource
from edgefl.data.sources.classes import number_classes, pack_class_names
from edgefl.data.sources.windows import FLOAT32_MAX, count_windows, cut_rows, cut_windows
from edgefl.errors import DataError

MAX_COLUMNS = 4096


@dataclass
class Recording:
    """The readings of one file.

    Attributes:
        rows: the values of all rows, one row after another, four bytes per value.
        labels: the number of the label of each row, an index into all label names of the source. Empty
            without labels.
        targets: the numbers to predict of all rows, like `rows`. Empty without such numbers.
        num_rows: number of rows.
    """

    rows: "array[float]" = field(default_factory=lambda: array("f"))
    labels: "array[int]" = field(default_factory=lambda: array("i"))
    targets: "array[float]" = field(default_factory=lambda: array("f"))
    num_rows: int = 0


def read_csv_windows(source: DataSource) -> dict[str, NDArray[Any]]:
    """Read CSV recordings and cut them into windows.

    Channels are the requested columns. Without a request, they are the columns with a number in the first
    row, except for the label and the targets, in the order of the header. Files are read in order of their
    names. A window never spans two files. It has the most frequent label of its rows, or the targets of its
    last row.

    Returns:
        `x`, shape (n, window, channels), float32. With a label column, `y`, shape (n,), int64. With target
        columns, `target`, shape (n, columns), float32. `recording`, the number of the file of each window.
        `first_row`, the first row of each window in its file. `class_names`, if labels are names: see
        `number_classes`.

    Raises:
        DataError: there is no file or no complete window, or a row cannot be used. The message names file and
            line.
    """
    path = Path(source.data)
    folder = path if path.is_dir() else path.parent
    files = (
        sorted(file for file in path.glob("*.csv") if not file.name.startswith("."))
        if path.is_dir()
        else [path]
    )
    if not files:
        raise DataError(f"{path} contains no .csv file; copy recordings to it, each with a header")
    channels = source.channels
    names = dict[str, int]()
    recordings = list[Recording]()
    for file in files:
        recording, channels = _read_recording(file, source, channels, names)
        recordings.append(recording)
    longest = max(recording.num_rows for recording in recordings)
    if longest < source.window:
        raise DataError(
            f"{path}: no file is as long as a window: the longest has {longest} rows, expected "
            f"{source.window}; use a smaller --window"
        )
    counts = [count_windows(recording.num_rows, source.window, source.step) for recording in recordings]
    x = np.empty((sum(counts), source.window, len(channels)), np.float32)
    files_of = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    first_row = np.concatenate([np.arange(count, dtype=np.int64) * source.step for count in counts])
    arrays: dict[str, NDArray[Any]] = {"x": x, "recording": files_of, "first_row": first_row}
    number_of = np.empty(0, np.int64)
    if source.label:
        numbers, classes = number_classes(names, folder)
        number_of = np.array([numbers[name] for name in names], np.int64)
        arrays |= {"y": np.empty(len(x), np.int64), **pack_class_names(classes)}
    elif source.target:
        arrays["target"] = np.empty((len(x), len(source.target)), np.float32)
    end = 0
    for recording, count in zip(recordings, counts, strict=True):
        begin = end
        end = end + count
        rows = np.frombuffer(recording.rows, np.float32).reshape(-1, len(channels))
        if source.label:
            labels = number_of[np.frombuffer(recording.labels, np.intc)]
            x[begin:end], arrays["y"][begin:end] = cut_windows(rows, labels, source.window, source.step)
            continue
        x[begin:end] = cut_rows(rows, source.window, source.step)
        if source.target:
            targets = np.frombuffer(recording.targets, np.float32).reshape(-1, len(source.target))
            arrays["target"][begin:end] = targets[source.window - 1 :: source.step][:count]
    return arrays


def _read_recording(
    path: Path, source: DataSource, channels: tuple[str, ...], names: dict[str, int]
) -> tuple[Recording, tuple[str, ...]]:
    """Read one file, and add new label names to `names`. The first file determines the channels."""
    recording = Recording()
    columns = list[tuple[str, int]]()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            header = [cell.strip() for cell in next(rows, [])]
            others = (*filter(None, (source.label,)), *source.target)
            _check_header(path, header, (*others, *channels))
            at = header.index(source.label) if source.label else None
            targets_at = [(name, header.index(name)) for name in source.target]
            for row in rows:
                if not row:
                    continue
                where = f"{path}, line {rows.line_num}"
                if len(row) != len(header):
                    raise DataError(
                        f"{where}: {len(row)} cells, expected {len(header)} as in the header; fix or remove "
                        "the row"
                    )
                if not columns:
                    channels = channels or _find_numeric_columns(where, header, row, others)
                    columns = [(channel, header.index(channel)) for channel in channels]
                if at is not None:
                    name = row[at].strip()
                    if not name:
                        raise DataError(
                            f"{where}: no label in column {source.label!r}; fill it, or remove the row"
                        )
                    recording.labels.append(names.setdefault(name, len(names)))
                recording.targets.extend(
                    _parse_number(where, name, row[column]) for name, column in targets_at
                )
                recording.rows.extend(
                    _parse_number(where, channel, row[column]) for channel, column in columns
                )
                recording.num_rows += 1
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as CSV: {error}; save it as text in UTF-8 with commas"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; name a .csv file or a folder of .csv files"
        ) from error
    return recording, channels


def _check_header(path: Path, header: Sequence[str], required: Sequence[str]) -> None:
    if len(header) > MAX_COLUMNS:
        raise DataError(
            f"{path}: the header names {len(header)} columns, expected at most {MAX_COLUMNS}; save other "
            "columns to another file"
        )
    if double := next((name for name in header if header.count(name) > 1), None):
        raise DataError(f"{path}: the header names {double!r} twice; name each column once")
    if missing := next((name for name in required if name not in header), None):
        raise DataError(
            f"{path}: no column {missing!r} in the header ({', '.join(header)[:200]}); "
            f"{suggest_nearest(missing, list(header))}"
        )


def _find_numeric_columns(
    where: str, header: Sequence[str], row: Sequence[str], others: Collection[str]
) -> tuple[str, ...]:
    """Return the columns with a number in this row, except the columns `others`.

    An empty cell is an error because its type is unknown.
    """
    columns = []
    for name, cell in zip(header, row, strict=True):
        if name in others:
            continue
        try:
            float(cell)
        except ValueError:
            if cell.strip():
                continue
            raise DataError(
                f"{where}: column {name!r} is empty; fill it, or name the columns to use with --channels"
            ) from None
        columns.append(name)
    if not columns:
        raise DataError(f"{where}: no column with a number besides labels and targets; expected at least one")
    return tuple(columns)


def _parse_number(where: str, channel: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not abs(value) <= FLOAT32_MAX:
        raise DataError(
            f"{where}: {channel} is {cell[:40]!r}, expected a finite number; fix or remove the row"
        )
    return value

"""CSV recordings cut into windows: a file, or a folder of files, each with a header; a row is one reading."""

import csv
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.config import suggest_nearest
from edgefl.data.sources import DataSource
from edgefl.data.sources.classes import number_classes, pack_class_names
from edgefl.data.sources.windows import FLOAT32_MAX, count_windows, cut_windows
from edgefl.errors import DataError


@dataclass
class Recording:
    """One file: its rows one after the other, four bytes a value, and for each row the number of its label in
    `names`.
    """

    rows: "array[float]" = field(default_factory=lambda: array("f"))
    labels: "array[int]" = field(default_factory=lambda: array("i"))


def read_csv_windows(source: DataSource) -> dict[str, NDArray[Any]]:
    """Return x, float32[n, window, channels], y, recording, first_row, and class_names where labels are
    names: see `number_classes`.

    `recording` numbers the files, `first_row` is the first row of a window in its file.

    Channels are the columns asked for, else all whose value in the first row is a number, save the label's,
    in the header's order. Windows never span files, which go by name. DataError names file and line of a row
    that cannot be used.
    """
    path = Path(source.data)
    folder = path if path.is_dir() else path.parent
    files = (
        sorted(file for file in path.glob("*.csv") if not file.name.startswith("."))
        if path.is_dir()
        else [path]
    )
    if not files:
        raise DataError(f"{path} holds no .csv file; put recordings there, each with a header")
    channels = source.channels
    names = dict[str, int]()
    recordings = list[Recording]()
    for file in files:
        recording, channels = _read_recording(file, source.label, channels, names)
        recordings.append(recording)
    longest = max(len(recording.labels) for recording in recordings)
    if longest < source.window:
        raise DataError(
            f"{path}: no file is as long as a window: {longest} rows at most, expected {source.window}; take "
            "a smaller --window"
        )
    numbers, classes = number_classes(names, folder)
    number_of = np.array([numbers[name] for name in names], np.int64)
    counts = [count_windows(len(recording.labels), source.window, source.step) for recording in recordings]
    x = np.empty((sum(counts), source.window, len(channels)), np.float32)
    y = np.empty(sum(counts), np.int64)
    end = 0
    for recording, count in zip(recordings, counts, strict=True):
        begin = end
        end = end + count
        rows = np.frombuffer(recording.rows, np.float32).reshape(-1, len(channels))
        x[begin:end], y[begin:end] = cut_windows(
            rows, number_of[np.frombuffer(recording.labels, np.intc)], source.window, source.step
        )
    files_of = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    first_row = np.concatenate([np.arange(count, dtype=np.int64) * source.step for count in counts])
    return {"x": x, "y": y, "recording": files_of, "first_row": first_row, **pack_class_names(classes)}


def _read_recording(
    path: Path, label: str, channels: tuple[str, ...], names: dict[str, int]
) -> tuple[Recording, tuple[str, ...]]:
    """Read one file.

    `names` gets the labels that are new, in order; the channels are those of the first file for all.
    """
    recording = Recording()
    columns = list[tuple[str, int]]()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            header = [cell.strip() for cell in next(rows, [])]
            _check_header(path, header, (label, *channels))
            at = header.index(label)
            for row in rows:
                if not row:
                    continue
                where = f"{path}, line {rows.line_num}"
                if len(row) != len(header):
                    raise DataError(
                        f"{where}: {len(row)} cells, expected {len(header)} as in the header; mend or remove "
                        "the row"
                    )
                if not columns:
                    channels = channels or _find_numeric_columns(where, header, row, at)
                    columns = [(channel, header.index(channel)) for channel in channels]
                name = row[at].strip()
                if not name:
                    raise DataError(f"{where}: no label in column {label!r}; fill it, or remove the row")
                recording.labels.append(names.setdefault(name, len(names)))
                recording.rows.extend(
                    _parse_number(where, channel, row[column]) for channel, column in columns
                )
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as CSV: {error}; save it as text in UTF-8 with commas"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; give a .csv file or a folder of them"
        ) from error
    return recording, channels


def _check_header(path: Path, header: Sequence[str], required: Sequence[str]) -> None:
    if double := next((name for name in header if header.count(name) > 1), None):
        raise DataError(f"{path}: the header names {double!r} twice; name each column once")
    if missing := next((name for name in required if name not in header), None):
        raise DataError(
            f"{path}: no column {missing!r} in the header ({', '.join(header)[:200]}); "
            f"{suggest_nearest(missing, list(header))}"
        )


def _find_numeric_columns(
    where: str, header: Sequence[str], row: Sequence[str], label: int
) -> tuple[str, ...]:
    """Return the columns that hold a number in this row. An empty cell says nothing, so it is an error."""
    columns = []
    for index, (name, cell) in enumerate(zip(header, row, strict=True)):
        if index == label:
            continue
        try:
            float(cell)
        except ValueError:
            if cell.strip():
                continue
            raise DataError(
                f"{where}: column {name!r} is empty; fill it, or name the columns to take with --channels"
            ) from None
        columns.append(name)
    if not columns:
        raise DataError(f"{where}: no column with a number besides the label; expected one at least")
    return tuple(columns)


def _parse_number(where: str, channel: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not abs(value) <= FLOAT32_MAX:
        raise DataError(
            f"{where}: {channel} is {cell[:40]!r}, expected a finite number; mend or remove the row"
        )
    return value

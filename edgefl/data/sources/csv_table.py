"""Reads the columns of one CSV file: its separator, its decimal mark, and which columns hold numbers."""

import csv
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import TextIO

from edgefl.base.errors import DataError
from edgefl.base.options import suggest_nearest
from edgefl.data.sources.classes import MISSING_LABELS
from edgefl.data.sources.windows import FLOAT32_MAX, find_epoch_unit

MAX_COLUMNS = 4096
HEAD_ROWS = 4096
"""Number of rows that a column's kind is judged by."""
MOST_CHANCE_NAMES = 5
"""More readings than these seldom grow from column to column by chance."""
MAX_SPACING_RATIO = 1.05
"""Names such as 350.5, 351, 351.5 are positions of a spectrum. Readings have no such equal distances."""
SEPARATORS = ",;\t"
BYTE_ORDER_MARK = "\ufeff"
BLANKS = SEPARATORS + " \r\n"
SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*')
"""A first line with which spreadsheets state the separator."""
QUOTED = re.compile(r'"[^"]*"')
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*", re.ASCII)
THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*", re.ASCII)
"""A number such as 1,234, whose comma may also separate thousands."""
QUANTITY = re.compile(
    r"\s*[+\-\u2212]?"
    r"(\d+([.,]\d+)?|\d{1,3}([ .,'\u2019\u00a0\u202f]\d{3})+([.,]\d+)?)"
    r"\s*(%|\u00b0?[A-Za-z\u00b5\u03bc\u03a9]{1,4}[\u00b2\u00b3]?(/[A-Za-z]{1,4}[\u00b2\u00b3]?)?)?\s*",
    re.ASCII,
)
"""A number with a unit or with separated thousands, such as 0.5g or 1'234."""
EMPTY_TEXTS = ("", "nan", "na", "n/a", "null", "none")
EMPTY_REMEDY = "fix or remove the row, or leave such windows out with --skip-empty"


@dataclass(frozen=True)
class ColumnRequest:
    """The columns to read from a file.

    Attributes:
        label: the column of labels, empty without labels.
        targets: the columns of numbers to predict.
        channels: the columns of the samples. Empty reads all other columns that hold numbers.
        skip_empty: mark rows with an empty cell instead of refusing them.
    """

    label: str
    targets: tuple[str, ...]
    channels: tuple[str, ...]
    skip_empty: bool


@dataclass
class CsvTable:
    """The columns of one file.

    Attributes:
        header: names of all columns in order. A column without a name is called `column N`.
        unnamed: the columns without a name in the file.
        numbers: values of the columns of numbers by name, four bytes per value. Channels and targets are
            among them.
        heads: the first `HEAD_ROWS` values of the same columns, with all digits.
        texts: the first text of each column that holds text, and where it is.
        labels: number of the label of each row, an index into all label names of the source. Empty without
            labels.
        incomplete: rows with an empty cell, in order.
        num_rows: number of rows.
        time: the first column of times, empty without times.
        times: when each row was recorded, in seconds, by this column. NaN for a cell without a time.
    """

    header: tuple[str, ...]
    unnamed: tuple[str, ...]
    numbers: "dict[str, array[float]]" = field(default_factory=dict)
    heads: "dict[str, array[float]]" = field(default_factory=dict)
    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    labels: "array[int]" = field(default_factory=lambda: array("i"))
    incomplete: list[int] = field(default_factory=list)
    num_rows: int = 0
    time: str = ""
    times: "array[float]" = field(default_factory=lambda: array("d"))


def read_table(
    path: Path,
    request: ColumnRequest,
    names: dict[str, int],
    texts: Mapping[str, tuple[str, str]] | None = None,
) -> CsvTable:
    """Read one file.

    The separator is a comma, a semicolon or a tab. A column has a decimal comma if the file says so without
    doubt.

    Args:
        path: the file, UTF-8.
        request: the columns to read.
        names: number of each label name so far. New names are added.
        texts: columns that hold text in an earlier file, which must hold text here too.

    Raises:
        DataError: the file or a row cannot be used. The message names file and line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _TableReader(path, request, names).read(file, texts or {})
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as CSV: {error}; save it as text in UTF-8 with commas"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; name a .csv file or a folder of .csv files"
        ) from error


class _TableReader:
    def __init__(self, path: Path, request: ColumnRequest, names: dict[str, int]) -> None:
        self._path = path
        self._request = request
        self._names = names
        self._commas: dict[str, str] = {}
        self._points: dict[str, str] = {}
        self._is_decimal_comma = False

    def read(self, file: TextIO, texts: Mapping[str, tuple[str, str]]) -> CsvTable:
        """Return the table of an open file."""
        request = self._request
        first = file.readline()
        skipped = 0
        stated = None
        while (match := SEPARATOR_LINE.fullmatch(first)) or (first and not first.strip(BLANKS)):
            stated = match or stated
            first = file.readline()
            skipped += 1
        more = [file.readline()]
        while more[-1] and not more[-1].strip(BLANKS):
            more.append(file.readline())
        separator = stated[1] if stated else _find_separator(first, more[-1])
        self._is_decimal_comma = separator != ","
        # The lines of a quoted header cell end in the file, so that both are one stream
        lines = chain([first, *more], file)
        rows = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
        table = self._read_header(next(rows, []))
        header = table.header
        required = (*filter(None, (request.label,)), *request.targets)
        self._check_header(header, (*required, *request.channels))
        fixed = (*request.targets, *request.channels)
        table.numbers = {name: array("f") for name in dict.fromkeys(fixed)}
        table.heads = {name: array("d") for name in table.numbers}
        table.texts = {name: text for name, text in texts.items() if name in header}
        watched = [
            (index, name)
            for index, name in enumerate(header)
            if name not in required and name not in fixed and (not request.channels or name in texts)
        ]
        at = header.index(request.label) if request.label else None
        position = {name: index for index, name in enumerate(header)}
        time_at = None
        for row in rows:
            if not row:
                continue
            where = f"{self._path}, line {rows.line_num + skipped}"
            if len(row) != len(header):
                raise DataError(
                    f"{where}: {len(row)} cells, expected {len(header)} as in the header; fix or remove the "
                    "row"
                )
            is_complete = at is None or self._add_label(table, where, row[at])
            if not table.num_rows:
                others = [index for index, name in enumerate(header) if name not in (*required, *fixed)]
                time_at = next((index for index in others if not math.isnan(parse_time(row[index]))), None)
                table.time = "" if time_at is None else header[time_at]
            if time_at is not None:
                table.times.append(parse_time(row[time_at]))
            for index, name in watched:
                self._watch(table, where, name, row[index])
            for name, values in table.numbers.items():
                if len(values) > table.num_rows:
                    continue  # the column has begun with this row
                cell = row[position[name]]
                if request.skip_empty and _is_empty(cell):
                    values.append(0.0)
                    is_complete = False
                else:
                    value = self._parse(where, name, cell)
                    values.append(value)
                    if table.num_rows < HEAD_ROWS:
                        table.heads[name].append(value)
            if watched:
                watched = [(index, name) for index, name in watched if name not in table.numbers]
            if not is_complete:
                table.incomplete.append(table.num_rows)
            table.num_rows += 1
        self._check_decimal_marks()
        return table

    def _read_header(self, cells: Sequence[str]) -> CsvTable:
        stripped = [cell.replace(BYTE_ORDER_MARK, "").strip() for cell in cells]
        header = tuple(cell or f"column {number}" for number, cell in enumerate(stripped, 1))
        return CsvTable(
            header=header,
            unnamed=tuple(name for name, cell in zip(header, stripped, strict=True) if _is_unnamed(cell)),
        )

    def _check_header(self, header: Sequence[str], required: Sequence[str]) -> None:
        if not header:
            raise DataError(f"{self._path} is empty, expected a first line that names the columns; remove it")
        if reading := _find_reading(header):
            raise DataError(
                f"{self._path}: the first line has the number {reading!r}, expected names of columns; add a "
                f"line with names above, or write a name that is a number as n{reading}"
            )
        if len(header) > MAX_COLUMNS:
            raise DataError(
                f"{self._path}: the header names {len(header)} columns, expected at most {MAX_COLUMNS}; save "
                "other columns to another file"
            )
        if double := next((name for name in header if header.count(name) > 1), None):
            raise DataError(f"{self._path}: the header names {double!r} twice; name each column once")
        if missing := next((name for name in required if name not in header), None):
            raise DataError(
                f"{self._path}: no column {missing!r} in the header ({', '.join(header)[:200]}); "
                + (
                    suggest_nearest(missing, list(header))
                    if len(header) > 1
                    else "the first line must name the columns, separated by commas, semicolons or tabs"
                )
            )

    def _add_label(self, table: CsvTable, where: str, cell: str) -> bool:
        """Add the label of a row, and return whether there is one."""
        name = cell.strip()
        if name.lower() in MISSING_LABELS:
            name = ""
        if not name and not self._request.skip_empty:
            raise DataError(
                f"{where}: no label in column {self._request.label!r} ({cell.strip()!r}); fill it or remove "
                "the row, or leave such windows out with --skip-empty"
            )
        table.labels.append(self._names.setdefault(name, len(self._names)) if name else -1)
        return bool(name)

    def _watch(self, table: CsvTable, where: str, name: str, cell: str) -> None:
        """Decide by its first cell whether a column holds numbers. Another kind later is an error."""
        if _is_empty(cell):
            return
        is_number = _is_number(cell)
        if name in table.texts:
            if is_number:
                text, text_where = table.texts[name]
                raise DataError(
                    f"{where}: column {name!r} is the number {cell.strip()[:40]!r}, but the text "
                    f"{text[:40]!r} in {text_where}; correct the cells, or name the columns with --channels"
                )
        elif not is_number and QUANTITY.fullmatch(cell):
            raise DataError(
                f"{where}: column {name!r} is {cell.strip()[:40]!r}, expected a number without a unit and "
                "without separated thousands, such as 0.5; correct the cells, or name the columns to use "
                "with --channels"
            )
        elif not is_number:
            table.texts[name] = cell.strip(), where
        elif table.num_rows and not self._request.skip_empty:
            raise DataError(
                f"{self._path}, first row: column {name!r} is empty, and {cell.strip()[:40]!r} in {where}; "
                f"{EMPTY_REMEDY}, or name the columns to use with --channels"
            )
        else:
            table.numbers[name] = array("f", [0.0] * table.num_rows)
            table.incomplete = list(range(table.num_rows))
            value = self._parse(where, name, cell)
            table.numbers[name].append(value)
            table.heads[name] = array("d", [value])

    def _parse(self, where: str, column: str, cell: str) -> float:
        try:
            value = _to_float(cell)
            if "." in cell:
                self._points.setdefault(column, cell.strip())
        except ValueError:
            value = math.nan
            if DECIMAL_COMMA.fullmatch(cell):
                value = float(cell.replace(",", "."))
                self._commas.setdefault(column, cell.strip())
                self._is_decimal_comma |= not THOUSANDS.fullmatch(cell)
        if not abs(value) <= FLOAT32_MAX:
            remedy = EMPTY_REMEDY if _is_empty(cell) else "fix or remove the row"
            raise DataError(f"{where}: {column} is {cell[:40]!r}, expected a finite number; {remedy}")
        return value

    def _check_decimal_marks(self) -> None:
        if not self._commas:
            return
        columns = ", ".join(self._commas)
        comma = next(iter(self._commas.values()))
        if self._points:
            column, point = next(iter(self._points.items()))
            raise DataError(
                f"{self._path}: {columns} have a decimal comma ({comma!r}) and {column} a decimal point "
                f"({point!r}), expected one decimal mark; write all numbers alike"
            )
        if not self._is_decimal_comma:
            raise DataError(
                f"{self._path}: {columns} have a comma in numbers such as {comma!r}, which may be a decimal "
                "comma or thousands; write the numbers without a comma"
            )


def _find_separator(header: str, row: str) -> str:
    """Return the separator of a file by its header and its first row.

    A separator that both lines have equally often is the one that leaves most numbers in the row, whatever
    other marks are in numbers and in names such as "time, s". Otherwise it is the one that occurs most in the
    header, a comma if there is none.
    """
    header, row = (QUOTED.sub("", line) for line in (header, row))
    fitting = [mark for mark in "\t;," if header.count(mark) == row.count(mark) > 0]
    if fitting:
        return max(fitting, key=lambda mark: sum(map(_is_number, row.strip().split(mark))))
    return max(SEPARATORS, key=header.count)


def _find_reading(header: Sequence[str]) -> str:
    """Return the first number of a header that seems to be a row of readings, or "".

    Columns may have numbers as names: positions from 0 or 1 such as 0, 1, 2, or at least four growing ones
    such as wave lengths.
    """
    cells = [cell for cell in header if _is_number(cell)]
    numbers = [float(cell.replace(",", ".")) for cell in cells]
    steps = [high - low for low, high in pairwise(numbers)]
    are_positions = numbers[:1] in ([0.0], [1.0]) and all(step == 1 for step in steps)
    are_whole = all(number.is_integer() for number in numbers)
    is_spectrum = (
        len(numbers) > 3
        and numbers[0] >= 0
        and min(steps) > 0
        and (are_whole or len(numbers) > MOST_CHANCE_NAMES or max(steps) <= MAX_SPACING_RATIO * min(steps))
    )
    return cells[0] if cells and not (are_positions or is_spectrum) else ""


def _is_unnamed(cell: str) -> bool:
    return not cell or bool(re.fullmatch(r"Unnamed: \d+", cell))


def _is_empty(cell: str) -> bool:
    return cell.strip().lower() in EMPTY_TEXTS


def _to_float(cell: str) -> float:
    """Return the number in a cell. Unlike Python, a file means a text by 1_0."""
    if "_" in cell:
        raise ValueError(cell)
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(_to_float(cell))
    except ValueError:
        return bool(DECIMAL_COMMA.fullmatch(cell))


def parse_time(cell: str) -> float:
    """Return the seconds of a time since 1970 or of an ISO 8601 date with time, or NaN for another cell."""
    try:
        value = _to_float(cell)
        unit = find_epoch_unit(value, value)
        return value / unit if unit else math.nan
    except ValueError:
        pass
    try:
        date = datetime.fromisoformat(cell.strip())
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return math.nan


def list_columns(table: CsvTable, request: ColumnRequest) -> Iterator[str]:
    """Yield the columns of a table that are no labels and no targets, in the order of the header.

    Args:
        request: names the label and the targets.
    """
    for name in table.header:
        if name != request.label and name not in request.targets:
            yield name

"""Building blocks of a page: charts with their data, and explanations of missing charts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Cell = str | float | int | None


@dataclass(frozen=True)
class Table:
    """The data of a chart.

    Attributes:
        head: names of the columns.
        rows: all of the same length as `head`.
        left: how many rows are missing and where to find them. Empty for a complete table.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left: str = ""


@dataclass(frozen=True)
class Chart:
    """A picture and its data.

    Attributes:
        name: a short name for files and JSON.
        title: the heading.
        alt: describes the picture in words.
        table: the data.
        draw: draws into a matplotlib figure of `width` by `height` inches.
        width: in inches.
        height: in inches.
        note: an explanation for the reader, or empty.
    """

    name: str
    title: str
    alt: str
    table: Table
    draw: Callable[[Any], None]
    width: float = 4.3
    height: float = 2.9
    note: str = ""


@dataclass(frozen=True)
class MissingChart:
    """A chart that the folder has no data for.

    Attributes:
        title: the heading.
        why: the reason, and how to record the data.
    """

    title: str
    why: str


SectionPart = Chart | MissingChart


@dataclass(frozen=True)
class Section:
    """Charts under one heading."""

    name: str
    title: str
    parts: tuple[SectionPart, ...]


MAX_CHART_ROWS = 1000


def make_table(head: tuple[str, ...], rows: list[tuple[Cell, ...]], source: str) -> Table:
    """Return a table of at most a thousand rows.

    Args:
        head: names of the columns.
        source: the file that holds all rows.
    """
    left = (
        ""
        if len(rows) <= MAX_CHART_ROWS
        else f"{MAX_CHART_ROWS} of {len(rows):,} rows. All rows are in {source}"
    )
    return Table(head, tuple(rows[:MAX_CHART_ROWS]), left)

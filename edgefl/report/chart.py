"""What a page is made of: charts that bring their data as a table, and lines that say why a chart is not
there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Cell = str | float | int | None


@dataclass(frozen=True)
class Table:
    """Rows of equal length.

    Attributes:
        left: how many rows were omitted and where they are, empty if the table is complete.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left: str = ""


@dataclass(frozen=True)
class Chart:
    """A picture and its data.

    Attributes:
        draw: draws into a matplotlib figure of `width` by `height` inches.
        alt: describes what the picture shows.
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
    """A chart that the folder has no data for: why, and what would record them."""

    title: str
    why: str


SectionPart = Chart | MissingChart


@dataclass(frozen=True)
class Section:
    """Parts under one heading."""

    name: str
    title: str
    parts: tuple[SectionPart, ...]


MAX_CHART_ROWS = 1000


def make_table(head: tuple[str, ...], rows: list[tuple[Cell, ...]], source: str) -> Table:
    """Return a table of at most a thousand rows.

    Args:
        source: name of the file with all rows.
    """
    left = (
        "" if len(rows) <= MAX_CHART_ROWS else f"{MAX_CHART_ROWS} of {len(rows):,} rows; all are in {source}"
    )
    return Table(head, tuple(rows[:MAX_CHART_ROWS]), left)

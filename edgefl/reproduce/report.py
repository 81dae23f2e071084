"""What an experiment found: figures beside the paper's and the reference implementation's, and the lines that
must hold.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.report.drawing import PALETTE, drawn, save
from edgefl.system.format import columns


@dataclass(frozen=True)
class Figure:
    """One figure, in the paper's unit. measured: one value a seed.

    Paper, reference: text, since not every paper gives a number.
    """

    name: str
    measured: tuple[float, ...]
    paper: str = ""
    reference: str = ""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.measured))


@dataclass(frozen=True)
class Verdict:
    """A line that must hold, what was measured for it, and whether it holds."""

    line: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Report:
    """An experiment's end. about: how its set-up differs from the paper's, whose figures stand beside."""

    experiment: str
    scale: str
    seeds: tuple[int, ...]
    figures: tuple[Figure, ...]
    verdicts: tuple[Verdict, ...]
    seconds: float
    note: Mapping[str, Any]
    about: str = ""


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as one object."""
    return asdict(report) | {"figures": [asdict(figure) | {"mean": figure.mean} for figure in report.figures]}


def to_csv(report: Report) -> str:
    """Return one line a figure: name, paper, reference, mean, and one column a seed."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["figure", "paper", "reference", "mean", *(f"seed {seed}" for seed in report.seeds)])
    for figure in report.figures:
        rows.writerow(
            [
                figure.name,
                figure.paper,
                figure.reference,
                round(figure.mean, 4),
                *(round(v, 4) for v in figure.measured),
            ]
        )
    return text.getvalue()


def to_text(report: Report) -> str:
    """Return the figures as a table, then the verdicts."""
    rows: list[tuple[str, ...]] = [
        (f"{report.experiment} ({report.scale})", "paper", "reference", "measured", *_heads(report))
    ]
    for figure in report.figures:
        each = tuple(f"{value:.2f}" for value in figure.measured) if len(report.seeds) > 1 else ()
        rows.append((figure.name, figure.paper or "-", figure.reference or "-", f"{figure.mean:.2f}", *each))
    lines = [columns(rows), *([report.about] if report.about else [])]
    if report.verdicts:
        marks = [
            f"{'holds ' if verdict.holds else 'FAILS '} {verdict.line}: {verdict.measured}"
            for verdict in report.verdicts
        ]
        lines.append("must hold\n" + "\n".join(marks))
    return "\n\n".join(lines)


def _heads(report: Report) -> tuple[str, ...]:
    return tuple(f"seed {seed}" for seed in report.seeds) if len(report.seeds) > 1 else ()


def plot(report: Report, path: Path) -> None:
    """Draw the measured figures as bars, with a mark for each seed and, where the reference is a number, one
    for it.
    """
    places = np.arange(len(report.figures))[::-1]

    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        axes.barh(
            places, [figure.mean for figure in report.figures], color=PALETTE[5], alpha=0.6, label="measured"
        )
        for place, figure in zip(places, report.figures, strict=True):
            axes.plot(figure.measured, [place] * len(figure.measured), "k|")
            known = numbers(figure.reference)
            axes.plot(
                known,
                [place] * len(known),
                "d",
                color=PALETTE[1],
                markersize=5,
                label="reference" if place == places[0] else None,
            )
        axes.set_yticks(places, [figure.name for figure in report.figures], fontsize="small")
        axes.set_title(f"{report.experiment} ({report.scale}), seeds {', '.join(map(str, report.seeds))}")
        axes.grid(axis="x", alpha=0.3)
        if any(numbers(figure.reference) for figure in report.figures):
            axes.legend(fontsize="small")

    save(drawn(draw, 8, 0.7 + 0.32 * len(report.figures)), path)


def numbers(text: str) -> Sequence[float]:
    """Return the numbers of a reference such as `75.3 / 77.3`."""
    found = []
    for part in text.replace("/", " ").split():
        try:
            found.append(float(part))
        except ValueError:
            continue
    return found


def above(line: str, value: float, least: float) -> Verdict:
    """Return the verdict of `value >= least`."""
    return Verdict(line, f"{value:.2f} against {least:.2f}", bool(value >= least))


def below(line: str, value: float, most: float) -> Verdict:
    """Return the verdict of `value <= most`."""
    return Verdict(line, f"{value:.2f} against {most:.2f}", bool(value <= most))


def within(line: str, value: float, low: float, high: float) -> Verdict:
    """Return the verdict of `low <= value <= high`."""
    return Verdict(line, f"{value:.2f}, expected {low:g} to {high:g}", bool(low <= value <= high))

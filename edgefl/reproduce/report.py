"""The report of an experiment: measured, published and reference figures, and claims that must hold."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.report.drawing import PALETTE, draw_figure, save_figure
from edgefl.system.format import align_columns


@dataclass(frozen=True)
class Figure:
    """One figure, in the paper's unit.

    Attributes:
        name: name of the figure.
        measured: one value per seed.
        paper: the published figure as text, because not every paper gives a number.
        reference: the figure of a reference implementation as text, or empty.
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
class ExperimentVerdict:
    """A claim that must hold, what was measured for it, and whether it holds."""

    line: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class ExperimentReport:
    """The result of an experiment.

    Attributes:
        experiment: name of the experiment.
        scale: its scale.
        seeds: the seeds.
        figures: the figures.
        verdicts: the claims that must hold.
        seconds: duration in seconds.
        note: command, versions and machine.
        about: how the set-up differs from the paper's.
    """

    experiment: str
    scale: str
    seeds: tuple[int, ...]
    figures: tuple[Figure, ...]
    verdicts: tuple[ExperimentVerdict, ...]
    seconds: float
    note: Mapping[str, Any]
    about: str = ""


def to_json(report: ExperimentReport) -> dict[str, Any]:
    """Return the report as a dict for JSON."""
    return asdict(report) | {"figures": [asdict(figure) | {"mean": figure.mean} for figure in report.figures]}


def to_csv(report: ExperimentReport) -> str:
    """Return one line per figure: name, paper, reference, mean, and a column per seed."""
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


def to_text(report: ExperimentReport) -> str:
    """Return the figures as a table, followed by the verdicts."""
    rows: list[tuple[str, ...]] = [
        (
            f"{report.experiment} ({report.scale})",
            "paper",
            "reference",
            "measured",
            *_list_seed_headings(report),
        )
    ]
    for figure in report.figures:
        seed_values = tuple(f"{value:.2f}" for value in figure.measured) if len(report.seeds) > 1 else ()
        rows.append(
            (figure.name, figure.paper or "-", figure.reference or "-", f"{figure.mean:.2f}", *seed_values)
        )
    lines = [align_columns(rows), *([report.about] if report.about else [])]
    if report.verdicts:
        marks = [
            f"{'holds ' if verdict.holds else 'FAILS '} {verdict.line}: {verdict.measured}"
            for verdict in report.verdicts
        ]
        lines.append("must hold\n" + "\n".join(marks))
    return "\n\n".join(lines)


def _list_seed_headings(report: ExperimentReport) -> tuple[str, ...]:
    return tuple(f"seed {seed}" for seed in report.seeds) if len(report.seeds) > 1 else ()


def plot_report(report: ExperimentReport, path: Path) -> None:
    """Draw the measured figures as bars, with marks for each seed and for references that are numbers.

    Args:
        report: the report.
        path: the picture. Its suffix selects the format: svg, png or pdf.

    Raises:
        ConfigError: the suffix is not one of these formats.
        ModuleNotFoundError: matplotlib is not installed.
    """
    positions = np.arange(len(report.figures))[::-1]

    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        axes.barh(
            positions,
            [figure.mean for figure in report.figures],
            color=PALETTE[5],
            alpha=0.6,
            label="measured",
        )
        for position, figure in zip(positions, report.figures, strict=True):
            axes.plot(figure.measured, [position] * len(figure.measured), "k|")
            references = parse_numbers(figure.reference)
            axes.plot(
                references,
                [position] * len(references),
                "d",
                color=PALETTE[1],
                markersize=5,
                label="reference" if position == positions[0] else None,
            )
        axes.set_yticks(positions, [figure.name for figure in report.figures], fontsize="small")
        axes.set_title(f"{report.experiment} ({report.scale}), seeds {', '.join(map(str, report.seeds))}")
        axes.grid(axis="x", alpha=0.3)
        if any(parse_numbers(figure.reference) for figure in report.figures):
            axes.legend(fontsize="small")

    save_figure(draw_figure(draw, 8, 0.7 + 0.32 * len(report.figures)), path)


def parse_numbers(text: str) -> Sequence[float]:
    """Return the numbers of a reference such as `75.3 / 77.3`."""
    values = []
    for part in text.replace("/", " ").split():
        try:
            values.append(float(part))
        except ValueError:
            continue
    return values


def check_at_least(line: str, value: float, least: float) -> ExperimentVerdict:
    """Return the verdict on `value >= least`.

    Args:
        line: the claim.
        value: the measured value. No claim holds for NaN.
        least: smallest value for which the claim holds.
    """
    return ExperimentVerdict(line, f"{value:.2f} against {least:.2f}", bool(value >= least))


def check_at_most(line: str, value: float, most: float) -> ExperimentVerdict:
    """Return the verdict on `value <= most`.

    Args:
        line: the claim.
        value: the measured value. No claim holds for NaN.
        most: largest value for which the claim holds.
    """
    return ExperimentVerdict(line, f"{value:.2f} against {most:.2f}", bool(value <= most))


def check_within(line: str, value: float, low: float, high: float) -> ExperimentVerdict:
    """Return the verdict on `low <= value <= high`.

    Args:
        line: the claim.
        value: the measured value. No claim holds for NaN.
        low: smallest value for which the claim holds.
        high: largest value for which the claim holds.
    """
    return ExperimentVerdict(line, f"{value:.2f}, expected {low:g} to {high:g}", bool(low <= value <= high))

"""The report of an experiment: measured and published figures, and verdicts on claims."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.system.format import NO_VALUE, align_columns
from edgefl.watch.report.drawing import PALETTE, draw_figure, save_figure

HOLDS = "holds"
FAILS = "FAILS"


@dataclass(frozen=True)
class Figure:
    """One figure, in the paper's unit.

    Attributes:
        name: name of the figure.
        measured: one value per seed, NaN for a seed that lacks it.
        paper: the published figure, None if the paper has no number.
    """

    name: str
    measured: tuple[float, ...]
    paper: float | None = None

    @property
    def mean(self) -> float:
        """The mean over the seeds that have the figure. NaN if no seed has it."""
        values = [value for value in self.measured if not np.isnan(value)]
        return float(np.mean(values)) if values else float("nan")


@dataclass(frozen=True)
class ExperimentVerdict:
    """The verdict on a claim.

    Attributes:
        line: the claim.
        measured: what was measured for it, as text.
        outcome: `HOLDS` or `FAILS`, or for a paper's claim an outcome of `edgefl.lab.reproduce.claims`.
        paper: what the paper measured, as text.
    """

    line: str
    measured: str
    outcome: str
    paper: str = ""


@dataclass(frozen=True)
class ExperimentReport:
    """The result of an experiment.

    Attributes:
        experiment: name of the experiment.
        scale: its scale.
        seeds: the seeds.
        figures: the figures.
        verdicts: the verdicts on claims.
        seconds: processor time of all clients for an experiment of a paper, duration for `outcomes`.
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
    """Return one line per figure: name, paper, mean, and a column per seed."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["figure", "paper", "mean", *(f"seed {seed}" for seed in report.seeds)])
    for figure in report.figures:
        values = (round(value, 4) for value in (figure.mean, *figure.measured))
        rows.writerow([figure.name, figure.paper, *("" if np.isnan(value) else value for value in values)])
    return text.getvalue()


def to_text(report: ExperimentReport) -> str:
    """Return the figures as a table, followed by the verdicts. A table without rows is left out."""
    rows: list[tuple[str, ...]] = [
        (
            f"{report.experiment} ({report.scale})",
            "paper",
            "measured",
            *_list_seed_headings(report),
        )
    ]
    for figure in report.figures:
        seed_values = figure.measured if len(report.seeds) > 1 else ()
        paper = NO_VALUE if figure.paper is None else f"{figure.paper:g}"
        rows.append((figure.name, paper, *(format_figure(value) for value in (figure.mean, *seed_values))))
    lines = [*([align_columns(rows)] if report.figures else []), *([report.about] if report.about else [])]
    if report.verdicts:
        lines.append(align_columns([("claim", "paper", "measured", "verdict"), *_list_verdicts(report)]))
    return "\n\n".join(lines)


def format_figure(value: float, sign: str = "") -> str:
    """Return a figure with two decimals, or with two significant digits if it is below .1.

    Args:
        value: the figure. NaN becomes a dash.
        sign: `+` shows the sign of positive figures too.
    """
    if np.isnan(value):
        return NO_VALUE
    return f"{value:{sign}.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:{sign}.2g}"


def _list_verdicts(report: ExperimentReport) -> list[tuple[str, ...]]:
    return [
        (verdict.line, verdict.paper or NO_VALUE, verdict.measured, verdict.outcome)
        for verdict in report.verdicts
    ]


def _list_seed_headings(report: ExperimentReport) -> tuple[str, ...]:
    return tuple(f"seed {seed}" for seed in report.seeds) if len(report.seeds) > 1 else ()


def plot_report(report: ExperimentReport, path: Path) -> None:
    """Draw the measured figures as bars, with marks for each seed and for the paper's figure.

    Args:
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
            if figure.paper is not None:
                axes.plot([figure.paper], [position], "d", color=PALETTE[1], markersize=5)
        axes.plot([], [], "d", color=PALETTE[1], markersize=5, label="paper")
        axes.set_yticks(positions, [figure.name for figure in report.figures], fontsize="small")
        plural = "s" if len(report.seeds) > 1 else ""
        seeds = f"seed{plural} {', '.join(map(str, report.seeds))}"
        axes.set_title(f"{report.experiment} ({report.scale}), {seeds}")
        axes.grid(axis="x", alpha=0.3)
        if any(figure.paper is not None for figure in report.figures):
            axes.legend(fontsize="small")

    save_figure(draw_figure(draw, 8, 0.7 + 0.32 * len(report.figures)), path)


def plot_curves(
    title: str, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: Path
) -> None:
    """Draw the accuracy over the rounds, with one line for each stage.

    Args:
        title: title of the picture.
        curves: rounds and accuracies in per cent by stage.
        path: the picture. Its suffix selects the format: svg, png or pdf.

    Raises:
        ConfigError: the suffix is not one of these formats.
        ModuleNotFoundError: matplotlib is not installed.
    """

    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        for index, (stage, (rounds, values)) in enumerate(curves.items()):
            axes.plot(rounds, values, color=PALETTE[index % len(PALETTE)], label=stage)
        axes.set_xlabel("round")
        axes.set_ylabel("accuracy, mean over clients, per cent")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")

    save_figure(draw_figure(draw, 8, 4.5), path)


def check_limits(
    line: str, value: float, *, low: float = -math.inf, high: float = math.inf
) -> ExperimentVerdict:
    """Return the verdict on `low <= value <= high`.

    Args:
        line: the claim.
        value: the measured value. No claim holds for NaN.
        low: smallest value for which the claim holds. Without it, only `high` counts.
        high: largest value for which the claim holds. Without it, only `low` counts.
    """
    if math.isinf(high):
        expected = f"at least {low:g}"
    elif math.isinf(low):
        expected = f"at most {high:g}"
    else:
        expected = f"{low:g} to {high:g}"
    outcome = HOLDS if low <= value <= high else FAILS
    return ExperimentVerdict(line=line, measured=f"{value:.2f}, expected {expected}", outcome=outcome)

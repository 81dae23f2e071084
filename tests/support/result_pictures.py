"""Draws accuracy and loss over the rounds of the papers' experiments, from the files in docs/results/runs/.

`python -m tests.support.result_pages` writes the pictures to docs/assets/papers/ and names them on the pages.
The text of a picture depends only on the results, so that a test can compare it.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from edgefl.lab.reproduce.experiment import Experiment
from edgefl.lab.reproduce.results import SeedResult
from edgefl.lab.reproduce.run import average_curves
from edgefl.watch.report.drawing import GRID, GROUND, INK, MUTED, PALETTE

MIN_POINTS = 5
"""Number of evaluated rounds below which a curve is not drawn."""
WIDTH, HEIGHT = 900, 330
PANEL_WIDTH, PANEL_HEIGHT, TOP = 380, 200, 40
LEFTS = (60, 500)
LEGEND_TOP, LEGEND_LINE, LEGEND_COLUMN = 306, 20, 300
STYLE = f"text{{font:13px system-ui,sans-serif;fill:{INK}}}.tick{{fill:{MUTED};font-size:12px}}"

Curve = Mapping[float, float]
"""Values by round."""


class Axis(NamedTuple):
    """One axis: its ends and the distance of its ticks."""

    low: float
    high: float
    step: float

    def place(self, value: float) -> float:
        """Return the position of a value, from 0 at the low end to 1 at the high end."""
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        """The values with a label."""
        return [self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)]


def choose_axis(values: Sequence[float], start: float | None = None) -> Axis:
    """Return an axis with round ends and three to seven ticks.

    Args:
        values: at least one value.
        start: the low end. None chooses it.
    """
    low = min(values) if start is None else start
    span = max(values) - low or 1.0
    power = 10.0 ** math.floor(math.log10(span / 2))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= 5)
    first, last = math.floor(round(low / step, 9)), math.ceil(round((low + span) / step, 9))
    return Axis(first * step, last * step, step)


def _select_long_curves(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> dict[str, Curve]:
    return {
        stage: dict(zip(rounds, values, strict=True))
        for stage, (rounds, values) in curves.items()
        if len(rounds) >= MIN_POINTS
    }


def name_picture(experiment: Experiment, scale: str) -> str:
    """Return the path of a picture below docs/.

    Args:
        experiment: the experiment.
        scale: the scale.
    """
    return f"assets/papers/{experiment.name}.{scale}.svg"


def draw_curves(experiment: Experiment, scale: str, results: Sequence[SeedResult]) -> str:
    """Return a picture as SVG: accuracy and loss over the rounds, one line for each stage.

    Args:
        experiment: the experiment. Its rows name the lines.
        scale: the scale.
        results: the results of the seeds.

    Returns:
        The text of the picture, empty if no stage was evaluated often enough.
    """
    accuracies = _select_long_curves(average_curves(results))
    losses = _select_long_curves(average_curves(results, "loss_mixture", 1))
    if not accuracies:
        return ""
    seeds = ", ".join(str(result.seed) for result in results)
    title = f"{experiment.title} ({scale}, {'seeds' if len(results) > 1 else 'seed'} {seeds})"
    colours = {stage: PALETTE[i % len(PALETTE)] for i, stage in enumerate(accuracies)}
    parts = [
        *_draw_panel(LEFTS[0], "accuracy, mean over clients, per cent", accuracies, colours),
        *(_draw_panel(LEFTS[1], "loss, mean over clients", losses, colours) if losses else []),
        *_draw_legend({_name_line(experiment, stage): colour for stage, colour in colours.items()}),
    ]
    height = HEIGHT + LEGEND_LINE * ((len(colours) - 1) // 3)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    ground = f'<rect width="{WIDTH}" height="{height}" fill="{GROUND}"/>'
    return "\n".join(
        [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", ground, *parts, "</svg>", ""]
    )


def _name_line(experiment: Experiment, stage: str) -> str:
    """Return the name of the row with the accuracy of this stage.

    Without such a row it is the beginning of the first name of a row of this stage, such as FedAvg of
    "FedAvg, global test", or else the name of the stage.
    """
    rows = [row for row in experiment.rows if row.stages == (stage,)]
    source = f"{stage}: figures.accuracy_mixture.mean"
    names = [row.name for row in rows if row.source == source] + [row.name.split(",")[0] for row in rows]
    return names[0] if names else stage


def _draw_panel(left: int, label: str, curves: Mapping[str, Curve], colours: Mapping[str, str]) -> list[str]:
    """Return the elements of one diagram."""
    across = choose_axis([number for curve in curves.values() for number in curve], 0)
    up = choose_axis([value for curve in curves.values() for value in curve.values()])
    bottom = TOP + PANEL_HEIGHT

    def find_x(value: float) -> float:
        return left + PANEL_WIDTH * across.place(value)

    def find_y(value: float) -> float:
        return bottom - PANEL_HEIGHT * up.place(value)

    lines = [
        f'<text x="{left}" y="{TOP - 16}">{label}</text>',
        f'<text class="tick" x="{left}" y="{bottom + 36}">round</text>',
    ]
    for tick in up.ticks:
        y = find_y(tick)
        lines += [
            f'<path d="M{left} {y:.1f}h{PANEL_WIDTH}" stroke="{GRID}"/>',
            f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>',
        ]
    for tick in across.ticks:
        x = find_x(tick)
        lines.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for stage, curve in curves.items():
        points = " ".join(f"{find_x(number):.1f},{find_y(value):.1f}" for number, value in curve.items())
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colours[stage]}" stroke-width="2"/>')
    return lines


def _draw_legend(colours: Mapping[str, str]) -> list[str]:
    """Return a coloured line and a name for each curve, three in a row."""
    lines = []
    for i, (name, colour) in enumerate(colours.items()):
        x, y = LEFTS[0] + LEGEND_COLUMN * (i % 3), LEGEND_TOP + LEGEND_LINE * (i // 3)
        lines += [
            f'<path d="M{x} {y - 4}h24" stroke="{colour}" stroke-width="3"/>',
            f'<text x="{x + 30}" y="{y}">{escape(name)}</text>',
        ]
    return lines

"""Runs as pictures: training loss over rounds, and the distribution of accuracy over clients.

`edgefl report` draws more of a run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.report.drawing import DASHES, PALETTE, colour, drawn, save, shortened
from edgefl.runs.metrics import cdf

Distribution = tuple[NDArray[np.float64], NDArray[np.float64]]
_ORDER = ("mixture", "federated", "local")


def plot_run(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a run into a picture. ModuleNotFoundError when matplotlib is not installed."""
    names = [key.removeprefix("accuracy_") for key in summary["figures"] if key.startswith("accuracy_")]
    ordered = sorted(names, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n))

    def draw(figure: Any) -> None:
        curve, spread = figure.subplots(1, 2)
        curve.plot(
            [record["round"] for record in records], [record["loss"] for record in records], color=PALETTE[0]
        )
        curve.set(
            xlabel="round",
            ylabel="training loss",
            title=shortened(f"{summary['algorithm']} on {summary['data']}", 60),
        )
        curve.xaxis.get_major_locator().set_params(integer=True)
        draw_cdf(spread, {name: _distribution(summary, name) for name in ordered})

    save(drawn(draw, 9, 3.6), path)


def plot_comparison(names: Sequence[str], summaries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the distribution of the mixtures' accuracy over clients, one line a run, into a picture."""
    found = {name: _distribution(summary, "mixture") for name, summary in zip(names, summaries, strict=True)}
    save(drawn(lambda figure: draw_cdf(figure.subplots(), found), 5.5, 3.6), path)


def draw_cdf(axes: Any, found: Mapping[str, Distribution]) -> None:
    """Draw one step function a name: (sorted accuracy, share of clients with at most that)."""
    for place, (name, (x, share)) in enumerate(found.items()):
        start = np.concatenate([x[:1], x])
        dashes = DASHES[place % len(DASHES)]
        heights = np.concatenate([[0.0] * len(x[:1]), share])
        axes.step(
            100 * start,
            heights,
            where="post",
            color=colour(name, place),
            label=shortened(name),
            linestyle=dashes,
        )
    axes.set(xlabel="accuracy on own held-out samples, per cent", ylabel="share of clients", ylim=(0, 1.02))
    axes.legend(loc="upper left")


def _distribution(summary: Mapping[str, Any], model: str) -> Distribution:
    return cdf(
        [np.nan if (value := row.get(f"accuracy_{model}")) is None else value for row in summary["clients"]]
    )

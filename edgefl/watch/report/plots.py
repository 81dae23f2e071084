"""Draws runs: training loss over rounds, and the distribution of accuracy over clients.

`edgefl report` draws more charts of a run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.verdict import DEFAULT_MEASURE, MEASURES, find_measure
from edgefl.simulation.runs.metrics import compute_cdf
from edgefl.watch.report.drawing import DASHES, PALETTE, choose_colour, draw_figure, save_figure, shorten_name

Distribution = tuple[NDArray[np.float64], NDArray[np.float64]]
_MODEL_ORDER = ("mixture", "federated", "local")


def plot_run(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a run and save the picture.

    Args:
        records: the records of its rounds.
        path: the picture. Its suffix selects the format: svg, png or pdf.

    Raises:
        ConfigError: the suffix is not one of these formats.
        ModuleNotFoundError: matplotlib is not installed.
    """
    measure = find_measure(summary["clients"])
    prefix = f"{measure}_"
    names = [key.removeprefix(prefix) for key in summary["figures"] if key.startswith(prefix)]
    ordered = sorted(
        names, key=lambda n: (_MODEL_ORDER.index(n) if n in _MODEL_ORDER else len(_MODEL_ORDER), n)
    )

    def draw(figure: Any) -> None:
        curve, spread = figure.subplots(1, 2)
        curve.plot(
            [record["round"] for record in records], [record["loss"] for record in records], color=PALETTE[0]
        )
        curve.set(
            xlabel="round",
            ylabel="training loss",
            title=shorten_name(f"{summary['algorithm']} on {summary['data']}", 60),
        )
        curve.xaxis.get_major_locator().set_params(integer=True)
        draw_cdf(spread, {name: _read_cdf(summary, measure, name) for name in ordered}, MEASURES[measure])

    save_figure(draw_figure(draw, 9, 3.6), path)


def plot_comparison(names: Sequence[str], summaries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw how the accuracy of mixtures is distributed over clients, one line per run, and save the picture.

    Args:
        names: one label per run.
        path: the picture. Its suffix selects the format: svg, png or pdf.

    Raises:
        ConfigError: the suffix is not one of these formats.
        ModuleNotFoundError: matplotlib is not installed.
    """
    measures = [find_measure(summary["clients"]) for summary in summaries]
    distributions = {
        name: _read_cdf(summary, measure, "mixture")
        for name, summary, measure in zip(names, summaries, measures, strict=True)
    }
    label = " or ".join(dict.fromkeys(MEASURES[measure] for measure in measures))

    def draw(figure: Any) -> None:
        draw_cdf(figure.subplots(), distributions, label)

    save_figure(draw_figure(draw, 5.5, 3.6), path)


def draw_cdf(
    axes: Any, distributions: Mapping[str, Distribution], measure: str = MEASURES[DEFAULT_MEASURE]
) -> None:
    """Draw one step function per distribution.

    Args:
        axes: matplotlib axes.
        distributions: by name, the sorted accuracies and the share of clients with at most this accuracy,
            both shape (clients,), float64.
        measure: name of the measure for readers, such as `accuracy`.
    """
    for index, (name, (x, share)) in enumerate(distributions.items()):
        start = np.concatenate([x[:1], x])
        dashes = DASHES[index % len(DASHES)]
        heights = np.concatenate([[0.0] * len(x[:1]), share])
        axes.step(
            100 * start,
            heights,
            where="post",
            color=choose_colour(name, index),
            label=shorten_name(name),
            linestyle=dashes,
        )
    axes.set(xlabel=f"{measure} on own held-out samples, per cent", ylabel="share of clients", ylim=(0, 1.02))
    axes.legend(loc="upper left")


def _read_cdf(summary: Mapping[str, Any], measure: str, model: str) -> Distribution:
    values = [row.get(f"{measure}_{model}") for row in summary["clients"]]
    return compute_cdf([np.nan if value is None else value for value in values])

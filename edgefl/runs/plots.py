"""Runs as pictures: training loss over rounds, and the distribution of accuracy over clients."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.evaluation import cdf

_ORDER = ("mixture", "federated", "local")


def _figure(width: float, columns: int) -> Any:
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and looks for a display

    figure = Figure(figsize=(width, 3.6), layout="constrained", dpi=110)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def plot_run(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a run into a PNG. ModuleNotFoundError when matplotlib is not installed."""
    figure, (curve, spread) = _figure(9, 2)
    curve.plot([record["round"] for record in records], [record["loss"] for record in records], color="#1f4e79")
    curve.set(xlabel="round", ylabel="training loss", title=f"{summary['algorithm']} on {summary['data']}")
    curve.xaxis.get_major_locator().set_params(integer=True)
    names = [key.removeprefix("accuracy_") for key in summary["figures"] if key.startswith("accuracy_")]
    for name in sorted(names, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n)):
        _draw_cdf(spread, summary, name, name)
    _finish(spread)
    figure.savefig(path)


def plot_comparison(names: Sequence[str], summaries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the distribution of the mixtures' accuracy over clients, one line a run, into a PNG."""
    figure, (axes,) = _figure(5.5, 1)
    for name, summary in zip(names, summaries, strict=True):
        _draw_cdf(axes, summary, "mixture", name)
    _finish(axes)
    figure.savefig(path)


def _draw_cdf(axes: Any, summary: Mapping[str, Any], model: str, label: str) -> None:
    found = [row.get(f"accuracy_{model}") for row in summary["clients"]]
    values, share = cdf([100 * value for value in found if value is not None])
    axes.step(values, share, where="post", label=label)


def _finish(axes: Any) -> None:
    axes.set(xlabel="accuracy on own held-out samples, per cent", ylabel="share of clients", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize="small")

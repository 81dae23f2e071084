"""Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022: figures 3 to 6."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import ConfigError
from edgefl.report.chart import Chart, table
from edgefl.report.drawing import DASHES, MARKS, PALETTE, colour
from edgefl.report.figures.common import (
    client_mean,
    data_name,
    mean_and_spread,
    needed,
    options,
    sorted_values,
)
from edgefl.report.folder import Folder, index, mapping_at, number, values
from edgefl.runs.metrics import cdf
from edgefl.storage.run_directory import RunFiles

MODELS = {
    "MoE": "mixture",
    "IFCA": "federated",
    "Ensemble": "ensemble",
    "Fine-tuned": "tuned",
    "Local": "local_expert",
}
WAYS = {False: "no exploration", True: "epsilon-greedy"}
_WHERE = f"the runs' {RunFiles.summary.name}"


@dataclass(frozen=True)
class Line:
    """One model, with exploration or without: x float64[n], mean over runs in per cent and its standard
    deviation, float64[n].
    """

    model: str
    explored: bool
    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]


def explored(folder: Folder) -> bool:
    """Whether clients explored: epsilon above 0."""
    return number(options(folder).get("epsilon")) > 0


def fraction(folder: Folder) -> float:
    """Return p, the fraction of a client's samples that is of its majority classes."""
    return float(needed(folder, "p", "simulate with the partition p-majority"))


def models(folder: Folder) -> float:
    """Return J, the number of cluster models."""
    return number(options(folder).get("num_experts"))


def lines(folders: Sequence[Folder], x_of: Any) -> list[Line]:
    """Return a line each model and way, means over the runs with the same x.

    Models that no run has measured are left out.
    """
    found = []
    for way in WAYS:
        own = [folder for folder in folders if explored(folder) == way]
        places = sorted_values(x_of(folder) for folder in own)
        for model, key in MODELS.items():
            groups = [
                [100 * client_mean(folder, f"accuracy_{key}") for folder in own if x_of(folder) == x]
                for x in places
            ]
            mean, std = mean_and_spread(groups)
            known = np.isfinite(mean)
            if known.any():
                found.append(Line(model, way, np.array(places, np.float64)[known], mean[known], std[known]))
    return found


def _draw(axes: Any, line: Line, label: str) -> None:
    place = list(MODELS).index(line.model)
    style = {
        "color": colour(MODELS[line.model], place),
        "marker": MARKS[place],
        "linestyle": "-" if line.explored else DASHES[1],
        "markerfacecolor": None if line.explored else "white",
    }
    axes.errorbar(
        line.x, line.mean, yerr=line.std if line.std.any() else None, label=label, capsize=2, **style
    )


def _rows(found: Sequence[Line], head: tuple[Any, ...] = ()) -> list[Any]:
    return [
        (*head, WAYS[line.explored], line.model, float(x), round(float(mean), 3), round(float(std), 3))
        for line in found
        for x, mean, std in zip(line.x, line.mean, line.std, strict=True)
    ]


def _said(found: Sequence[Line], axis: str) -> str:
    best = max(found, key=lambda line: line.mean.max())
    at = int(best.mean.argmax())
    return (
        f"The highest mean is {best.mean[at]:.1f} per cent, of {best.model} with {WAYS[best.explored]} at "
        f"{axis} = {best.x[at]:g}."
    )


def by_fraction(folders: Sequence[Folder]) -> Chart:
    """Figure 3: accuracy by p, a panel without exploration and one with it."""
    found = lines(folders, fraction)
    _check(found, folders)
    ways = [way for way in WAYS if any(line.explored == way for line in found)]

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(ways), sharey=True, squeeze=False)[0]
        for letter, axes, way in zip("ab", grid, ways, strict=False):
            for line in found:
                if line.explored == way:
                    _draw(axes, line, line.model)
            axes.set(xlabel="majority class fraction p", title=f"({letter}) {WAYS[way]}")
        grid[0].set_ylabel("accuracy, per cent")
        grid[0].legend()

    head = ("way", "model", "p", "mean accuracy, per cent", "std over runs")
    left = "" if len(ways) == 2 else f" Only runs with {WAYS[ways[0]]} were given."
    return Chart(
        "aem-3",
        "Accuracy by majority fraction",
        _said(found, "p") + left,
        table(head, _rows(found), _WHERE),
        draw,
        3.6 * len(ways) + 0.4,
        3.2,
    )


def by_models(folders: Sequence[Folder]) -> Chart:
    """Figure 4: accuracy by J, a panel each p; dashed without exploration."""
    fractions = sorted_values(fraction(folder) for folder in folders)
    panels = {p: lines([folder for folder in folders if fraction(folder) == p], models) for p in fractions}
    every = [line for found in panels.values() for line in found]
    _check(every, folders)

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for letter, axes, (p, found) in zip("abcdefgh", grid, panels.items(), strict=False):
            for line in found:
                _draw(axes, line, line.model + ("" if line.explored else ", none"))
            axes.set(xlabel="number of cluster models J", title=f"({letter}) p = {p:g}")
            axes.set_xticks(sorted_values(x for line in found for x in line.x))
        grid[0].set_ylabel("accuracy, per cent")
        figure.legend(*grid[-1].get_legend_handles_labels(), loc="outside right upper", fontsize=7)

    rows = [row for p, found in panels.items() for row in _rows(found, (p,))]
    head = ("p", "way", "model", "J", "mean accuracy, per cent", "std over runs")
    return Chart(
        "aem-4",
        "Accuracy by number of cluster models",
        _said(every, "J"),
        table(head, rows, _WHERE),
        draw,
        3.2 * len(panels) + 0.6,
        3.2,
    )


def sizes(folder: Folder) -> NDArray[np.float64]:
    """Return how many clients end with each cluster model as their best, most first, float64[J]."""
    best = [index(mapping_at(row, "diagnostics").get("best")) for row in folder.clients]
    known = np.array([each for each in best if each >= 0], np.int64)
    count = max(index(models(folder)), int(known.max(initial=-1)) + 1)
    return np.sort(np.bincount(known, minlength=count))[::-1].astype(np.float64)


def cluster_sizes(folders: Sequence[Folder]) -> Chart:
    """Figure 5: clients in each cluster, the most picked first, means over runs; a panel each p."""
    panels: dict[float, dict[bool, NDArray[np.float64]]] = {}
    for p in sorted_values(fraction(folder) for folder in folders):
        for way in WAYS:
            own = [sizes(folder) for folder in folders if fraction(folder) == p and explored(folder) == way]
            width = max((len(each) for each in own), default=0)
            if width:
                panels.setdefault(p, {})[way] = np.mean(
                    [np.pad(each, (0, width - len(each))) for each in own], axis=0
                )
    if not any(found.sum() for ways in panels.values() for found in ways.values()):
        raise ConfigError(
            "no client of these runs says which model is best for it; simulate again to the end"
        )

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for letter, axes, (p, ways) in zip("abcdefgh", grid, panels.items(), strict=False):
            for way, found in ways.items():
                axes.bar(
                    np.arange(len(found)) + (0.2 if way else -0.2),
                    found,
                    0.4,
                    color=PALETTE[not way],
                    label=WAYS[way],
                    hatch="" if way else "///",
                    edgecolor="white",
                    linewidth=0.4,
                )
            axes.set(xlabel="cluster, most picked first", title=f"({letter}) p = {p:g}")
            axes.xaxis.get_major_locator().set_params(integer=True)
        grid[0].set_ylabel("clients")
        grid[-1].legend()

    rows: list[Any] = [
        (p, WAYS[way], i, float(v))
        for p, ways in panels.items()
        for way, found in ways.items()
        for i, v in enumerate(found)
    ]
    largest = "; ".join(
        f"p = {p:g}, {WAYS[way]}: {found[0]:g} of {found.sum():g}"
        for p, ways in panels.items()
        for way, found in ways.items()
    )
    head = ("p", "way", "cluster", "clients")
    return Chart(
        "aem-5",
        "Clients in each cluster",
        f"Clients in the largest cluster: {largest}.",
        table(head, rows, _WHERE),
        draw,
        3.0 * len(panels) + 0.6,
        3.0,
    )


def _panel(folder: Folder) -> str:
    p = folder.partition("p")
    return data_name(folder) + (f", p = {p:g}" if isinstance(p, int | float) else "")


def distribution(folders: Sequence[Folder]) -> Chart:
    """Figure 6: distribution of client accuracy, all runs of one kind together.

    A panel each data set and p, dashed without exploration.
    """
    panels: dict[str, dict[tuple[str, bool], tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    for name in sorted_values(map(_panel, folders)):
        for way in WAYS:
            own = [folder for folder in folders if _panel(folder) == name and explored(folder) == way]
            for model, key in MODELS.items():
                x, share = cdf(
                    [100 * value for folder in own for value in values(folder.clients, f"accuracy_{key}")]
                )
                if len(x):
                    panels.setdefault(name, {})[model, way] = (x, share)
    if not panels:
        raise ConfigError(
            f"no client of {folders[0].path} has measured its model; go on with the run by --resume"
        )

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for letter, axes, (name, found) in zip("abcdefgh", grid, panels.items(), strict=False):
            for (model, way), (x, share) in found.items():
                place = list(MODELS).index(model)
                axes.step(
                    x,
                    share,
                    where="post",
                    color=colour(MODELS[model], place),
                    linestyle="-" if way else DASHES[1],
                    label=f"{model}{'' if way else ', none'}",
                )
            axes.set(xlabel="client accuracy, per cent", title=f"({letter}) {name}", ylim=(0, 1.02))
        grid[0].set_ylabel("share of clients")
        figure.legend(*grid[-1].get_legend_handles_labels(), loc="outside right upper", fontsize=7)

    rows: list[Any] = [
        (name, WAYS[way], model, round(float(v), 3), round(float(s), 4))
        for name, found in panels.items()
        for (model, way), (x, share) in found.items()
        for v, s in zip(x, share, strict=True)
    ]
    many = len(panels) > 1
    medians = "; ".join(
        f"{model} with {WAYS[way]}{f' on {name}' if many else ''} {np.median(x):.1f}"
        for name, found in panels.items()
        for (model, way), (x, _) in found.items()
    )
    head = ("data", "way", "model", "accuracy, per cent", "share of clients")
    return Chart(
        "aem-6",
        "Distribution of client accuracy",
        f"Medians, per cent: {medians}.",
        table(head, rows, _WHERE),
        draw,
        4.2 * len(panels) + 0.4,
        3.4,
    )


def _check(found: Sequence[Line], folders: Sequence[Folder]) -> None:
    if not found:
        raise ConfigError(
            f"no client of {folders[0].path} has measured its model; go on with the run by --resume"
        )

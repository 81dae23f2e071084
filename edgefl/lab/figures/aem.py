"""Figures 3 to 6 of the paper on adaptive expert models.

Source: Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError
from edgefl.base.storage.run_directory import RunFiles
from edgefl.lab.figures.common import (
    average_clients,
    average_groups,
    describe_data,
    read_options,
    require_partition_option,
    sort_unique,
)
from edgefl.simulation.runs.metrics import compute_cdf
from edgefl.watch.report.chart import Chart, make_table
from edgefl.watch.report.drawing import DASHES, MARKERS, PALETTE, choose_colour
from edgefl.watch.report.folder import Folder, find_mapping, read_numbers, to_index, to_number

MODEL_KEYS = {
    "MoE": "mixture",
    "IFCA": "federated",
    "Ensemble": "ensemble",
    "Fine-tuned": "tuned",
    "Local": "local_expert",
}
EXPLORATION_LABELS = {False: "no exploration", True: "epsilon-greedy"}
_SOURCE = f"the runs' {RunFiles.summary.name}"


@dataclass(frozen=True)
class Line:
    """The accuracy of one model, with or without exploration.

    Attributes:
        model: name of the model in the paper.
        explored: whether clients explored.
        x: horizontal positions, shape (n,), float64.
        mean: mean over runs in per cent, shape (n,), float64.
        std: standard deviation over runs in per cent, shape (n,), float64.
    """

    model: str
    explored: bool
    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]


def has_exploration(folder: Folder) -> bool:
    """Return whether clients explored, which means an epsilon above 0."""
    return to_number(read_options(folder).get("epsilon")) > 0


def read_fraction(folder: Folder) -> float:
    """Return p, the fraction of a client's samples in its majority classes.

    Raises:
        ConfigError: the partition has no p.
    """
    return float(require_partition_option(folder, "p", "simulate with the partition p-majority"))


def read_num_models(folder: Folder) -> float:
    """Return J, the number of cluster models."""
    return to_number(read_options(folder).get("num_experts"))


def average_lines(folders: Sequence[Folder], read_x: Any) -> list[Line]:
    """Return a line for each model with and without exploration, as means over runs with the same x.

    Models that no run has measured are left out.

    Args:
        folders: the runs.
        read_x: returns the horizontal position of a run.
    """
    model_lines = []
    for way in EXPLORATION_LABELS:
        runs = [folder for folder in folders if has_exploration(folder) == way]
        x_values = sort_unique(read_x(folder) for folder in runs)
        for model, key in MODEL_KEYS.items():
            groups = [
                [100 * average_clients(folder, f"accuracy_{key}") for folder in runs if read_x(folder) == x]
                for x in x_values
            ]
            mean, std = average_groups(groups)
            is_finite = np.isfinite(mean)
            if is_finite.any():
                model_lines.append(
                    Line(
                        model=model,
                        explored=way,
                        x=np.array(x_values, np.float64)[is_finite],
                        mean=mean[is_finite],
                        std=std[is_finite],
                    )
                )
    return model_lines


def _draw_line(axes: Any, line: Line, label: str) -> None:
    position = list(MODEL_KEYS).index(line.model)
    style = {
        "color": choose_colour(MODEL_KEYS[line.model], position),
        "marker": MARKERS[position],
        "linestyle": "-" if line.explored else DASHES[1],
        "markerfacecolor": None if line.explored else "white",
    }
    axes.errorbar(
        line.x, line.mean, yerr=line.std if line.std.any() else None, label=label, capsize=2, **style
    )


def _build_rows(model_lines: Sequence[Line], head: tuple[Any, ...] = ()) -> list[Any]:
    return [
        (
            *head,
            EXPLORATION_LABELS[line.explored],
            line.model,
            float(x),
            round(float(mean), 3),
            round(float(std), 3),
        )
        for line in model_lines
        for x, mean, std in zip(line.x, line.mean, line.std, strict=True)
    ]


def _describe_best(model_lines: Sequence[Line], axis: str) -> str:
    best = max(model_lines, key=lambda line: line.mean.max())
    at = int(best.mean.argmax())
    return (
        f"The highest mean is {best.mean[at]:.1f} per cent, for {best.model} with "
        f"{EXPLORATION_LABELS[best.explored]} at {axis} = {best.x[at]:g}."
    )


def chart_accuracy_by_fraction(folders: Sequence[Folder]) -> Chart:
    """Return figure 3: accuracy by p, with a panel without exploration and a panel with it.

    Raises:
        ConfigError: no client has measured its model, or a partition has no p.
    """
    model_lines = average_lines(folders, read_fraction)
    _check_measured(model_lines, folders)
    ways = [way for way in EXPLORATION_LABELS if any(line.explored == way for line in model_lines)]

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(ways), sharey=True, squeeze=False)[0]
        for letter, axes, way in zip("ab", grid, ways, strict=False):
            for line in model_lines:
                if line.explored == way:
                    _draw_line(axes, line, line.model)
            axes.set(xlabel="majority class fraction p", title=f"({letter}) {EXPLORATION_LABELS[way]}")
        grid[0].set_ylabel("accuracy, per cent")
        grid[0].legend()

    head = ("way", "model", "p", "mean accuracy, per cent", "std over runs")
    left = "" if len(ways) == 2 else f" Only runs with {EXPLORATION_LABELS[ways[0]]} were given."
    return Chart(
        name="aem-3",
        title="Accuracy by majority fraction",
        alt=_describe_best(model_lines, "p") + left,
        table=make_table(head, _build_rows(model_lines), _SOURCE),
        draw=draw,
        width=3.6 * len(ways) + 0.4,
        height=3.2,
    )


def chart_accuracy_by_models(folders: Sequence[Folder]) -> Chart:
    """Return figure 4: accuracy by J, with a panel for each p. Lines without exploration are dashed.

    Raises:
        ConfigError: no client has measured its model, or a partition has no p.
    """
    fractions = sort_unique(read_fraction(folder) for folder in folders)
    panels = {
        p: average_lines([folder for folder in folders if read_fraction(folder) == p], read_num_models)
        for p in fractions
    }
    all_lines = [line for model_lines in panels.values() for line in model_lines]
    _check_measured(all_lines, folders)

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for letter, axes, (p, model_lines) in zip("abcdefgh", grid, panels.items(), strict=False):
            for line in model_lines:
                _draw_line(axes, line, line.model + ("" if line.explored else ", none"))
            axes.set(xlabel="number of cluster models J", title=f"({letter}) p = {p:g}")
            axes.set_xticks(sort_unique(x for line in model_lines for x in line.x))
        grid[0].set_ylabel("accuracy, per cent")
        figure.legend(*grid[-1].get_legend_handles_labels(), loc="outside right upper", fontsize=7)

    rows = [row for p, model_lines in panels.items() for row in _build_rows(model_lines, (p,))]
    head = ("p", "way", "model", "J", "mean accuracy, per cent", "std over runs")
    return Chart(
        name="aem-4",
        title="Accuracy by number of cluster models",
        alt=_describe_best(all_lines, "J"),
        table=make_table(head, rows, _SOURCE),
        draw=draw,
        width=3.2 * len(panels) + 0.6,
        height=3.2,
    )


def count_best_models(folder: Folder) -> NDArray[np.float64]:
    """Return the number of clients per best cluster model, shape (J,), float64, largest first."""
    best = [to_index(find_mapping(row, "diagnostics").get("best")) for row in folder.clients]
    chosen = np.array([expert for expert in best if expert >= 0], np.int64)
    count = max(to_index(read_num_models(folder)), int(chosen.max(initial=-1)) + 1)
    return np.sort(np.bincount(chosen, minlength=count))[::-1].astype(np.float64)


def chart_cluster_sizes(folders: Sequence[Folder]) -> Chart:
    """Return figure 5: clients in each cluster, largest first, as means over runs. Each p has a panel.

    Raises:
        ConfigError: no client reports its best model, or a partition has no p.
    """
    panels: dict[float, dict[bool, NDArray[np.float64]]] = {}
    for p in sort_unique(read_fraction(folder) for folder in folders):
        for way in EXPLORATION_LABELS:
            run_counts = [
                count_best_models(folder)
                for folder in folders
                if read_fraction(folder) == p and has_exploration(folder) == way
            ]
            width = max((len(counts) for counts in run_counts), default=0)
            if width:
                panels.setdefault(p, {})[way] = np.mean(
                    [np.pad(counts, (0, width - len(counts))) for counts in run_counts], axis=0
                )
    if not any(clients.sum() for ways in panels.values() for clients in ways.values()):
        raise ConfigError("no client of these runs reports its best model; simulate again to the end")

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for letter, axes, (p, ways) in zip("abcdefgh", grid, panels.items(), strict=False):
            for way, clients in ways.items():
                axes.bar(
                    np.arange(len(clients)) + (0.2 if way else -0.2),
                    clients,
                    0.4,
                    color=PALETTE[not way],
                    label=EXPLORATION_LABELS[way],
                    hatch="" if way else "///",
                    edgecolor="white",
                    linewidth=0.4,
                )
            axes.set(xlabel="cluster, most picked first", title=f"({letter}) p = {p:g}")
            axes.xaxis.get_major_locator().set_params(integer=True)
        grid[0].set_ylabel("clients")
        grid[-1].legend()

    rows: list[Any] = [
        (p, EXPLORATION_LABELS[way], i, float(v))
        for p, ways in panels.items()
        for way, clients in ways.items()
        for i, v in enumerate(clients)
    ]
    largest = "; ".join(
        f"p = {p:g}, {EXPLORATION_LABELS[way]}: {clients[0]:g} of {clients.sum():g}"
        for p, ways in panels.items()
        for way, clients in ways.items()
    )
    head = ("p", "way", "cluster", "clients")
    return Chart(
        name="aem-5",
        title="Clients in each cluster",
        alt=f"Clients in the largest cluster: {largest}.",
        table=make_table(head, rows, _SOURCE),
        draw=draw,
        width=3.0 * len(panels) + 0.6,
        height=3.0,
    )


def _name_panel(folder: Folder) -> str:
    p = folder.find_partition_option("p")
    return describe_data(folder) + (f", p = {p:g}" if isinstance(p, int | float) else "")


def chart_accuracy_distribution(folders: Sequence[Folder]) -> Chart:
    """Return figure 6: distribution of client accuracy over all runs of one kind.

    Each data set and p has a panel. Lines without exploration are dashed.

    Raises:
        ConfigError: no client has measured its model.
    """
    panels: dict[str, dict[tuple[str, bool], tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    for name in sort_unique(map(_name_panel, folders)):
        for way in EXPLORATION_LABELS:
            runs = [
                folder for folder in folders if _name_panel(folder) == name and has_exploration(folder) == way
            ]
            for model, key in MODEL_KEYS.items():
                x, share = compute_cdf(
                    [
                        100 * value
                        for folder in runs
                        for value in read_numbers(folder.clients, f"accuracy_{key}")
                    ]
                )
                if len(x):
                    panels.setdefault(name, {})[model, way] = (x, share)
    if not panels:
        raise ConfigError(
            f"no client of {folders[0].path} has measured its model; continue the run with --resume"
        )

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for letter, axes, (name, curves) in zip("abcdefgh", grid, panels.items(), strict=False):
            for (model, way), (x, share) in curves.items():
                position = list(MODEL_KEYS).index(model)
                axes.step(
                    x,
                    share,
                    where="post",
                    color=choose_colour(MODEL_KEYS[model], position),
                    linestyle="-" if way else DASHES[1],
                    label=f"{model}{'' if way else ', none'}",
                )
            axes.set(xlabel="client accuracy, per cent", title=f"({letter}) {name}", ylim=(0, 1.02))
        grid[0].set_ylabel("share of clients")
        figure.legend(*grid[-1].get_legend_handles_labels(), loc="outside right upper", fontsize=7)

    rows: list[Any] = [
        (name, EXPLORATION_LABELS[way], model, round(float(v), 3), round(float(s), 4))
        for name, curves in panels.items()
        for (model, way), (x, share) in curves.items()
        for v, s in zip(x, share, strict=True)
    ]
    many = len(panels) > 1
    medians = "; ".join(
        f"{model} with {EXPLORATION_LABELS[way]}{f' on {name}' if many else ''} {np.median(x):.1f}"
        for name, curves in panels.items()
        for (model, way), (x, _) in curves.items()
    )
    head = ("data", "way", "model", "accuracy, per cent", "share of clients")
    return Chart(
        name="aem-6",
        title="Distribution of client accuracy",
        alt=f"Medians, per cent: {medians}.",
        table=make_table(head, rows, _SOURCE),
        draw=draw,
        width=4.2 * len(panels) + 0.4,
        height=3.4,
    )


def _check_measured(model_lines: Sequence[Line], folders: Sequence[Folder]) -> None:
    if not model_lines:
        raise ConfigError(
            f"no client of {folders[0].path} has measured its model; continue the run with --resume"
        )

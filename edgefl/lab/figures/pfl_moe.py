"""Figures 1 to 5 of the paper on PFL-MoE.

Source: Guo et al., PFL-MoE: Personalized Federated Learning Based on Mixture of Experts, 2020.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError
from edgefl.base.storage.run_directory import RunFiles
from edgefl.lab.figures.common import describe_data, require_partition_option, sort_unique
from edgefl.watch.report.chart import Chart, make_table
from edgefl.watch.report.curves import read_model_curves, set_integer_ticks
from edgefl.watch.report.drawing import DASHES, INK, PALETTE
from edgefl.watch.report.folder import Folder, read_numbers

Vector = NDArray[np.float64]
TEST_LABELS = {"expected": "local test", "global": "global test"}
_SOURCE = f"the runs' {RunFiles.summary.name}"
_DIRICHLET = "simulate with the partition dirichlet"


def read_alpha(folder: Folder) -> float:
    """Return the concentration alpha of the Dirichlet partition.

    Raises:
        ConfigError: the partition has no alpha.
    """
    return float(require_partition_option(folder, "alpha", _DIRICHLET))


def read_test_accuracy(folder: Folder, test: str, model: str) -> Vector:
    """Return the accuracy of each client in per cent, shape (clients,), float64.

    Args:
        test: `expected` for the local test, `global` for the global test.
        model: name of the model, such as `mixture`.

    Raises:
        ConfigError: the figure of a client is missing.
    """
    accuracy = 100 * np.array(read_numbers(folder.clients, f"{test}_{model}"))
    if not len(accuracy) or not np.isfinite(accuracy).all():
        raise ConfigError(
            f"{folder.path} lacks the {TEST_LABELS[test]} of {model} for some clients; run `edgefl simulate` "
            "to the end, where it measures on the common test set"
        )
    return accuracy


def chart_local_models(folders: Sequence[Folder]) -> Chart:
    """Return figure 1: local and global test of each client's local model.

    Each alpha and test has a box. Each data set and model has a panel.

    Raises:
        ConfigError: the figure of a client is missing, or a partition has no alpha.
    """
    panels: dict[str, dict[tuple[float, str], Vector]] = {}
    for name in sort_unique(describe_data(folder) for folder in folders):
        runs = [folder for folder in folders if describe_data(folder) == name]
        for a in sort_unique(read_alpha(folder) for folder in runs):
            for test in TEST_LABELS:
                boxes = [
                    read_test_accuracy(folder, test, "mixture") for folder in runs if read_alpha(folder) == a
                ]
                panels.setdefault(name, {})[a, test] = np.concatenate(boxes)

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (name, panel) in zip(grid, panels.items(), strict=True):
            alphas = sort_unique(a for a, _ in panel)
            for (a, test), box in panel.items():
                position = alphas.index(a) + (-0.18 if test == "expected" else 0.18)
                shade = PALETTE[0] if test == "expected" else PALETTE[1]
                axes.boxplot(
                    [box],
                    positions=[position],
                    widths=0.3,
                    patch_artist=True,
                    manage_ticks=False,
                    flierprops={"markersize": 2.5},
                    boxprops={
                        "facecolor": shade,
                        "edgecolor": INK,
                        "hatch": "" if test == "expected" else "///",
                    },
                    medianprops={"color": "white"},
                    whiskerprops={"color": INK},
                    capprops={"color": INK},
                )
            axes.set_xticks(range(len(alphas)), [f"{a:g}" for a in alphas])
            axes.set(xlabel="alpha", title=name, xlim=(-0.6, len(alphas) - 0.4))
        grid[0].set_ylabel("test accuracy, per cent")
        from matplotlib.patches import Patch

        marks = [
            Patch(facecolor=PALETTE[i], edgecolor=INK, hatch="" if i == 0 else "///", label=label)
            for i, label in enumerate(TEST_LABELS.values())
        ]
        grid[-1].legend(handles=marks)

    rows: list[Any] = [
        (
            name,
            a,
            TEST_LABELS[test],
            len(box),
            *(round(float(v), 3) for v in (*np.percentile(box, (10, 25, 50, 75, 90)), box.mean())),
        )
        for name, panel in panels.items()
        for (a, test), box in panel.items()
    ]
    alt = "; ".join(
        f"alpha {a:g}, {TEST_LABELS[test]}: median {np.median(box):.1f}"
        for panel in panels.values()
        for (a, test), box in panel.items()
    )
    head = ("data", "alpha", "test", "clients", "10 %", "25 %", "median", "75 %", "90 %", "mean")
    return Chart(
        name="pfl-moe-1",
        title="Models trained alone",
        alt=f"Per cent. {alt}.",
        table=make_table(head, rows, _SOURCE),
        draw=draw,
        width=3.4 * len(panels) + 0.8,
        height=3.3,
    )


def chart_global_accuracy(folders: Sequence[Folder]) -> Chart:
    """Return figure 2: accuracy of the global model on the common test set over rounds.

    Each alpha has a line. Each data set and model has a panel.

    Raises:
        ConfigError: a run was not evaluated between rounds, or a partition has no alpha.
    """
    panels: dict[str, dict[float, tuple[NDArray[np.int64], Vector]]] = {}
    for folder in folders:
        lines = read_model_curves(folder.records)
        if "global" not in lines:
            raise ConfigError(
                f"{folder.path} was not evaluated between rounds; simulate with --evaluate-every 1"
            )
        panels.setdefault(describe_data(folder), {})[read_alpha(folder)] = lines["global"]

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (name, curves) in zip(grid, panels.items(), strict=True):
            for position, (a, (x, y)) in enumerate(sorted(curves.items())):
                axes.plot(
                    x,
                    100 * y,
                    color=PALETTE[position % len(PALETTE)],
                    linestyle=DASHES[position % len(DASHES)],
                    label=f"alpha {a:g}",
                    marker="o" if len(x) < 3 else None,
                )
            axes.set(xlabel="round", title=name)
            set_integer_ticks(axes)
        grid[0].set_ylabel("global test accuracy, per cent")
        grid[-1].legend()

    alt = "; ".join(
        f"alpha {a:g}: {100 * y[-1]:.1f} after round {x[-1]}"
        for curves in panels.values()
        for a, (x, y) in sorted(curves.items())
    )
    rows: list[Any] = [
        (name, a, int(r), round(100 * float(v), 3))
        for name, curves in panels.items()
        for a, (x, y) in sorted(curves.items())
        for r, v in zip(x, y, strict=True)
    ]
    head = ("data", "alpha", "round", "global test accuracy, per cent")
    return Chart(
        name="pfl-moe-2",
        title="FedAvg over rounds",
        alt=f"Per cent. {alt}.",
        table=make_table(head, rows, RunFiles.rounds.name),
        draw=draw,
        width=3.6 * len(panels) + 0.8,
        height=3.2,
    )


@dataclass(frozen=True)
class Gain:
    """The gain of each client over FedAvg in one test.

    Attributes:
        algorithm: name of the algorithm that made the mixture.
        test: a key of `TEST_LABELS`.
        fedavg: local test of FedAvg in per cent, shape (clients,), float64.
        adapted: points by which PFL-FB is above FedAvg, shape (clients,), float64.
        mixture: points by which the mixture is above FedAvg, shape (clients,), float64.
    """

    algorithm: str
    test: str
    fedavg: Vector
    adapted: Vector
    mixture: Vector

    @property
    def better(self) -> NDArray[np.bool_]:
        """Whether the mixture is at least as good as PFL-FB, shape (clients,), bool."""
        return np.asarray(self.mixture >= self.adapted)


def read_gain(folder: Folder, test: str) -> Gain:
    """Return the gains of PFL-FB and of the folder's mixture over FedAvg in a test.

    Args:
        test: `expected` for the local test, `global` for the global test.

    Raises:
        ConfigError: the figure of a client is missing.
    """
    base = read_test_accuracy(folder, test, "federated")
    adapted, mixture = (read_test_accuracy(folder, test, model) - base for model in ("adapted", "mixture"))
    return Gain(
        algorithm=folder.algorithm.upper(),
        test=test,
        fedavg=read_test_accuracy(folder, "expected", "federated"),
        adapted=adapted,
        mixture=mixture,
    )


def chart_gains(folders: Sequence[Folder]) -> Chart:
    """Return figures 3 to 5: gain over FedAvg, by the local test of FedAvg, in four panels.

    Circles are PFL-FB. Triangles are PFL-MF or PFL-MFE.

    Raises:
        ConfigError: two runs have the same algorithm, or the figure of a client is missing.
    """
    runs = sorted(folders, key=lambda folder: folder.algorithm)
    if len({folder.algorithm for folder in runs}) != len(runs):
        raise ConfigError(
            f"{len(runs)} runs of {runs[0].algorithm}, expected at most one of pfl-mf and one of pfl-mfe; "
            "give one of each"
        )
    panels = [read_gain(folder, test) for test in TEST_LABELS for folder in runs]

    def draw(figure: Any) -> None:
        grid = figure.subplots(2, len(runs), squeeze=False, sharex=True)
        for letter, axes, panel in zip("abcd", grid.ravel(), panels, strict=False):
            up = panel.better
            axes.axhline(0, color=INK, linewidth=0.8)
            axes.plot(
                panel.fedavg,
                panel.adapted,
                "o",
                color=PALETTE[6],
                markersize=3.5,
                markerfacecolor="none",
                label="PFL-FB",
            )
            axes.plot(
                panel.fedavg[up],
                panel.mixture[up],
                "^",
                color=PALETTE[0],
                markersize=4,
                label=f"{panel.algorithm}, not below PFL-FB",
            )
            axes.plot(
                panel.fedavg[~up],
                panel.mixture[~up],
                "v",
                color=PALETTE[1],
                markersize=4,
                label=f"{panel.algorithm}, below PFL-FB",
            )
            axes.set_title(f"({letter}) {TEST_LABELS[panel.test]}, {panel.algorithm}")
        for axes in grid[-1]:
            axes.set_xlabel("local test of FedAvg, per cent")
        for axes in grid[:, 0]:
            axes.set_ylabel("points above FedAvg")
        for axes in grid[0]:
            axes.legend(fontsize=6.5)

    alt = "; ".join(
        f"{panel.algorithm}, {TEST_LABELS[panel.test]}: {int(panel.better.sum())} of {len(panel.better)} "
        "clients not below PFL-FB"
        for panel in panels
    )
    rows: list[Any] = [
        (TEST_LABELS[panel.test], panel.algorithm, *(round(float(v), 3) for v in row))
        for panel in panels
        for row in zip(panel.fedavg, panel.adapted, panel.mixture, strict=True)
    ]
    head = ("test", "algorithm", "local test of FedAvg", "PFL-FB, points above", "mixture, points above")
    title = f"Gain over FedAvg, {describe_data(runs[0])}, alpha {format_alpha(runs[0])}"
    return Chart(
        name="pfl-moe-gain",
        title=title,
        alt=f"{alt}.",
        table=make_table(head, rows, _SOURCE),
        draw=draw,
        width=3.5 * len(runs) + 0.6,
        height=5.4,
    )


def format_alpha(folder: Folder) -> str:
    """Return alpha as text, or a dash if the partition has none."""
    value = folder.find_partition_option("alpha")
    return "-" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)

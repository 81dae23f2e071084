"""Guo et al., PFL-MoE: Personalized Federated Learning Based on Mixture of Experts, 2020: figures 1 to 5."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import ConfigError
from edgefl.report.chart import Chart, table
from edgefl.report.curves import model_lines, whole
from edgefl.report.drawing import DASHES, INK, PALETTE
from edgefl.report.figures.common import data_name, needed, sorted_values
from edgefl.report.folder import Folder, values
from edgefl.storage.run_directory import RunFiles

Vector = NDArray[np.float64]
TESTS = {"expected": "local test", "global": "global test"}
_WHERE = f"the runs' {RunFiles.summary.name}"
_DIRICHLET = "simulate with the partition dirichlet"


def alpha(folder: Folder) -> float:
    """Return the concentration of the partition."""
    return float(needed(folder, "alpha", _DIRICHLET))


def measured(folder: Folder, test: str, model: str) -> Vector:
    """Return a test's accuracy by client in per cent, float64[clients].

    ConfigError where a client lacks it.
    """
    found = 100 * np.array(values(folder.clients, f"{test}_{model}"))
    if not len(found) or not np.isfinite(found).all():
        raise ConfigError(
            f"{folder.path} has no {TESTS[test]} of {model} for every client; run `edgefl simulate` to the "
            "end, which measures on the common test set"
        )
    return found


def alone(folders: Sequence[Folder]) -> Chart:
    """Figure 1: local and global test of each client's own model, a box each alpha and test, a panel each
    data set and model.
    """
    panels: dict[str, dict[tuple[float, str], Vector]] = {}
    for name in sorted_values(data_name(folder) for folder in folders):
        own = [folder for folder in folders if data_name(folder) == name]
        for a in sorted_values(alpha(folder) for folder in own):
            for test in TESTS:
                boxes = [measured(folder, test, "mixture") for folder in own if alpha(folder) == a]
                panels.setdefault(name, {})[a, test] = np.concatenate(boxes)

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (name, found) in zip(grid, panels.items(), strict=True):
            alphas = sorted_values(a for a, _ in found)
            for (a, test), box in found.items():
                place = alphas.index(a) + (-0.18 if test == "expected" else 0.18)
                shade = PALETTE[0] if test == "expected" else PALETTE[1]
                axes.boxplot(
                    [box],
                    positions=[place],
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
            for i, label in enumerate(TESTS.values())
        ]
        grid[-1].legend(handles=marks)

    rows: list[Any] = [
        (
            name,
            a,
            TESTS[test],
            len(box),
            *(round(float(v), 3) for v in (*np.percentile(box, (10, 25, 50, 75, 90)), box.mean())),
        )
        for name, found in panels.items()
        for (a, test), box in found.items()
    ]
    said = "; ".join(
        f"alpha {a:g}, {TESTS[test]}: median {np.median(box):.1f}"
        for found in panels.values()
        for (a, test), box in found.items()
    )
    head = ("data", "alpha", "test", "clients", "10 %", "25 %", "median", "75 %", "90 %", "mean")
    return Chart(
        "pfl-moe-1",
        "Models trained alone",
        f"Per cent. {said}.",
        table(head, rows, _WHERE),
        draw,
        3.4 * len(panels) + 0.8,
        3.3,
    )


def federation(folders: Sequence[Folder]) -> Chart:
    """Figure 2: accuracy of the global model on the common test set over rounds, a line each alpha, a panel
    each data set and model.
    """
    panels: dict[str, dict[float, tuple[NDArray[np.int64], Vector]]] = {}
    for folder in folders:
        lines = model_lines(folder.records)
        if "global" not in lines:
            raise ConfigError(
                f"{folder.path} was not evaluated between rounds; simulate with --evaluate-every 1"
            )
        panels.setdefault(data_name(folder), {})[alpha(folder)] = lines["global"]

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (name, found) in zip(grid, panels.items(), strict=True):
            for place, (a, (x, y)) in enumerate(sorted(found.items())):
                axes.plot(
                    x,
                    100 * y,
                    color=PALETTE[place % len(PALETTE)],
                    linestyle=DASHES[place % len(DASHES)],
                    label=f"alpha {a:g}",
                    marker="o" if len(x) < 3 else None,
                )
            axes.set(xlabel="round", title=name)
            whole(axes)
        grid[0].set_ylabel("global test accuracy, per cent")
        grid[-1].legend()

    said = "; ".join(
        f"alpha {a:g}: {100 * y[-1]:.1f} after round {x[-1]}"
        for found in panels.values()
        for a, (x, y) in sorted(found.items())
    )
    rows: list[Any] = [
        (name, a, int(r), round(100 * float(v), 3))
        for name, found in panels.items()
        for a, (x, y) in sorted(found.items())
        for r, v in zip(x, y, strict=True)
    ]
    head = ("data", "alpha", "round", "global test accuracy, per cent")
    return Chart(
        "pfl-moe-2",
        "FedAvg over rounds",
        f"Per cent. {said}.",
        table(head, rows, RunFiles.rounds.name),
        draw,
        3.6 * len(panels) + 0.8,
        3.2,
    )


@dataclass(frozen=True)
class Gain:
    """Of each client: FedAvg's local test in per cent, and how many points above FedAvg the two are in one
    test, float64[clients].
    """

    algorithm: str
    test: str
    fedavg: Vector
    adapted: Vector
    mixture: Vector

    @property
    def better(self) -> NDArray[np.bool_]:
        """Where the mixture is at least as good as the adapted classifier alone."""
        return np.asarray(self.mixture >= self.adapted)


def gain(folder: Folder, test: str) -> Gain:
    """Return the gains of PFL-FB and of the folder's mixture over FedAvg in a test.

    ConfigError where they were not measured.
    """
    base = measured(folder, test, "federated")
    adapted, mixture = (measured(folder, test, model) - base for model in ("adapted", "mixture"))
    return Gain(folder.algorithm.upper(), test, measured(folder, "expected", "federated"), adapted, mixture)


def gains(folders: Sequence[Folder]) -> Chart:
    """Figures 3 to 5: gain of PFL-FB (circles) and PFL-MF or PFL-MFE (triangles) over FedAvg, by FedAvg's
    local test; four panels.
    """
    runs = sorted(folders, key=lambda folder: folder.algorithm)
    if len({folder.algorithm for folder in runs}) != len(runs):
        raise ConfigError(
            f"{len(runs)} runs of {runs[0].algorithm}, expected one of pfl-mf and one of pfl-mfe at most; "
            "give one of each"
        )
    found = [gain(folder, test) for test in TESTS for folder in runs]

    def draw(figure: Any) -> None:
        grid = figure.subplots(2, len(runs), squeeze=False, sharex=True)
        for letter, axes, each in zip("abcd", grid.ravel(), found, strict=False):
            up = each.better
            axes.axhline(0, color=INK, linewidth=0.8)
            axes.plot(
                each.fedavg,
                each.adapted,
                "o",
                color=PALETTE[6],
                markersize=3.5,
                markerfacecolor="none",
                label="PFL-FB",
            )
            axes.plot(
                each.fedavg[up],
                each.mixture[up],
                "^",
                color=PALETTE[0],
                markersize=4,
                label=f"{each.algorithm}, not below PFL-FB",
            )
            axes.plot(
                each.fedavg[~up],
                each.mixture[~up],
                "v",
                color=PALETTE[1],
                markersize=4,
                label=f"{each.algorithm}, below PFL-FB",
            )
            axes.set_title(f"({letter}) {TESTS[each.test]}, {each.algorithm}")
        for axes in grid[-1]:
            axes.set_xlabel("local test of FedAvg, per cent")
        for axes in grid[:, 0]:
            axes.set_ylabel("points above FedAvg")
        for axes in grid[0]:
            axes.legend(fontsize=6.5)

    said = "; ".join(
        f"{each.algorithm}, {TESTS[each.test]}: {int(each.better.sum())} of {len(each.better)} clients not "
        "below PFL-FB"
        for each in found
    )
    rows: list[Any] = [
        (TESTS[each.test], each.algorithm, *(round(float(v), 3) for v in row))
        for each in found
        for row in zip(each.fedavg, each.adapted, each.mixture, strict=True)
    ]
    head = ("test", "algorithm", "local test of FedAvg", "PFL-FB, points above", "mixture, points above")
    title = f"Gain over FedAvg, {data_name(runs[0])}, alpha {folder_alpha(runs[0])}"
    return Chart(
        "pfl-moe-gain", title, f"{said}.", table(head, rows, _WHERE), draw, 3.5 * len(runs) + 0.6, 5.4
    )


def folder_alpha(folder: Folder) -> str:
    """Return alpha as text, a dash where the partition has none."""
    value = folder.partition("alpha")
    return "-" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)

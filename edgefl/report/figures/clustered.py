"""Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered Federated
Learning: figures 3 to 6.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import ConfigError, StateError
from edgefl.report.chart import Chart, table
from edgefl.report.clusters import draw_matrix
from edgefl.report.curves import client_values, whole
from edgefl.report.drawing import DASHES, PALETTE, shortened
from edgefl.report.figures.common import options, sorted_values
from edgefl.report.folder import Folder, index, labels, number
from edgefl.storage.run_directory import RunFiles

Matrix = NDArray[np.float64]
MOST_EPOCHS = 5


def layer_maps(folder: Folder) -> tuple[list[int], list[str], dict[str, Matrix]]:
    """Return (epochs, clients, similarity float64[epochs, clients, clients] by kind): of dense layers, of
    others in the mean.

    Clients are sorted by their true cluster. ConfigError when the run has no layers.json, StateError when
    that is damaged.
    """
    told = folder.layers
    if told is None:
        raise ConfigError(f"{folder.path} has no {RunFiles.layers.name}; simulate with --layers-over 4, say")
    try:
        clients = [str(client) for client in told["clients"]]
        epochs = [int(epoch) for epoch in told["epochs"]]
        shape = (len(epochs), len(clients), len(clients))
        dense = np.array(told["compared"], np.float64).reshape(shape)
        others = [
            np.array(each, np.float64).reshape(shape)
            for name, each in told["layers"].items()
            if name not in told["dense"]
        ]
        order = np.lexsort((clients, told["truth"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"{RunFiles(folder.path).layers} is damaged: {error!r}; simulate again with --layers-over"
        ) from error
    found = {"other layers": np.mean(others, axis=0)} if others else {}
    found["dense layers"] = dense
    return (
        epochs,
        [clients[i] for i in order],
        {name: each[:, order][:, :, order] for name, each in found.items()},
    )


def heat_maps(folders: Sequence[Folder]) -> Chart:
    """Figure 3: a row each run and kind of layer, a column each epoch of training alone."""
    every = [(name, *layer_maps(folder)) for name, folder in zip(labels(folders), folders, strict=True)]
    lines = [
        (name, kind, epochs, clients, maps)
        for name, epochs, clients, found in every
        for kind, maps in found.items()
    ]
    low = min(float(maps.min()) for *_, maps in lines)
    columns = min(MOST_EPOCHS, max(len(epochs) for _, _, epochs, _, _ in lines))

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(lines), columns, squeeze=False)
        for row, (name, kind, epochs, clients, maps) in zip(grid, lines, strict=True):
            shown = _spread(len(epochs), columns)
            for axes, i in zip(row, shown, strict=False):
                image = draw_matrix(axes, maps[i], clients if axes is row[0] else [], low=low)
                axes.set_xticks([])
                axes.set_title(f"epoch {epochs[i]}", fontsize=8, pad=2)
            for axes in row[len(shown) :]:
                axes.set_axis_off()
            row[0].set_ylabel(kind if len(every) == 1 else f"{shortened(name, 16)}\n{kind}", fontsize=7.5)
        figure.colorbar(image, ax=grid, label="cosine similarity", fraction=0.03)

    said = " ".join(
        f"{name}, {kind}: mean similarity {_apart(maps[0]):.3f} after epoch {epochs[0]}, "
        f"{_apart(maps[-1]):.3f} after epoch {epochs[-1]}."
        for name, kind, epochs, _, maps in lines
    )
    rows: list[Any] = [
        (name, kind, epochs[e], clients[i], clients[j], float(maps[e, i, j]))
        for name, kind, epochs, clients, maps in lines
        for e in range(len(epochs))
        for i, j in zip(*np.triu_indices(len(clients), 1), strict=True)
    ]
    head = ("run", "layers", "epoch", "client", "and", "cosine similarity")
    return Chart(
        "clustered-3",
        "How alike layers are",
        said,
        table(head, rows, RunFiles.layers.name),
        draw,
        1.6 + 1.5 * columns,
        0.4 + 1.55 * len(lines),
    )


def _apart(matrix: Matrix) -> float:
    return float(matrix[np.triu_indices(len(matrix), 1)].mean()) if len(matrix) > 1 else 1.0


def _spread(count: int, most: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most)).round()})


def pairs(folder: Folder) -> tuple[list[int], list[str], Matrix]:
    """Return (epochs, names of pairs of clients, similarity of their dense layers float64[epochs, pairs])."""
    epochs, clients, found = layer_maps(folder)
    first, second = np.triu_indices(len(clients), 1)
    return (
        epochs,
        [f"{clients[i]}, {clients[j]}" for i, j in zip(first, second, strict=True)],
        found["dense layers"][:, first, second],
    )


def pair_lines(folders: Sequence[Folder]) -> Chart:
    """Figure 4: similarity over pairs, a line each epoch, a panel each run."""
    every = [(name, *pairs(folder)) for name, folder in zip(labels(folders), folders, strict=True)]

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(every), 1, squeeze=False)[:, 0]
        for axes, (name, epochs, names, found) in zip(grid, every, strict=True):
            for place, i in enumerate(_spread(len(epochs), MOST_EPOCHS)):
                axes.plot(
                    np.arange(len(names)),
                    found[i],
                    color=PALETTE[place],
                    linestyle=DASHES[place % len(DASHES)],
                    linewidth=1.1,
                    label=f"epoch {epochs[i]}",
                )
            axes.set(
                ylabel="cosine similarity",
                xlabel="pair of clients",
                title=shortened(name) if len(every) > 1 else "",
            )
            whole(axes)
        grid[0].legend(
            ncols=5, loc="lower left", bbox_to_anchor=(0, 1.0 if len(every) == 1 else 1.12), borderaxespad=0.1
        )

    said = " ".join(
        f"{name}: the ranks of {len(names)} pairs after epoch {epochs[0]} and epoch {epochs[-1]} correlate "
        f"by {_correlation(found):.2f}."
        for name, epochs, names, found in every
    )
    rows: list[Any] = [
        (n, names[j], epochs[i], float(found[i, j]))
        for n, epochs, names, found in every
        for i in range(len(epochs))
        for j in range(len(names))
    ]
    return Chart(
        "clustered-4",
        "Similarity of dense layers",
        said,
        table(("run", "pair", "epoch", "cosine similarity"), rows, RunFiles.layers.name),
        draw,
        6.6,
        0.5 + 2.3 * len(every),
    )


def _correlation(found: Matrix) -> float:
    ranks = [
        np.argsort(np.argsort(found[i], kind="stable"), kind="stable").astype(np.float64) for i in (0, -1)
    ]
    return float(np.atleast_2d(np.corrcoef(np.stack(ranks)))[0, 1]) if found.shape[1] > 1 else float("nan")


Key = tuple[int, bool, float]


def by_mixing(
    folders: Sequence[Folder], key: str
) -> dict[Key, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return (rounds, mean over clients and runs of a figure) by (tasks a client, whether clustered,
    lambda).
    """
    found: dict[Key, dict[int, list[float]]] = {}
    for folder in folders:
        own = options(folder)
        tasks = number(folder.partition("tasks"))
        place = (max(index(tasks), 0), bool(own.get("clustering", True)), number(own.get("mixing")))
        told = {record["round"]: list(client_values(record, key).values()) for record in folder.records}
        if not any(told.values()):
            raise ConfigError(
                f"{folder.path} was not evaluated between rounds; simulate with --evaluate-every 1"
            )
        for round, values in told.items():
            if values:
                found.setdefault(place, {}).setdefault(round, []).append(float(np.mean(values)))
    return {
        place: (np.array(sorted(own), np.int64), np.array([float(np.mean(own[r])) for r in sorted(own)]))
        for place, own in sorted(found.items())
    }


def _over_rounds(
    folders: Sequence[Folder], figure_name: str, key: str, title: str, label: str, scale: float
) -> Chart:
    found = by_mixing(folders, key)
    tasks = sorted_values(place[0] for place in found)
    rates = sorted_values(place[2] for place in found)

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for axes, count in zip(grid, tasks, strict=True):
            for (own, clustering, mixing), (x, y) in found.items():
                if own == count:
                    shade = PALETTE[rates.index(mixing) % len(PALETTE)]
                    name = f"lambda {mixing:g}, {'clusters' if clustering else 'none'}"
                    dashes = "-" if clustering else DASHES[1]
                    axes.plot(
                        x,
                        scale * y,
                        color=shade,
                        linestyle=dashes,
                        label=name,
                        marker="o" if len(x) < 3 else None,
                    )
            axes.set(xlabel="round", title=f"{count} tasks a client" if count else "")
            whole(axes)
        grid[0].set_ylabel(label)
        grid[-1].legend(fontsize=7)

    said = "; ".join(
        f"{f'{own} tasks, ' if own else ''}lambda {mixing:g}, {'clusters' if clustering else 'none'}: "
        f"{scale * y[-1]:.3g}"
        for (own, clustering, mixing), (_, y) in found.items()
    )
    rows: list[Any] = [
        (own or None, "clusters" if clustering else "none", mixing, int(r), round(scale * float(v), 4))
        for (own, clustering, mixing), (x, y) in found.items()
        for r, v in zip(x, y, strict=True)
    ]
    head = ("tasks", "way", "lambda", "round", label)
    return Chart(
        figure_name,
        title,
        f"In the last round, {said}.",
        table(head, rows, RunFiles.rounds.name),
        draw,
        3.9 * len(tasks) + 0.6,
        3.3,
    )


def loss(folders: Sequence[Folder]) -> Chart:
    """Figure 5: mean loss over clients on their held-out samples.

    The paper has a validation set of its own for it.
    """
    return _over_rounds(folders, "clustered-5", "loss_mixture", "Test loss", "test loss", 1.0)


def accuracy(folders: Sequence[Folder]) -> Chart:
    """Figure 6: mean accuracy over clients on their held-out samples."""
    return _over_rounds(
        folders, "clustered-6", "accuracy_mixture", "Test accuracy", "test accuracy, per cent", 100.0
    )

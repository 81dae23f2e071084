"""Figures 3 to 6 of the paper on adaptive clustered federated learning.

Source: Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered
Federated Learning.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError, StateError
from edgefl.base.storage.run_directory import RunFiles
from edgefl.lab.figures.common import read_options, sort_unique
from edgefl.watch.report.chart import Chart, make_table
from edgefl.watch.report.clusters import draw_matrix
from edgefl.watch.report.curves import read_client_values, set_integer_ticks
from edgefl.watch.report.drawing import DASHES, PALETTE, shorten_name
from edgefl.watch.report.folder import Folder, label_folders, to_index, to_number

Matrix = NDArray[np.float64]
MAX_EPOCHS_SHOWN = 5


def read_layer_similarities(folder: Folder) -> tuple[list[int], list[str], dict[str, Matrix]]:
    """Return the similarity of clients by epoch, for dense layers and for other layers.

    Clients are sorted by their true cluster. The similarity of other layers is a mean.

    Returns:
        The epochs, the client ids, and by kind of layer the cosine similarity, shape (epochs, clients,
            clients), float64.

    Raises:
        ConfigError: the run has no layers.json.
        StateError: layers.json is damaged.
    """
    stored = folder.layers
    if stored is None:
        raise ConfigError(
            f"{folder.path} has no {RunFiles.layers.name}; simulate with --layers-over 4, for example"
        )
    try:
        clients = [str(client) for client in stored["clients"]]
        epochs = [int(epoch) for epoch in stored["epochs"]]
        shape = (len(epochs), len(clients), len(clients))
        dense = np.array(stored["compared"], np.float64).reshape(shape)
        others = [
            np.array(matrices, np.float64).reshape(shape)
            for name, matrices in stored["layers"].items()
            if name not in stored["dense"]
        ]
        order = np.lexsort((clients, stored["truth"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"{RunFiles(folder.path).layers} is damaged: {error!r}; simulate again with --layers-over"
        ) from error
    by_kind = {"other layers": np.mean(others, axis=0)} if others else {}
    by_kind["dense layers"] = dense
    return (
        epochs,
        [clients[i] for i in order],
        {name: matrices[:, order][:, :, order] for name, matrices in by_kind.items()},
    )


def chart_layer_similarity(folders: Sequence[Folder]) -> Chart:
    """Return figure 3: a row per run and kind of layer, and a column per epoch of training alone.

    Raises:
        ConfigError: a run has no layers.json.
        StateError: layers.json is damaged.
    """
    runs = [
        (name, *read_layer_similarities(folder))
        for name, folder in zip(label_folders(folders), folders, strict=True)
    ]
    panels = [
        (name, kind, epochs, clients, maps)
        for name, epochs, clients, by_kind in runs
        for kind, maps in by_kind.items()
    ]
    low = min(float(maps.min()) for *_, maps in panels)
    columns = min(MAX_EPOCHS_SHOWN, max(len(epochs) for _, _, epochs, _, _ in panels))

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(panels), columns, squeeze=False)
        for row, (name, kind, epochs, clients, maps) in zip(grid, panels, strict=True):
            shown = _spread_indices(len(epochs), columns)
            for axes, i in zip(row, shown, strict=False):
                image = draw_matrix(axes, maps[i], clients if axes is row[0] else [], low=low)
                axes.set_xticks([])
                axes.set_title(f"epoch {epochs[i]}", fontsize=8, pad=2)
            for axes in row[len(shown) :]:
                axes.set_axis_off()
            row[0].set_ylabel(kind if len(runs) == 1 else f"{shorten_name(name, 16)}\n{kind}", fontsize=7.5)
        figure.colorbar(image, ax=grid, label="cosine similarity", fraction=0.03)

    alt = " ".join(
        f"{name}, {kind}: mean similarity {_average_similarity(maps[0]):.3f} after epoch {epochs[0]}, "
        f"{_average_similarity(maps[-1]):.3f} after epoch {epochs[-1]}."
        for name, kind, epochs, _, maps in panels
    )
    rows: list[Any] = [
        (name, kind, epochs[e], clients[i], clients[j], float(maps[e, i, j]))
        for name, kind, epochs, clients, maps in panels
        for e in range(len(epochs))
        for i, j in zip(*np.triu_indices(len(clients), 1), strict=True)
    ]
    head = ("run", "layers", "epoch", "client", "and", "cosine similarity")
    return Chart(
        name="clustered-3",
        title="Similarity of layers",
        alt=alt,
        table=make_table(head, rows, RunFiles.layers.name),
        draw=draw,
        width=1.6 + 1.5 * columns,
        height=0.4 + 1.55 * len(panels),
    )


def _average_similarity(matrix: Matrix) -> float:
    return float(matrix[np.triu_indices(len(matrix), 1)].mean()) if len(matrix) > 1 else 1.0


def _spread_indices(count: int, max_count: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, max_count)).round()})


def read_pair_similarities(folder: Folder) -> tuple[list[int], list[str], Matrix]:
    """Return the similarity of dense layers for each pair of clients.

    Returns:
        The epochs, the names of the pairs, and the cosine similarity, shape (epochs, pairs), float64.

    Raises:
        ConfigError: the run has no layers.json.
        StateError: layers.json is damaged.
    """
    epochs, clients, by_kind = read_layer_similarities(folder)
    first, second = np.triu_indices(len(clients), 1)
    return (
        epochs,
        [f"{clients[i]}, {clients[j]}" for i, j in zip(first, second, strict=True)],
        by_kind["dense layers"][:, first, second],
    )


def chart_pair_similarity(folders: Sequence[Folder]) -> Chart:
    """Return figure 4: similarity over pairs, with a line per epoch and a panel per run.

    Raises:
        ConfigError: a run has no layers.json.
        StateError: layers.json is damaged.
    """
    runs = [
        (name, *read_pair_similarities(folder))
        for name, folder in zip(label_folders(folders), folders, strict=True)
    ]

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(runs), 1, squeeze=False)[:, 0]
        for axes, (name, epochs, names, matrix) in zip(grid, runs, strict=True):
            for position, i in enumerate(_spread_indices(len(epochs), MAX_EPOCHS_SHOWN)):
                axes.plot(
                    np.arange(len(names)),
                    matrix[i],
                    color=PALETTE[position],
                    linestyle=DASHES[position % len(DASHES)],
                    linewidth=1.1,
                    label=f"epoch {epochs[i]}",
                )
            axes.set(
                ylabel="cosine similarity",
                xlabel="pair of clients",
                title=shorten_name(name) if len(runs) > 1 else "",
            )
            set_integer_ticks(axes)
        grid[0].legend(
            ncols=5, loc="lower left", bbox_to_anchor=(0, 1.0 if len(runs) == 1 else 1.12), borderaxespad=0.1
        )

    alt = " ".join(
        f"{name}: the ranks of {len(names)} pairs after epoch {epochs[0]} and epoch {epochs[-1]} have a "
        f"correlation of {_correlate_ranks(matrix):.2f}."
        for name, epochs, names, matrix in runs
    )
    rows: list[Any] = [
        (n, names[j], epochs[i], float(matrix[i, j]))
        for n, epochs, names, matrix in runs
        for i in range(len(epochs))
        for j in range(len(names))
    ]
    return Chart(
        name="clustered-4",
        title="Similarity of dense layers",
        alt=alt,
        table=make_table(("run", "pair", "epoch", "cosine similarity"), rows, RunFiles.layers.name),
        draw=draw,
        width=6.6,
        height=0.5 + 2.3 * len(runs),
    )


def _correlate_ranks(matrix: Matrix) -> float:
    ranks = [
        np.argsort(np.argsort(matrix[i], kind="stable"), kind="stable").astype(np.float64) for i in (0, -1)
    ]
    return float(np.atleast_2d(np.corrcoef(np.stack(ranks)))[0, 1]) if matrix.shape[1] > 1 else float("nan")


MixingKey = tuple[int, bool, float]


def average_by_mixing(
    folders: Sequence[Folder], key: str
) -> dict[MixingKey, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return a figure over the rounds, as a mean over clients and then over runs of the same kind.

    Args:
        folders: the runs.
        key: name of the figure in the records.

    Returns:
        By (tasks per client, whether clustered, lambda), the rounds, shape (n,), int64, and the means, shape
            (n,), float64.

    Raises:
        ConfigError: a run was not evaluated between rounds.
    """
    series: dict[MixingKey, dict[int, list[float]]] = {}
    for folder in folders:
        settings = read_options(folder)
        tasks = to_number(folder.find_partition_option("tasks"))
        series_key = (
            max(to_index(tasks), 0),
            bool(settings.get("clustering", True)),
            to_number(settings.get("mixing")),
        )
        values_by_round = {
            record["round"]: list(read_client_values(record, key).values()) for record in folder.records
        }
        if not any(values_by_round.values()):
            raise ConfigError(
                f"{folder.path} was not evaluated between rounds; simulate with --evaluate-every 1"
            )
        for round, values in values_by_round.items():
            if values:
                series.setdefault(series_key, {}).setdefault(round, []).append(float(np.mean(values)))
    return {
        series_key: (
            np.array(sorted(settings), np.int64),
            np.array([float(np.mean(settings[r])) for r in sorted(settings)]),
        )
        for series_key, settings in sorted(series.items())
    }


def _chart_over_rounds(
    folders: Sequence[Folder], figure_name: str, key: str, title: str, label: str, scale: float
) -> Chart:
    series = average_by_mixing(folders, key)
    tasks = sort_unique(series_key[0] for series_key in series)
    rates = sort_unique(series_key[2] for series_key in series)

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for axes, count in zip(grid, tasks, strict=True):
            for (num_tasks, clustering, mixing), (x, y) in series.items():
                if num_tasks == count:
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
            set_integer_ticks(axes)
        grid[0].set_ylabel(label)
        grid[-1].legend(fontsize=7)

    alt = "; ".join(
        f"{f'{num_tasks} tasks, ' if num_tasks else ''}lambda {mixing:g}, "
        f"{'clusters' if clustering else 'none'}: {scale * y[-1]:.3g}"
        for (num_tasks, clustering, mixing), (_, y) in series.items()
    )
    rows: list[Any] = [
        (num_tasks or None, "clusters" if clustering else "none", mixing, int(r), round(scale * float(v), 4))
        for (num_tasks, clustering, mixing), (x, y) in series.items()
        for r, v in zip(x, y, strict=True)
    ]
    head = ("tasks", "way", "lambda", "round", label)
    return Chart(
        name=figure_name,
        title=title,
        alt=f"In the last round, {alt}.",
        table=make_table(head, rows, RunFiles.rounds.name),
        draw=draw,
        width=3.9 * len(tasks) + 0.6,
        height=3.3,
    )


def chart_test_loss(folders: Sequence[Folder]) -> Chart:
    """Return figure 5: mean loss over clients on their held-out samples.

    The paper uses a separate validation set.

    Raises:
        ConfigError: a run was not evaluated between rounds.
    """
    return _chart_over_rounds(folders, "clustered-5", "loss_mixture", "Test loss", "test loss", 1.0)


def chart_test_accuracy(folders: Sequence[Folder]) -> Chart:
    """Return figure 6: mean accuracy over clients on their held-out samples.

    Raises:
        ConfigError: a run was not evaluated between rounds.
    """
    return _chart_over_rounds(
        folders, "clustered-6", "accuracy_mixture", "Test accuracy", "test accuracy, per cent", 100.0
    )

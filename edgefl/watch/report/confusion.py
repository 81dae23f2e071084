"""Charts of the confusion between classes, for the clients' models on their own held-out samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import StateError
from edgefl.base.storage.run_directory import RunFiles
from edgefl.watch.report.chart import Chart, MissingChart, Section, SectionPart, make_table
from edgefl.watch.report.drawing import SEQUENTIAL, shorten_name
from edgefl.watch.report.folder import SIMULATION_FOLDER, Folder, JsonObject

ConfusionCounts = NDArray[np.int64]
MAX_CLIENT_MATRICES = 12
MAX_CONFUSION_CLASSES = 1000


def read_confusions(clients: Sequence[JsonObject]) -> dict[str, ConfusionCounts]:
    """Return the confusion matrix of each client that has one.

    Returns:
        By client, the number of samples with the class of the row that were predicted as the class of the
            column, shape (classes, classes), int64.

    Raises:
        StateError: a row is not a list of [true, predicted, count].
    """
    cells_by_client = {}
    for row in clients:
        stored = row.get("confusion")
        if stored is None:
            continue
        cells = (
            np.asarray(stored)
            if isinstance(stored, list) and all(isinstance(cell, list) and len(cell) == 3 for cell in stored)
            else None
        )
        if cells is None or (
            len(cells)
            and (cells.dtype.kind != "i" or cells.min() < 0 or cells[:, :2].max() >= MAX_CONFUSION_CLASSES)
        ):
            raise StateError(
                f"the confusion of {shorten_name(row['id'])} is not a list of [true, predicted, count]; "
                "simulate again"
            )
        cells_by_client[row["id"]] = cells.reshape(-1, 3).astype(np.int64)
    classes = max(
        (int(cells[:, :2].max()) + 1 for cells in cells_by_client.values() if len(cells)), default=0
    )
    return (
        {client: _fill_matrix(cells, classes) for client, cells in cells_by_client.items()} if classes else {}
    )


def _fill_matrix(cells: ConfusionCounts, classes: int) -> ConfusionCounts:
    matrix = np.zeros((classes, classes), np.int64)
    np.add.at(matrix, (cells[:, 0], cells[:, 1]), cells[:, 2])
    return matrix


def normalize_rows(counts: ConfusionCounts) -> NDArray[np.float64]:
    """Return the counts divided by the sum of their row.

    Args:
        counts: shape (classes, classes), int64.

    Returns:
        Shares, shape (classes, classes), float64. The row of a class without samples is NaN.
    """
    totals = counts.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0))


def build_section(folder: Folder) -> Section:
    """Return the section on confusion.

    Raises:
        StateError: the confusion of a client is damaged.
    """
    matrices = read_confusions(folder.clients)
    if not matrices:
        why = (
            "the run is unfinished, or from an older version of edgefl. Simulate again to get it"
            if folder.kind == SIMULATION_FOLDER
            else "devices do not publish which classes they confuse. A simulation of the federation shows it"
        )
        return Section("confusion", "Confusion", (MissingChart("Confusion matrix", why),))
    total = np.sum(list(matrices.values()), axis=0)
    return Section("confusion", "Confusion", (_chart_total(total, len(matrices)), _chart_clients(matrices)))


def draw_confusion(axes: Any, counts: ConfusionCounts, *, numbers: bool) -> Any:
    """Draw one confusion matrix, shaded by the share of the row, and return the image.

    Args:
        axes: matplotlib axes.
        counts: shape (classes, classes), int64.
        numbers: whether the cells show their counts.
    """
    part = normalize_rows(counts)
    image = axes.imshow(100 * part, cmap=SEQUENTIAL, vmin=0, vmax=100)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if numbers:
        for (y, x), count in np.ndenumerate(counts):
            if count:
                axes.text(
                    x,
                    y,
                    str(count),
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="black" if part[y, x] > 0.55 else "white",
                )
    return image


def _chart_total(total: ConfusionCounts, clients: int) -> SectionPart:
    classes = len(total)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        image = draw_confusion(axes, total, numbers=classes <= 12)
        if classes <= 20:
            axes.set_xticks(range(classes))
            axes.set_yticks(range(classes))
        axes.set(xlabel="predicted class", ylabel="true class", aspect="auto")
        figure.colorbar(image, ax=axes, label="per cent of the true class", fraction=0.05, pad=0.02)

    num_correct = int(np.trace(total))
    errors = total - np.diag(np.diag(total))
    alt = (
        f"{num_correct} of {int(total.sum())} held-out samples of {clients} clients are classified correctly"
    )
    if errors.any():
        true, predicted = (int(i) for i in np.unravel_index(int(errors.argmax()), errors.shape))
        alt += (
            f". The most frequent error: class {true} predicted as {predicted}, "
            f"{int(errors[true, predicted])} times"
        )
    head = ("true class", *(f"as {c}" for c in range(classes)))
    rows: list[Any] = [(c, *(int(v) for v in row)) for c, row in enumerate(total)]
    return Chart(
        name="confusion",
        title="Confusion matrix, all clients",
        alt=f"{alt}.",
        table=make_table(head, rows, RunFiles.confusion.name),
        draw=draw,
        height=3.8,
        note="The clients' own models on their own held-out samples, summed over clients.",
    )


def _chart_clients(matrices: dict[str, ConfusionCounts]) -> SectionPart:
    shown = list(matrices.items())[:MAX_CLIENT_MATRICES]
    columns = min(4, len(shown))
    num_rows = -(-len(shown) // columns)

    def draw(figure: Any) -> None:
        grid = figure.subplots(num_rows, columns, squeeze=False).ravel()
        for axes, (client, counts) in zip(grid, shown, strict=False):
            draw_confusion(axes, counts, numbers=False)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(shorten_name(client, 14), fontsize=7.5, pad=2)
        for axes in grid[len(shown) :]:
            axes.set_axis_off()

    worst = min(matrices, key=lambda client: np.trace(matrices[client]) / max(1, matrices[client].sum()))
    alt = (
        f"Rows are true classes, columns are predicted classes, and brighter is more. {shorten_name(worst)} "
        f"has the lowest accuracy: {int(np.trace(matrices[worst]))} of {int(matrices[worst].sum())}."
    )
    cells: list[Any] = [
        (client, int(true), int(predicted), int(counts[true, predicted]))
        for client, counts in matrices.items()
        for true, predicted in np.argwhere(counts)
    ]
    note = (
        f"The first {len(shown)} of {len(matrices)} clients. The table has all of them."
        if len(matrices) > len(shown)
        else ""
    )
    data = make_table(("client", "true class", "predicted", "samples"), cells, RunFiles.confusion.name)
    return Chart(
        name="confusions",
        title="Confusion matrix of each client",
        alt=alt,
        table=data,
        draw=draw,
        height=0.4 + 1.25 * num_rows,
        note=note,
    )

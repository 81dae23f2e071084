"""Which classes the clients' models take for which, on their own held-out samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import StateError
from edgefl.report.chart import Chart, Missing, Part, Section, table
from edgefl.report.drawing import SEQUENTIAL, shortened
from edgefl.report.folder import SIMULATION, Folder, Row
from edgefl.storage.run_directory import RunFiles

Counts = NDArray[np.int64]
MOST_CLIENTS = 12
MOST_CLASSES = 1000


def confusions(clients: Sequence[Row]) -> dict[str, Counts]:
    """Return int64[classes, classes] by client: how many samples of the class of the row were taken for that
    of the column.

    Clients without it are left out; StateError when what a row holds is no list of [true, predicted, count].
    """
    found = {}
    for row in clients:
        told = row.get("confusion")
        if told is None:
            continue
        cells = (
            np.asarray(told)
            if isinstance(told, list) and all(isinstance(each, list) and len(each) == 3 for each in told)
            else None
        )
        if cells is None or (
            len(cells) and (cells.dtype.kind != "i" or cells.min() < 0 or cells[:, :2].max() >= MOST_CLASSES)
        ):
            raise StateError(
                f"the confusion of {shortened(row['id'])} is no list of [true, predicted, count]; simulate "
                "again"
            )
        found[row["id"]] = cells.reshape(-1, 3).astype(np.int64)
    classes = max((int(cells[:, :2].max()) + 1 for cells in found.values() if len(cells)), default=0)
    return {client: _dense(cells, classes) for client, cells in found.items()} if classes else {}


def _dense(cells: Counts, classes: int) -> Counts:
    matrix = np.zeros((classes, classes), np.int64)
    np.add.at(matrix, (cells[:, 0], cells[:, 1]), cells[:, 2])
    return matrix


def shares(counts: Counts) -> NDArray[np.float64]:
    """Return each row over its sum, float64[classes, classes]; NaN in the row of a class without samples."""
    totals = counts.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0))


def section(folder: Folder) -> Section:
    """Return the confusion of a folder's clients."""
    found = confusions(folder.clients)
    if not found:
        why = (
            "this run is from before edgefl kept it, or is not done; simulate again"
            if folder.kind == SIMULATION
            else "which classes a device confuses stays on the device; a simulation of the federation tells "
            "it"
        )
        return Section("confusion", "Confusion", (Missing("Confusion matrix", why),))
    total = np.sum(list(found.values()), axis=0)
    return Section("confusion", "Confusion", (_summed(total, len(found)), _each(found)))


def draw_confusion(axes: Any, counts: Counts, *, numbers: bool) -> Any:
    """Draw one matrix, shaded by the share of the row; numbers: with the counts in it."""
    part = shares(counts)
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


def _summed(total: Counts, clients: int) -> Part:
    classes = len(total)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        image = draw_confusion(axes, total, numbers=classes <= 12)
        if classes <= 20:
            axes.set_xticks(range(classes))
            axes.set_yticks(range(classes))
        axes.set(xlabel="predicted class", ylabel="true class", aspect="auto")
        figure.colorbar(image, ax=axes, label="per cent of the true class", fraction=0.05, pad=0.02)

    right = int(np.trace(total))
    apart = total - np.diag(np.diag(total))
    said = f"{right} of {int(total.sum())} held-out samples of {clients} clients are told right"
    if apart.any():
        true, taken = (int(i) for i in np.unravel_index(int(apart.argmax()), apart.shape))
        said += f"; most often class {true} is taken for class {taken}, {int(apart[true, taken])} times"
    head = ("true class", *(f"as {c}" for c in range(classes)))
    rows: list[Any] = [(c, *(int(v) for v in row)) for c, row in enumerate(total)]
    return Chart(
        "confusion",
        "Confusion matrix, all clients",
        f"{said}.",
        table(head, rows, RunFiles.confusion.name),
        draw,
        height=3.8,
        note="The clients' own models on their own held-out samples, counts summed over clients.",
    )


def _each(found: dict[str, Counts]) -> Part:
    shown = list(found.items())[:MOST_CLIENTS]
    columns = min(4, len(shown))
    lines = -(-len(shown) // columns)

    def draw(figure: Any) -> None:
        grid = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, (client, counts) in zip(grid, shown, strict=False):
            draw_confusion(axes, counts, numbers=False)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(shortened(client, 14), fontsize=7.5, pad=2)
        for axes in grid[len(shown) :]:
            axes.set_axis_off()

    worst = min(found, key=lambda client: np.trace(found[client]) / max(1, found[client].sum()))
    said = (
        f"Rows are true classes, columns predicted ones, brighter is more. {shortened(worst)} is right least "
        f"often: {int(np.trace(found[worst]))} of {int(found[worst].sum())}."
    )
    cells: list[Any] = [
        (client, int(true), int(taken), int(counts[true, taken]))
        for client, counts in found.items()
        for true, taken in np.argwhere(counts)
    ]
    note = (
        f"The first {len(shown)} of {len(found)} clients; the table has all."
        if len(found) > len(shown)
        else ""
    )
    made = table(("client", "true class", "predicted", "samples"), cells, RunFiles.confusion.name)
    return Chart(
        "confusions",
        "Confusion matrix of each client",
        said,
        made,
        draw,
        height=0.4 + 1.25 * lines,
        note=note,
    )

"""Shows which client has how many samples of each class, as shades in a terminal or as a PNG."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError
from edgefl.base.system.files import write_atomic
from edgefl.data.dataset import Dataset
from edgefl.data.partitions.client_partition import ClientPartition

CountMatrix = NDArray[np.int64]
SHADES = " ░▒▓█"
MAX_CLIENTS_SHOWN = 24
TERMINAL_COLUMNS = 80


def count_classes(
    dataset: Dataset, client_partitions: Mapping[str, ClientPartition], part: str = "train"
) -> CountMatrix:
    """Count the samples of each class for each client, after relabelling.

    Args:
        part: "train" or "test".

    Returns:
        Counts, shape (num_clients, num_classes), int64.
    """
    labels = dataset.y_train if part == "train" else dataset.y_test
    rows = []
    for client_partition in client_partitions.values():
        y = labels[client_partition.train if part == "train" else client_partition.test]
        y = np.asarray(client_partition.relabel, np.int64)[y] if client_partition.relabel else y
        rows.append(np.bincount(y, minlength=dataset.num_classes))
    return np.array(rows, np.int64).reshape(-1, dataset.num_classes)


def count_turns(client_partitions: Mapping[str, ClientPartition]) -> CountMatrix | None:
    """Count the training samples of each client by their number of rotation steps.

    Returns:
        Counts, shape (num_clients, turns), int64, or None if no samples are rotated.
    """
    turns = [client.turns_train for client in client_partitions.values() if client.turns_train is not None]
    if not turns:
        return None
    count = 1 + max(int(client.max()) for client in turns)
    return np.array([np.bincount(client, minlength=count) for client in turns], np.int64)


def render_heatmap(
    counts: CountMatrix, ids: Sequence[str], clusters: Sequence[int], heading: str
) -> list[str]:
    """Return lines that show the share of each column in the samples of each client as a shade.

    A line has at most 80 columns. At most 24 clients are shown, evenly spaced. If the columns do not fit,
    neighbouring columns are summed.

    Args:
        counts: samples by client and column, shape (num_clients, columns), int64.
        clusters: the true cluster of each client, -1 if there is none.
    """
    label = max(len(name) for name in ids) + (4 if max(clusters) >= 0 else 0)
    room = TERMINAL_COLUMNS - label - 10
    cells = 2 if 2 * counts.shape[1] <= room else 1
    merged = -(-counts.shape[1] // room)
    padded = np.pad(counts, ((0, 0), (0, -counts.shape[1] % merged)))
    shares = padded.reshape(len(counts), -1, merged).sum(axis=2) / counts.sum(axis=1, keepdims=True)
    top = shares.max()
    levels = np.ceil(shares / top * (len(SHADES) - 1) - 1e-9).astype(np.int64)
    columns = f"{heading} 0 to {counts.shape[1] - 1}" + (f", {merged} per column" if merged > 1 else "")
    lines = [f"{'client':{label}} {'samples':>7}  {columns}"]
    for i in _choose_rows(len(counts)):
        name = ids[i] + (f" #{clusters[i]}" if clusters[i] >= 0 else "")
        lines.append(
            f"{name:{label}} {counts[i].sum():7d} ▕{''.join(SHADES[level] * cells for level in levels[i])}▏"
        )
    steps = ", ".join(f"{shade} to {top * (i + 1) / 4:.0%}" for i, shade in enumerate(SHADES[1:]))
    return [*lines, f"{steps} of a client's samples" + (" (#: true cluster)" if max(clusters) >= 0 else "")]


def _choose_rows(count: int) -> list[int]:
    return [int(i) for i in np.linspace(0, count - 1, min(count, MAX_CLIENTS_SHOWN)).round()]


def summarize_partition(train: CountMatrix, test: CountMatrix, dataset: Dataset) -> dict[str, Any]:
    """Return figures of a partition.

    Args:
        train: training samples by client and class, shape (num_clients, num_classes), int64.
        test: test samples, like `train`.

    Returns:
        The number of clients, `train_samples`, `test_samples` and `classes` per client as [minimum, median,
        maximum], and `train_used` and `test_used` as [used, total].
    """

    def summarize(values: NDArray[Any]) -> list[float]:
        return [float(np.min(values)), float(np.median(values)), float(np.max(values))]

    return {
        "clients": len(train),
        "train_samples": summarize(train.sum(axis=1)),
        "test_samples": summarize(test.sum(axis=1)),
        "classes": summarize((train > 0).sum(axis=1)),
        "train_used": [int(train.sum()), len(dataset.y_train)],
        "test_used": [int(test.sum()), len(dataset.y_test)],
    }


def plot_heatmap(path: Path, counts: CountMatrix, title: str, columns: str = "class") -> None:
    """Plot the samples of each client by class to a PNG file.

    Args:
        path: file to write.
        counts: samples by client and class, shape (num_clients, num_classes), int64.
        columns: label of the class axis.

    Raises:
        ConfigError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError as error:
        raise ConfigError(
            "--out needs matplotlib, which is not installed; run pip install -e '.[plots]'"
        ) from error
    clients, classes = counts.shape
    width, height = np.clip([2.5 + 0.22 * clients, 1.8 + 0.26 * classes], [6.5, 3.4], 14)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(counts.T, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    axes.set(xlabel="client", ylabel=columns)
    axes.set_title(textwrap.fill(title, int(12 * width)), fontsize=9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    figure.colorbar(image, ax=axes, label="training samples")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_atomic(path, buffer.getvalue())

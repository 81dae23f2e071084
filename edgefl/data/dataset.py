"""A labelled data set before it is shared out to clients."""

from dataclasses import dataclass, replace

import numpy as np

from edgefl.errors import DataError
from edgefl.rng import rng_for
from edgefl.types import Array, Labels


@dataclass(frozen=True)
class Dataset:
    """x_train: float32[n, *input_shape], pictures in [0, 1]; y_train: int64[n]; x_test, y_test likewise.

    group_train, group_test: int64[n], who wrote or wore each sample, where that is known.
    coarse: int64[num_classes], the superclass of each class, where there are superclasses.
    """

    x_train: Array
    y_train: Labels
    x_test: Array
    y_test: Labels
    num_classes: int
    group_train: Labels | None = None
    group_test: Labels | None = None
    coarse: Labels | None = None


@dataclass(frozen=True)
class LabelView:
    """All that a partition may look at: labels, groups and superclasses, not the samples."""

    train: Labels
    test: Labels
    num_classes: int
    group_train: Labels | None = None
    group_test: Labels | None = None
    coarse: Labels | None = None


def label_view(dataset: Dataset) -> LabelView:
    """Return what a partition may look at."""
    return LabelView(dataset.y_train, dataset.y_test, dataset.num_classes, dataset.group_train, dataset.group_test, dataset.coarse)


def subsample(dataset: Dataset, num_train: int, num_test: int, seed: int) -> Dataset:
    """Draw samples without replacement, at most as many as there are; DataError below one."""
    if num_train < 1 or num_test < 1:
        raise DataError(f"a subsample of {num_train} training and {num_test} test samples, expected at least one of each")
    rng = rng_for(seed, 0, "subsample")
    train = np.sort(rng.permutation(len(dataset.y_train))[:num_train])
    test = np.sort(rng.permutation(len(dataset.y_test))[:num_test])
    return replace(
        dataset,
        x_train=dataset.x_train[train],
        y_train=dataset.y_train[train],
        x_test=dataset.x_test[test],
        y_test=dataset.y_test[test],
        group_train=None if dataset.group_train is None else dataset.group_train[train],
        group_test=None if dataset.group_test is None else dataset.group_test[test],
    )


def resize_bilinear(images: Array, height: int, width: int) -> Array:
    """Resize float32[n, h, w] to float32[n, height, width]: half-pixel centres, edges repeated."""

    def mix(size_in: int, size_out: int) -> Array:
        at = np.clip((np.arange(size_out) + 0.5) * size_in / size_out - 0.5, 0, size_in - 1)
        low = np.minimum(at.astype(np.int64), max(size_in - 2, 0))
        matrix = np.zeros((size_out, size_in), np.float32)
        matrix[np.arange(size_out), low] += 1 - (at - low)
        matrix[np.arange(size_out), np.minimum(low + 1, size_in - 1)] += at - low
        return matrix

    rows, columns = mix(images.shape[1], height), mix(images.shape[2], width)
    return np.ascontiguousarray(rows @ images.astype(np.float32) @ columns.T, np.float32)

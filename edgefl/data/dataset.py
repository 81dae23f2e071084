"""A labelled data set before it is shared out to clients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import DataError
from edgefl.rng import derive_rng
from edgefl.types import Array, Labels

Pixels = NDArray[Any]


@dataclass(frozen=True)
class Dataset:
    """x_train: float32[n, *input_shape], pictures in [0, 1]; y_train: int64[n]; x_test, y_test likewise.

    A loader may leave pictures as uint8: `load_dataset` scales them, and so does `take`.

    group_train, group_test: int64[n], who wrote or wore each sample, where that is known.
    recording_train: int64[n], the recording that each training sample was cut from, where that is known.
    coarse: int64[num_classes], the superclass of each class, where there are superclasses. note: what a user
    should know of it.
    """

    x_train: Array
    y_train: Labels
    x_test: Array
    y_test: Labels
    num_classes: int
    group_train: Labels | None = None
    group_test: Labels | None = None
    coarse: Labels | None = None
    note: str = ""
    recording_train: Labels | None = None


@dataclass(frozen=True)
class LabelView:
    """All that a partition may look at: labels, groups and superclasses, not the samples."""

    train: Labels
    test: Labels
    num_classes: int
    group_train: Labels | None = None
    group_test: Labels | None = None
    coarse: Labels | None = None


def make_label_view(dataset: Dataset) -> LabelView:
    """Return what a partition may look at."""
    return LabelView(
        dataset.y_train,
        dataset.y_test,
        dataset.num_classes,
        dataset.group_train,
        dataset.group_test,
        dataset.coarse,
    )


def as_float(samples: NDArray[Any]) -> Array:
    """Return float32 samples; uint8 pictures are scaled to [0, 1]."""
    if samples.dtype == np.uint8:
        return (samples / np.float32(255)).astype(np.float32, copy=False)
    return np.asarray(samples, np.float32)


def scale_dataset(dataset: Dataset) -> Dataset:
    """Return the data set with float32 samples."""
    return replace(dataset, x_train=as_float(dataset.x_train), x_test=as_float(dataset.x_test))


def pick_classes(dataset: Dataset, classes: Sequence[int]) -> Dataset:
    """Return the samples of these classes; classes[i] becomes i.

    DataError for a class that is not there, or twice.
    """
    picked = np.array(classes, np.int64)
    if (
        len(picked) < 2
        or len(set(classes)) < len(picked)
        or picked.min() < 0
        or picked.max() >= dataset.num_classes
    ):
        raise DataError(
            f"classes {list(classes)}, expected two or more different ones from 0 to "
            f"{dataset.num_classes - 1}"
        )
    number = np.full(dataset.num_classes, -1)
    number[picked] = np.arange(len(picked))
    train, test = (np.flatnonzero(np.isin(y, picked)) for y in (dataset.y_train, dataset.y_test))
    return replace(
        _select_rows(dataset, train, test),
        y_train=number[dataset.y_train[train]],
        y_test=number[dataset.y_test[test]],
        num_classes=len(picked),
        coarse=None if dataset.coarse is None else dataset.coarse[picked],
    )


def _select_rows(dataset: Dataset, train: Labels, test: Labels) -> Dataset:
    return replace(
        dataset,
        x_train=dataset.x_train[train],
        y_train=dataset.y_train[train],
        x_test=dataset.x_test[test],
        y_test=dataset.y_test[test],
        group_train=None if dataset.group_train is None else dataset.group_train[train],
        group_test=None if dataset.group_test is None else dataset.group_test[test],
        recording_train=None if dataset.recording_train is None else dataset.recording_train[train],
    )


def subsample(dataset: Dataset, num_train: int, num_test: int, seed: int) -> Dataset:
    """Draw samples without replacement, at most as many as there are; DataError below one."""
    if num_train < 1 or num_test < 1:
        raise DataError(
            f"a subsample of {num_train} training and {num_test} test samples, expected at least one of each"
        )
    rng = derive_rng(seed, 0, "subsample")
    train = np.sort(rng.permutation(len(dataset.y_train))[:num_train])
    test = np.sort(rng.permutation(len(dataset.y_test))[:num_test])
    return _select_rows(dataset, train, test)


def resize_bilinear(images: Array, height: int, width: int) -> Array:
    """Resize float32[n, h, w] to float32[n, height, width]: half-pixel centres, edges repeated."""

    def mix(size_in: int, size_out: int) -> Array:
        at = np.clip((np.arange(size_out) + 0.5) * size_in / size_out - 0.5, 0, size_in - 1)
        low = np.minimum(at.astype(np.int64), max(size_in - 2, 0))
        matrix = np.zeros((size_out, size_in), np.float32)
        matrix[np.arange(size_out), low] += 1 - (at - low)
        matrix[np.arange(size_out), np.minimum(low + 1, size_in - 1)] += at - low
        return matrix

    rows = mix(images.shape[1], height)
    columns = mix(images.shape[2], width)
    return np.ascontiguousarray(rows @ images.astype(np.float32) @ columns.T, np.float32)

"""Labelled data sets before they are partitioned among clients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Labels
from edgefl.data.forms import scale_samples

Pixels = NDArray[Any]
RESIZE_BLOCK = 256
"""Number of pictures that are resized at once."""


@dataclass(frozen=True)
class Dataset:
    """A labelled data set with a training part and a test part.

    A loader may return pictures as uint8. `load_dataset` and `copy_shard` divide them by `scale`.

    Attributes:
        x_train: training samples, shape (n, *input_shape), float32, or uint8 for pictures that are not
            divided yet.
        y_train: training labels, shape (n,), int64.
        x_test: test samples, like `x_train`.
        y_test: test labels, like `y_train`.
        num_classes: number of classes. Labels range from 0 to num_classes - 1.
        group_train: the writer, wearer or other group of each training sample, shape (n,), int64. None if
            unknown.
        group_test: the group of each test sample, like `group_train`.
        coarse: the superclass of each class, shape (num_classes,), int64. None without superclasses.
        note: a remark for the user, empty if there is none.
        recording_train: the recording that each training sample was cut from, shape (n,), int64. None if
            unknown.
        target_train: values to predict of each training sample, shape (n, outputs), float32. None if the
            samples have classes.
        target_test: values to predict of each test sample, like `target_train`.
        has_labels: whether the samples were labelled. Without labels, all of them are 0.
        scale: what divides the samples, see `edgefl.base.tasks.samples.SamplesConfig`.
        class_names: names of the classes, empty if they have numbers only.
        channels: names of the channels in their order, empty if they have numbers only.
        group_names: names of the groups, in the order of their numbers. Empty if they have numbers only.
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
    target_train: Array | None = None
    target_test: Array | None = None
    has_labels: bool = True
    scale: float = 0.0
    class_names: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()

    @property
    def has_classes(self) -> bool:
        """Whether the labels are classes. Otherwise they are missing, or numbers to predict."""
        return self.has_labels and self.target_train is None


@dataclass(frozen=True)
class LabelView:
    """The part of a data set that a partition may read: labels, groups and superclasses, but no samples.

    Attributes:
        train: training labels, shape (n,), int64.
        test: test labels, shape (m,), int64.
        num_classes: number of classes.
        group_train: the group of each training sample, shape (n,), int64, or None.
        group_test: the group of each test sample, shape (m,), int64, or None.
        coarse: the superclass of each class, shape (num_classes,), int64, or None.
    """

    train: Labels
    test: Labels
    num_classes: int
    group_train: Labels | None = None
    group_test: Labels | None = None
    coarse: Labels | None = None


def make_label_view(dataset: Dataset) -> LabelView:
    """Return the label view of a data set."""
    return LabelView(
        train=dataset.y_train,
        test=dataset.y_test,
        num_classes=dataset.num_classes,
        group_train=dataset.group_train,
        group_test=dataset.group_test,
        coarse=dataset.coarse,
    )


def divide_samples(
    x: Pixels,
    y: Labels,
    train: Labels,
    test: Labels,
    num_classes: int,
    group: Labels | None = None,
    recording_train: Labels | None = None,
    note: str = "",
) -> Dataset:
    """Return the data set of these training and test rows.

    Args:
        x: all samples, shape (n, *input_shape), float32, or uint8 for pictures that are not divided yet.
        y: their labels, shape (n,), int64.
        train: the training rows, shape (k,), int64.
        test: the test rows, shape (m,), int64.
        group: the group of each sample, shape (n,), int64. None if unknown.
        recording_train: the recording of each training row, shape (k,), int64. None if unknown.
        note: a remark for the user.
    """
    return Dataset(
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        num_classes=num_classes,
        group_train=None if group is None else group[train],
        group_test=None if group is None else group[test],
        recording_train=recording_train,
        note=note,
    )


def as_float(samples: NDArray[Any], scale: float = 0.0) -> Array:
    """Convert samples to float32, and divide them.

    Args:
        samples: samples of any shape, numeric.
        scale: the divisor. 0 divides uint8 values by 255 and leaves floats as they are.

    Returns:
        The samples, same shape, float32.
    """
    return np.asarray(scale_samples(samples, scale), np.float32)


def scale_dataset(dataset: Dataset) -> Dataset:
    """Return the data set with float32 samples, divided by its scale."""
    x_train, x_test = (as_float(x, dataset.scale) for x in (dataset.x_train, dataset.x_test))
    return replace(dataset, x_train=x_train, x_test=x_test, scale=1.0)


def pick_classes(dataset: Dataset, classes: Sequence[int]) -> Dataset:
    """Return the part of a data set that has the given classes.

    Args:
        classes: classes to keep. `classes[i]` becomes class i.

    Raises:
        DataError: there are fewer than two classes, or a class is out of range or listed twice.
    """
    selected = np.array(classes, np.int64)
    if (
        len(selected) < 2
        or len(set(classes)) < len(selected)
        or selected.min() < 0
        or selected.max() >= dataset.num_classes
    ):
        raise DataError(
            f"classes {list(classes)}, expected two or more different ones from 0 to "
            f"{dataset.num_classes - 1}"
        )
    number = np.full(dataset.num_classes, -1)
    number[selected] = np.arange(len(selected))
    train, test = (np.flatnonzero(np.isin(y, selected)) for y in (dataset.y_train, dataset.y_test))
    return replace(
        _select_rows(dataset, train, test),
        y_train=number[dataset.y_train[train]],
        y_test=number[dataset.y_test[test]],
        num_classes=len(selected),
        class_names=tuple(dataset.class_names[label] for label in classes) if dataset.class_names else (),
        coarse=None if dataset.coarse is None else dataset.coarse[selected],
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
        target_train=None if dataset.target_train is None else dataset.target_train[train],
        target_test=None if dataset.target_test is None else dataset.target_test[test],
    )


def subsample(dataset: Dataset, num_train: int, num_test: int, seed: int) -> Dataset:
    """Draw samples without replacement.

    Args:
        num_train: number of training samples. A number above the available count keeps all of them.
        num_test: number of test samples, with the same limit.

    Raises:
        DataError: a number is below 1.
    """
    if num_train < 1 or num_test < 1:
        raise DataError(
            f"a subsample of {num_train} training and {num_test} test samples, expected at least one of each"
        )
    rng = derive_rng(seed, 0, "subsample")
    train = np.sort(rng.permutation(len(dataset.y_train))[:num_train])
    test = np.sort(rng.permutation(len(dataset.y_test))[:num_test])
    return _select_rows(dataset, train, test)


def resize_bilinear(images: Array, height: int, width: int) -> Array:
    """Resize images by bilinear interpolation, with half-pixel centres and repeated edges.

    Args:
        images: images, shape (n, rows, columns), numeric.
        height: rows of the result.
        width: columns of the result.

    Returns:
        Resized images, shape (n, height, width), float32.
    """

    def make_weights(size_in: int, size_out: int) -> Array:
        at = np.clip((np.arange(size_out) + 0.5) * size_in / size_out - 0.5, 0, size_in - 1)
        low = np.minimum(at.astype(np.int64), max(size_in - 2, 0))
        matrix = np.zeros((size_out, size_in), np.float32)
        matrix[np.arange(size_out), low] += 1 - (at - low)
        matrix[np.arange(size_out), np.minimum(low + 1, size_in - 1)] += at - low
        return matrix

    rows = make_weights(images.shape[1], height)
    columns = make_weights(images.shape[2], width)
    return np.ascontiguousarray(rows @ images.astype(np.float32) @ columns.T, np.float32)


def resize_pictures(pictures: Pixels, rows: int, columns: int) -> Pixels:
    """Resize pictures by bilinear interpolation, in the type that they have. uint8 values are rounded.

    Args:
        pictures: pictures, shape (n, rows, columns, channels), uint8 or float32.
        rows: rows of the result.
        columns: columns of the result.

    Raises:
        DataError: the samples are not pictures, or a size is below 1.
    """
    if pictures.ndim != 4:
        raise DataError(
            f"samples of shape {list(pictures.shape[1:])}, expected pictures [rows, columns, channels]; only "
            "pictures can be resized: leave resize out"
        )
    if rows < 1 or columns < 1:
        raise DataError(f"resize is [{rows}, {columns}], expected rows and columns of at least 1")
    if pictures.shape[1:3] == (rows, columns):
        return pictures
    resized = np.empty((len(pictures), rows, columns, pictures.shape[3]), pictures.dtype)
    for start in range(0, len(pictures), RESIZE_BLOCK):
        for channel in range(pictures.shape[3]):
            block = resize_bilinear(pictures[start : start + RESIZE_BLOCK, ..., channel], rows, columns)
            resized[start : start + RESIZE_BLOCK, ..., channel] = (
                np.rint(block) if pictures.dtype == np.uint8 else block
            )
    return resized

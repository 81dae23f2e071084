"""Converts stored samples and labels to the form that training uses.

A form is converted only if it has one meaning. Any other form stays unchanged. The checks of
`edgefl.data.npz` then reject it, or `edgefl data show` warns about it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.tasks.samples import GREY_SCALE, SamplesConfig
from edgefl.base.types import Array

MIN_PICTURE_SIDE = 8
"""Minimum number of rows and of columns of a picture."""
MAX_PICTURE_CHANNELS = 4
"""Maximum number of channels of a picture: red, green, blue and transparency."""
LOW_MAXIMUM = 16
"""Whole numbers up to this maximum may have another unit: scikit-learn's digits range from 0 to 16."""
MAX_FLOAT_LABEL = 2.0**53
PART_SUFFIXES = ("", "_test")

Arrays = Mapping[str, NDArray[Any]]


def format_shape(shape: tuple[int, ...]) -> str:
    """Return the shape of a sample as text, such as `28x28x1`."""
    return "x".join(map(str, shape))


def guess_input_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the input shape that a model probably has for samples of this shape.

    Args:
        shape: the stored shape of one sample.

    Returns:
        Square samples of at least 8 x 8 get a channel axis of size 1. Pictures with 1 or 3 channels first get
        their channels last. Any other shape is returned unchanged.
    """
    if len(shape) == 2 and shape[0] == shape[1] >= MIN_PICTURE_SIDE:
        return (*shape, 1)
    if has_channels_first(shape):
        return (*shape[1:], shape[0])
    return shape


def has_channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether samples of this shape are pictures with their channels first."""
    return (
        len(shape) == 3
        and shape[0] in (1, 3)
        and min(shape[1:]) >= MIN_PICTURE_SIDE
        and shape[2] > MAX_PICTURE_CHANNELS
    )


def to_input_shape(x: Array, input_shape: tuple[int, ...]) -> Array:
    """Convert samples to the input shape of a model where that is possible.

    Args:
        x: samples, shape (n, *shape), any dtype.
        input_shape: input shape of the model, without the batch axis.

    Returns:
        Samples of shape (n, *input_shape) if only a channel axis of size 1 is missing, or if the channels of
        a picture come first and the model expects them last. Otherwise `x`.
    """
    shape = x.shape[1:]
    if shape == input_shape:
        return x
    if (*shape, 1) == input_shape:
        return x[..., None]
    if len(shape) == 3 and (*shape[1:], shape[0]) == input_shape:
        return np.ascontiguousarray(np.moveaxis(x, 1, -1))
    return x


def describe_shape_change(shape: tuple[int, ...], input_shape: tuple[int, ...]) -> str:
    """Return a sentence about what `to_input_shape` changes, or "" if it changes nothing.

    Args:
        shape: the stored shape of one sample.
        input_shape: input shape of the model, without the batch axis.
    """
    if (*shape, 1) == input_shape:
        return f"samples of {format_shape(shape)} get a channel axis: {format_shape(input_shape)}"
    if shape != input_shape and len(shape) == 3 and (*shape[1:], shape[0]) == input_shape:
        return (
            f"samples of {format_shape(shape)} have their channels first; the channels are moved to the end: "
            f"{format_shape(input_shape)}"
        )
    return ""


def to_training_form(
    arrays: Arrays, samples: SamplesConfig | None = None, scale: float = 0.0
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Convert the arrays of a source to the form that training uses.

    Samples are divided by a scale, which never depends on their values. The first scale that is stated
    counts: of the owner, of the file, of the federation. Without any, uint8 values are divided by 255 and
    floats stay as they are. One-hot labels become class numbers. Labels that are whole numbers of another
    type or shape become integers. The shape of the samples does not change: see `to_input_shape`.

    Apply it once: a second call divides again.

    Args:
        arrays: the arrays that `edgefl.data.sources.read_source` returns.
        samples: unit and layout of the federation, None without a federation.
        scale: scale that the owner states. 0 states none.

    Returns:
        The converted arrays, and one sentence for each change.
    """
    formed = dict(arrays)
    changes: list[str] = list(map(str, formed.pop("notes", np.array([], str)).tolist()))
    for part in PART_SUFFIXES:
        if f"y{part}" in arrays:
            labels, change = _to_class_numbers(arrays[f"y{part}"], f"y{part}")
            formed[f"y{part}"] = labels
            changes += [change] if change else []
    stored = arrays.get("y")
    if stored is not None and is_one_hot(stored) and "num_classes" not in arrays:
        formed["num_classes"] = np.asarray(stored.shape[1])
    stated, origin = find_scale(arrays, samples, scale)
    formed.pop("scale", None)
    for part in PART_SUFFIXES:
        x = arrays.get(f"x{part}")
        if x is not None:
            formed[f"x{part}"] = scale_samples(x, stated)
            change = _describe_scaling(x, stated, origin)
            changes += [change] if change and not part else []
    return formed, tuple(changes)


def find_scale(arrays: Arrays, samples: SamplesConfig | None, scale: float = 0.0) -> tuple[float, str]:
    """Return the scale that counts for the samples of a source, and who states it.

    Args:
        samples: unit and layout of the federation, None without a federation.
        scale: scale that the owner states. 0 states none.

    Returns:
        The scale, 0 if nobody states one, and the end of a sentence.
    """
    if scale:
        return scale, "as stated for these samples"
    if "scale" in arrays:
        return float(arrays["scale"].item()), "the scale in their file"
    if samples is not None and samples.scale:
        return float(samples.scale), "the scale of the federation"
    return 0.0, ""


def scale_samples(x: NDArray[Any], scale: float) -> NDArray[Any]:
    """Return samples divided by a scale. Samples of another type than uint8 or floats stay unchanged.

    Args:
        x: samples of any shape.
        scale: the divisor. 0 divides uint8 values by 255 and leaves floats as they are.

    Returns:
        uint8 samples and divided samples as float32, otherwise `x` itself.
    """
    is_byte = x.dtype == np.uint8
    if not is_byte and x.dtype.kind != "f":
        return x
    divisor = scale or (GREY_SCALE if is_byte else 1.0)
    if divisor == 1:
        return x.astype(np.float32) if is_byte else x
    with np.errstate(over="ignore"):
        divided: Array = np.divide(x, divisor, dtype=np.float32, casting="same_kind")
    return divided


def _describe_scaling(x: NDArray[Any], scale: float, origin: str) -> str:
    """Return the effect of a scale, except for the division of uint8 values by 255."""
    if x.dtype == np.uint8 and scale == 1:
        return f"x is uint8; its values are taken as they are: scale = 1 is {origin}"
    if x.dtype == np.uint8 and scale not in (0.0, GREY_SCALE):
        return f"x is uint8; its values are divided by {scale:g}, {origin}"
    if x.dtype.kind == "f" and scale not in (0.0, 1.0):
        return f"x holds floats; they are divided by {scale:g}, {origin}"
    return ""


def has_label_arrays(arrays: Arrays) -> bool:
    """Return whether the arrays of a source contain classes `y` or numbers to predict `target`."""
    return "y" in arrays or "target" in arrays


def split_targets(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return the arrays of a source with labels `y` that are classes, and other values as `target`.

    Without labels, all samples get the label 0. Labels that are numbers but no classes, for a regression,
    become `target`, and these samples get the label 0 too. A `target` of the source stays unchanged.

    Args:
        arrays: the arrays that `edgefl.data.sources.read_source` returns.
    """
    formed = dict(arrays)
    parts = [part for part in PART_SUFFIXES if f"x{part}" in arrays]
    stored = [arrays[f"y{part}"] for part in parts if f"y{part}" in arrays]
    if not stored:
        return formed | {f"y{part}": np.zeros(arrays[f"x{part}"].shape[:1], np.int64) for part in parts}
    are_numbers = all(y.dtype.kind in "iuf" and y.ndim in (1, 2) for y in stored)
    if are_numbers and any(map(_are_numbers_without_classes, stored)):
        for part in parts:
            if f"y{part}" in arrays:
                formed[f"target{part}"] = arrays[f"y{part}"]
                formed[f"y{part}"] = np.zeros(len(arrays[f"y{part}"]), np.int64)
    return formed


def _are_numbers_without_classes(y: NDArray[Any]) -> bool:
    """Return whether labels are numbers that are not all whole and at least 0, or have several columns."""
    if is_one_hot(y):
        return False
    if y.ndim == 2 and y.shape[1] > 1:
        return True
    return bool((~np.isfinite(y) | (y < 0)).any()) or not _are_whole_numbers(y)


def is_one_hot(y: NDArray[Any]) -> bool:
    """Return whether each row of labels is 1 in exactly one of several columns and 0 in the others.

    Args:
        y: labels, any shape and dtype.
    """
    return (
        y.ndim == 2
        and y.shape[1] > 1
        and y.dtype.kind in "biuf"
        and bool(np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all())
    )


def _to_class_numbers(y: NDArray[Any], name: str) -> tuple[NDArray[Any], str]:
    """Return class numbers and a sentence about the conversion, or the unchanged labels and ""."""
    if is_one_hot(y):
        return (
            y.argmax(axis=1).astype(np.int64),
            f"{name} is one-hot; the class is the column of the 1, out of {y.shape[1]} classes",
        )
    flat = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if flat.ndim != 1 or flat.dtype.kind not in "biuf" or (flat is y and y.dtype.kind in "iu"):
        return y, ""
    if flat.dtype.kind == "f" and not _are_whole_numbers(flat):
        return y, ""
    stored = f"{y.dtype}{list(y.shape)}"
    return flat.astype(np.int64), f"{name} is {stored}; it is read as {len(flat)} whole numbers"


def _are_whole_numbers(y: NDArray[Any]) -> bool:
    values = y.astype(np.float64)
    return bool(((np.abs(values) < MAX_FLOAT_LABEL) & (values == np.round(values))).all())

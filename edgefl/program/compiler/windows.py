"""Windows over images, made of slices, concatenations and pads.

Convolutions and the gradients of poolings are built from these windows. TFLite has no builtin op for these
gradients, so this module uses ops that every runtime has. It processes one axis after the other: a 5x5 window
costs ten slices, not 25. All shapes are static. Images are float32[batch, rows, columns, channels], or
float32[channels, rows, columns, batch] where batch and channels are swapped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import tensorflow as tf

Tensor = Any


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a windowed op. All sizes are numbers of pixels.

    Attributes:
        index: index of the axis in the tensor.
        size: size of the image.
        window: number of elements of a window.
        stride: distance between two windows.
        dilation: distance between two elements of a window.
        out: number of windows.
        before: padding before the image.
        after: padding after the image.
    """

    index: int
    size: int
    window: int
    stride: int
    dilation: int
    out: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Number of pixels from the start of the first window to the start of the last, both included."""
        return (self.out - 1) * self.stride + 1

    @property
    def is_tiling(self) -> bool:
        """Whether the windows neither overlap nor leave gaps between them."""
        return self.window == self.stride and self.dilation == 1


@dataclass(frozen=True)
class Geometry:
    """Both axes of a windowed op on images."""

    rows: Axis
    columns: Axis


@dataclass(frozen=True)
class Phase:
    """The pixels of an axis that have the same place between two windows, one pixel in each `stride`.

    All of them are seen by the same elements of a window. Their gradient is the convolution of the padded
    gradient of the output with these elements, flipped.

    Attributes:
        index: index of the axis in the tensor.
        taps: indices of the elements of a window that see these pixels. Only the first phase always has some.
        size: number of pixels. It is the same for all phases, so the last one may lie outside of the image.
        before: padding before the gradient. A negative number removes values.
        after: padding after the gradient. A negative number removes values.
    """

    index: int
    taps: range
    size: int
    before: int
    after: int

    @property
    def has_same_padding(self) -> bool:
        """Whether a convolution with the padding SAME pads the gradient in this way."""
        total = len(self.taps) - 1
        return self.before == total // 2 and self.after == total - total // 2


def list_phases(axis: Axis) -> list[Phase]:
    """Return the phases of an axis, in the order of the first pixels of the image.

    Args:
        axis: the axis, with SAME or VALID padding and without dilation.
    """
    size = -(-axis.size // axis.stride)
    phases = []
    for pixel in range(min(axis.stride, axis.size)):
        skipped, first = divmod(pixel + axis.before, axis.stride)
        taps = range(first, axis.window, axis.stride)
        phases.append(
            Phase(
                index=axis.index,
                taps=taps,
                size=size,
                before=len(taps) - 1 - skipped,
                after=size + skipped - axis.out,
            )
        )
    return phases


def make_geometry(
    size: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: str,
    explicit: Sequence[tuple[int, int]] = ((0, 0), (0, 0)),
) -> Geometry:
    """Return the axes of an op's windows. Each sequence has one entry for rows and one for columns.

    Args:
        size: size of the image.
        window: number of elements of a window.
        strides: distance between two windows.
        dilations: distance between two elements of a window.
        padding: SAME, VALID or EXPLICIT.
        explicit: the padding before and after the image, for EXPLICIT.
    """
    axes = []
    for i in (0, 1):
        extent = (window[i] - 1) * dilations[i] + 1
        before, after = explicit[i] if padding == "EXPLICIT" else (0, 0)
        out = (size[i] + before + after - extent) // strides[i] + 1
        if padding == "SAME":
            out = -(-size[i] // strides[i])
            total = max((out - 1) * strides[i] + extent - size[i], 0)
            before = total // 2
            after = total - total // 2
        axes.append(
            Axis(
                index=i + 1,
                size=size[i],
                window=window[i],
                stride=strides[i],
                dilation=dilations[i],
                out=out,
                before=before,
                after=after,
            )
        )
    return Geometry(*axes)


def read_geometry(op: Any, window: Sequence[int]) -> Geometry:
    """Return the axes of a TensorFlow op, from its strides, dilations and padding.

    Args:
        op: the op, whose first input is an image in NHWC layout.
        window: number of elements of a window, for rows and columns.
    """
    attributes = op.node_def.attr
    dilations = list(op.get_attr("dilations"))[1:3] if "dilations" in attributes else [1, 1]
    explicit = list(op.get_attr("explicit_paddings")) if "explicit_paddings" in attributes else []
    pairs = [(explicit[2], explicit[3]), (explicit[4], explicit[5])] if explicit else [(0, 0), (0, 0)]
    size = op.inputs[0].shape.as_list()[1:3]
    return make_geometry(
        size, window, op.get_attr("strides")[1:3], dilations, op.get_attr("padding").decode(), pairs
    )


def pad_image(image: Tensor, geometry: Geometry, value: float = 0.0) -> Tensor:
    """Return the image with the op's padding around it.

    Args:
        image: float32[batch, rows, columns, channels].
        geometry: the axes of the op.
    """
    rows = geometry.rows
    columns = geometry.columns
    margins = [[0, 0], [rows.before, rows.after], [columns.before, columns.after], [0, 0]]
    return tf.pad(image, margins, constant_values=value) if any(map(any, margins)) else image


def pad_axis(image: Tensor, axis: Axis) -> Tensor:
    """Return the image with the op's padding on one axis, which is zeros.

    Args:
        image: a tensor of four axes.
    """
    return _fit(image, axis.index, axis.before, axis.after)


def pad_phase(gradient: Tensor, phase: Phase) -> Tensor:
    """Return the gradient of an output, padded for the convolution of a phase.

    Args:
        gradient: a tensor of four axes.
    """
    return _fit(gradient, phase.index, phase.before, phase.after)


def cut_seen(image: Tensor, axis: Axis) -> Tensor:
    """Return the pixels from the first to the last that a window sees, with the op's padding.

    Args:
        image: a tensor of four axes.
    """
    length = axis.reach + (axis.window - 1) * axis.dilation
    return _fit(image, axis.index, axis.before, length - axis.before - axis.size)


def gather_taps(padded: Tensor, axis: Axis) -> list[Tensor]:
    """Return the values of each window element in all windows along an axis.

    With a stride, the function first reshapes the pixels of one stride into one group. A slice in steps is
    thirty times slower in TFLite.

    Args:
        padded: the image with padding on this axis.

    Returns:
        One tensor for each window element. On the axis, its size is `axis.out`.
    """
    index = axis.index
    stride = axis.stride
    starts = [k * axis.dilation for k in range(axis.window)]
    if stride == 1:
        return [cut_axis(padded, index, start, axis.out) for start in starts]
    groups = starts[-1] // stride + axis.out
    whole = _fit(padded, index, 0, groups * stride - padded.shape[index])
    shape = whole.shape.as_list()
    inner = math.prod(shape[index + 1 :])
    grouped = tf.reshape(whole, (-1, groups, stride * inner))
    shape[index] = axis.out
    elements = []
    for start in starts:
        group, rest = divmod(start, stride)
        elements.append(
            tf.reshape(grouped[:, group : group + axis.out, rest * inner : (rest + 1) * inner], shape)
        )
    return elements


def has_samples(axis: Axis, k: int) -> bool:
    """Return whether element k of any window is a pixel of the image. On small images it may be only padding.

    Args:
        k: index of the window element.
    """
    start = k * axis.dilation - axis.before
    return start < axis.size and start + axis.reach > 0


def gather_tap(image: Tensor, axis: Axis, k: int, first: int, count: int) -> Tensor:
    """Return the values of element k of all windows, in the channels from `first`.

    The result is one slice, and a pad if windows reach over the edge.

    Args:
        image: float32[channels, rows, columns, batch], without padding.
        axis: the axis, whose stride must be 1.
        k: index of the window element.
    """
    start = k * axis.dilation - axis.before
    low = max(start, 0)
    high = min(start + axis.out, axis.size)
    window = [slice(first, first + count)] + [slice(None)] * 3
    window[axis.index] = slice(low, high)
    return _fit(image[tuple(window)], axis.index, low - start, start + axis.out - high)


def scatter_tap(values: Tensor, axis: Axis, k: int) -> Tensor:
    """Return an image with the values of element k of all windows at their pixels, and zeros elsewhere.

    This function is the adjoint of `gather_tap`.

    Args:
        values: one value for each window on the axis.
        k: index of the window element.
    """
    if not has_samples(axis, k):
        shape = values.shape.as_list()
        shape[axis.index] = axis.size
        return tf.zeros(shape)
    start = k * axis.dilation - axis.before
    return _fit(_dilate(values, axis), axis.index, start, axis.size - start - axis.reach)


def scatter_taps(values: Sequence[Tensor], axis: Axis) -> Tensor:
    """Return the image of the windows' values, summed where windows overlap.

    This function is the adjoint of `pad_axis` followed by `gather_taps`.

    Args:
        values: for each window element, its values in all windows.

    Returns:
        The image without padding, whose size on the axis is `axis.size`.
    """
    if axis.is_tiling:
        whole = _interleave(values, axis.index)
        return _fit(whole, axis.index, -axis.before, axis.size + axis.before - axis.out * axis.window)
    # On a very small image all elements may be padding. Element 0 then gives zeros.
    seen = [k for k in range(len(values)) if has_samples(axis, k)] or [0]
    return add_tensors([scatter_tap(values[k], axis, k) for k in seen])


def join_phases(values: Sequence[Tensor | None], axis: Axis) -> Tensor:
    """Return the image of the values of all phases of an axis.

    Args:
        values: for each phase, its values, or None for zeros.
    """
    parts: list[Tensor] = []
    zeros: list[int] = []
    for value in values:
        if value is None:
            zeros[-1] += 1
        else:
            parts.append(value)
            zeros.append(0)
    shape = parts[0].shape.as_list()
    # The zeros are a pad, because constants would take space in the plan
    wide = [
        _fit(part, axis.index + 1, 0, count * shape[axis.index + 1])
        for part, count in zip(parts, zeros, strict=True)
    ]
    shape[axis.index] *= len(values)
    return cut_axis(tf.reshape(concat(wide, axis.index + 1), shape), axis.index, 0, axis.size)


def add_tensors(values: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors, added one after the other. TFLite runtimes do not compute ADD_N fast.

    Args:
        values: one or more tensors of the same shape.
    """
    return reduce(add, values)


def cut_axis(image: Tensor, axis: int, start: int, length: int) -> Tensor:
    """Return a part of a tensor. The whole tensor is returned unchanged.

    Args:
        axis: index of the axis that is cut.
        start: index of the first element.
        length: number of elements.
    """
    if start == 0 and length == image.shape[axis]:
        return image
    window = [slice(None)] * len(image.shape)
    window[axis] = slice(start, start + length)
    return image[tuple(window)]


def concat(values: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors along an axis. A single tensor is returned unchanged.

    Args:
        axis: index of the axis.
    """
    return values[0] if len(values) == 1 else tf.concat(values, axis)


def _fit(image: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Pad an axis with zeros. A negative count removes elements instead.

    The tensor is reshaped to two axes for the pad. With four axes, XNNPACK copies each run along the last
    axis separately, which takes three times as long.
    """
    image = cut_axis(image, axis, max(-before, 0), image.shape[axis] + min(before, 0) + min(after, 0))
    before = max(before, 0)
    after = max(after, 0)
    if not (before or after):
        return image
    shape = image.shape.as_list()
    inner = math.prod(shape[axis + 1 :])
    wide = tf.pad(tf.reshape(image, (-1, shape[axis] * inner)), [[0, 0], [before * inner, after * inner]])
    shape[axis] += before + after
    return tf.reshape(wide, shape)


def _dilate(image: Tensor, axis: Axis) -> Tensor:
    if axis.stride == 1:
        return image
    shape = image.shape.as_list()
    inner = math.prod(shape[axis.index + 1 :])
    # A pad, because constant zeros between the values would take space in the plan
    padded = tf.pad(tf.reshape(image, (-1, inner)), [[0, 0], [0, (axis.stride - 1) * inner]])
    shape[axis.index] *= axis.stride
    return cut_axis(tf.reshape(padded, shape), axis.index, 0, axis.reach)


def _interleave(values: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors along an axis in turn: the first element of each, then the second of each, and so on."""
    shape = values[0].shape.as_list()
    shape[axis] *= len(values)
    return tf.reshape(concat(values, axis + 1), shape)

"""Windows over images as slices, concatenations and pads: what convolution and pooling gradients are made of.

TFLite has no builtin op for these gradients, so they are written with ops that every runtime has.
Shapes are static: float32[batch, height, width, channels] throughout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

Tensor = Any


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a windowed op: sizes in samples, `before` and `after` are the padding."""

    size: int
    window: int
    stride: int
    dilation: int
    out: int
    before: int
    after: int

    @property
    def padded(self) -> int:
        """How long the padded axis is."""
        return self.before + self.size + self.after

    @property
    def reach(self) -> int:
        """How many samples lie between the first and the last window's start."""
        return (self.out - 1) * self.stride + 1


@dataclass(frozen=True)
class Geometry:
    """Both axes of a windowed op on images."""

    rows: Axis
    columns: Axis

    @property
    def tiles(self) -> bool:
        """Whether the windows neither overlap nor leave gaps between them."""
        return all(axis.window == axis.stride and axis.dilation == 1 for axis in (self.rows, self.columns))

    def offsets(self) -> Iterator[tuple[int, int]]:
        """Yield the place of each window element in the padded image, row by row."""
        for row in range(self.rows.window):
            for column in range(self.columns.window):
                yield row * self.rows.dilation, column * self.columns.dilation


def geometry_of(op: Any, window: tuple[int, int]) -> Geometry:
    """Read strides, dilations and padding off a TensorFlow op (NHWC; SAME, VALID or EXPLICIT) whose first input is the image."""
    shape = op.inputs[0].shape.as_list()
    out = op.outputs[0].shape.as_list()
    strides = op.get_attr("strides")
    attributes = op.node_def.attr
    dilations = list(op.get_attr("dilations")) if "dilations" in attributes else [1, 1, 1, 1]
    padding = op.get_attr("padding").decode()
    explicit = list(op.get_attr("explicit_paddings")) if "explicit_paddings" in attributes else []
    axes = []
    for axis in (1, 2):
        size, stride, dilation, extent = shape[axis], strides[axis], dilations[axis], (window[axis - 1] - 1) * dilations[axis] + 1
        total = max((out[axis] - 1) * stride + extent - size, 0) if padding == "SAME" else 0
        before, after = (explicit[2 * axis], explicit[2 * axis + 1]) if padding == "EXPLICIT" else (total // 2, total - total // 2)
        axes.append(Axis(size, window[axis - 1], stride, dilation, out[axis], before, after))
    return Geometry(*axes)


def pad(image: Tensor, geometry: Geometry, value: float = 0.0) -> Tensor:
    """Return the image with the op's padding around it."""
    rows, columns = geometry.rows, geometry.columns
    return pad_by(image, (rows.before, rows.after), (columns.before, columns.after), value)


def pad_by(image: Tensor, rows: tuple[int, int], columns: tuple[int, int], value: float = 0.0) -> Tensor:
    """Return the image with that many rows and columns before and after; negative counts crop."""
    grown = [[0, 0], [max(rows[0], 0), max(rows[1], 0)], [max(columns[0], 0), max(columns[1], 0)], [0, 0]]
    if any(map(any, grown)):
        image = tf.pad(image, grown, constant_values=value)
    if min(*rows, *columns) < 0:
        _, height, width, _ = image.shape.as_list()
        image = image[:, max(-rows[0], 0) : height - max(-rows[1], 0), max(-columns[0], 0) : width - max(-columns[1], 0)]
    return image


def phase(padded: Tensor, geometry: Geometry, offset: tuple[int, int]) -> Tensor:
    """Return the window element at this offset for every window: float32[batch, out_rows, out_columns, channels]."""
    (row, column), rows, columns = offset, geometry.rows, geometry.columns
    return padded[:, row : row + rows.reach : rows.stride, column : column + columns.reach : columns.stride]


def spread(values: list[Tensor], geometry: Geometry) -> Tensor:
    """Return the image of which `phase` gave these values, summed where windows overlap: one value for each offset."""
    if geometry.tiles:
        return _interleave(values, geometry)
    rows, columns = geometry.rows, geometry.columns
    total = None
    for (row, column), value in zip(geometry.offsets(), values, strict=True):
        apart = _dilate(value, rows.stride, columns.stride)
        vertical = (row - rows.before, rows.padded - row - rows.reach - rows.after)
        horizontal = (column - columns.before, columns.padded - column - columns.reach - columns.after)
        part = pad_by(apart, vertical, horizontal)
        total = part if total is None else total + part
    return total


def dilate(image: Tensor, rows: int, columns: int) -> Tensor:
    """Return the image with `rows - 1` and `columns - 1` zeros between its samples (none after the last)."""
    return _dilate(image, rows, columns)


def _dilate(image: Tensor, rows: int, columns: int) -> Tensor:
    batch, height, width, channels = image.shape.as_list()
    if columns > 1:
        gap = tf.zeros((batch, height, width, (columns - 1) * channels))
        image = tf.reshape(tf.concat([image, gap], 3), (batch, height, width * columns, channels))
        width = (width - 1) * columns + 1
        image = image[:, :, :width]
    if rows > 1:
        gap = tf.zeros((batch, height, (rows - 1) * width, channels))
        image = tf.reshape(tf.concat([image, gap], 2), (batch, height * rows, width, channels))
        image = image[:, : (height - 1) * rows + 1]
    return image


def _interleave(values: list[Tensor], geometry: Geometry) -> Tensor:
    rows, columns = geometry.rows, geometry.columns
    batch, height, width, channels = values[0].shape.as_list()
    lines = []
    for start in range(0, len(values), columns.window):
        line = tf.concat(values[start : start + columns.window], 3) if columns.window > 1 else values[start]
        lines.append(tf.reshape(line, (batch, height, width * columns.window, channels)))
    image = tf.concat(lines, 2) if rows.window > 1 else lines[0]
    image = tf.reshape(image, (batch, height * rows.window, width * columns.window, channels))
    vertical = (-rows.before, rows.size + rows.before - height * rows.window)
    horizontal = (-columns.before, columns.size + columns.before - width * columns.window)
    return pad_by(image, vertical, horizontal)

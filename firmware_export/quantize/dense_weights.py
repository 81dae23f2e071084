"""Dense layers whose weights take 8 or 16 values, so that the generated C stores 3 or 4 bits of each.

The model stays an int8 .tflite that every runtime runs as before. K-means in one dimension chooses the values
of a kernel with the least squared error. The weights are rounded input by input. The following weights
compensate for the error of a rounded weight, by the correlation of the inputs in the calibration samples.

Source: Han et al., arXiv:1510.00149, section 3, for k-means. GPTQ: Frantar et al., arXiv:2210.17323,
equations 2 and 3, for the rounding.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ExportError
from edgefl.base.types import Array
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.tflite import with_constants
from firmware_export.tflite.interpreter import load_tflite, quantize_input
from firmware_export.tflite.portable import to_portable
from firmware_export.tflite.quantized_model import read_quantized_model

MIN_KERNEL_WEIGHTS = 1024
"""Smaller kernels are not changed."""
INDEX_BITS = (3, 4)
INPUTS_PER_BLOCK = 512
"""Inputs whose correlations are considered together, in a square matrix of this size."""
DAMPING_SHARE = 0.01
_INT8_VALUES = np.arange(-128, 128)


def choose_few_values(kernel: NDArray[np.int8], count: int) -> NDArray[np.int8]:
    """Return a few values that approximate all weights of a kernel, by k-means.

    It runs k-means from two starts and keeps the better result.

    Args:
        kernel: weights, any shape, int8.
        count: maximum number of values.

    Returns:
        Sorted values, shape (at most `count`,), int8.
    """
    weights = np.bincount(kernel.ravel().astype(np.int64) + 128, minlength=256)
    present = _INT8_VALUES[weights > 0]
    if len(present) <= count:
        return present.astype(np.int8)
    shares = np.cumsum(weights) / weights.sum()
    starts = (
        np.linspace(present[0], present[-1], count),
        _INT8_VALUES[np.searchsorted(shares, (np.arange(count) + 0.5) / count)].astype(np.float64),
    )
    solutions = [_run_kmeans(start, weights) for start in starts]
    return min(
        solutions,
        key=lambda values: float(weights @ (_INT8_VALUES - values[_find_nearest(_INT8_VALUES, values)]) ** 2),
    ).astype(np.int8)


def _run_kmeans(centres: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    while True:
        nearest = _find_nearest(_INT8_VALUES, centres)
        mass = np.bincount(nearest, weights, len(centres))
        moved = np.where(
            mass > 0,
            np.bincount(nearest, weights * _INT8_VALUES, len(centres)) / np.maximum(mass, 1),
            centres,
        )
        if np.array_equal(moved, centres):
            return np.unique(np.round(centres))
        centres = moved


def _find_nearest(of: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    indices: NDArray[Any] = np.abs(of[..., None] - values).argmin(axis=-1)
    return indices


def round_kernel(kernel: NDArray[np.int8], inputs: Array, values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return the kernel rounded to a few values, so that its outputs change as little as possible.

    Args:
        kernel: weights, shape (outputs, n), int8.
        inputs: inputs of the layer less their zero point, shape (samples, n), float32.
        values: the allowed values, shape (count,), int8.

    Returns:
        Rounded weights, shape (outputs, n), int8.
    """
    made = np.empty_like(kernel)
    for first in range(0, kernel.shape[1], INPUTS_PER_BLOCK):
        block = slice(first, first + INPUTS_PER_BLOCK)
        x = inputs[:, block].astype(np.float64)
        left = kernel[:, block].astype(np.float64)
        correlations = x.T @ x
        correlations[np.diag_indices(len(correlations))] += max(
            DAMPING_SHARE * correlations.diagonal().mean(), 1.0
        )
        inverse = np.linalg.cholesky(np.linalg.inv(correlations)).T
        for i in range(left.shape[1]):
            chosen = values[_find_nearest(left[:, i], values.astype(np.float64))]
            made[:, first + i] = chosen
            left[:, i + 1 :] -= np.outer((left[:, i] - chosen) / inverse[i, i], inverse[i, i + 1 :])
    return made


def with_few_values(model: bytes, x: Array, bits: int) -> bytes:
    """Return an integer .tflite whose large dense kernels have at most 2^bits values.

    Args:
        model: an integer .tflite.
        x: calibration samples, shape (n, ...), float32.
        bits: 3 or 4.

    Raises:
        ExportError: no dense layer is large enough.
    """
    inline = to_portable(model)
    network = read_quantized_model(inline)
    dense = [operator.inputs for operator in network.operators if operator.name == "FULLY_CONNECTED"]
    large = {
        kernel: source
        for source, kernel, *_ in dense
        if network.get_tensor(kernel).data is not None
        and network.get_tensor(kernel).size >= MIN_KERNEL_WEIGHTS
    }
    if not large:
        raise ExportError(
            f"no dense layer has {MIN_KERNEL_WEIGHTS:,} weights or more, so --weights {bits} changes "
            "nothing; leave it out, or give a layer more units"
        )
    inputs = _record_inputs(inline, x, set(large.values()))
    made = {}
    for kernel, source in large.items():
        before = network.get_tensor(kernel).data
        zero = network.get_tensor(source).zero_point
        made[kernel] = round_kernel(
            before, inputs[source].reshape(-1, before.shape[1]) - zero, choose_few_values(before, 1 << bits)
        )
    return with_constants(inline, made)


def _record_inputs(model: bytes, x: Array, watched: set[int]) -> dict[int, Array]:
    """Return the values of these tensors for each sample, shape (n, size), float32."""
    interpreter = load_interpreter(model, watch=True)
    interpreter.allocate_tensors()
    entry = interpreter.get_input_details()[0]["index"]
    recorded: dict[int, list[Array]] = {index: [] for index in watched}
    for sample in quantize_input(load_tflite(model), x):
        interpreter.set_tensor(entry, sample[None])
        interpreter.invoke()
        for index, rows in recorded.items():
            rows.append(interpreter.get_tensor(index).ravel().astype(np.float32))
    return {index: np.stack(rows) for index, rows in recorded.items()}

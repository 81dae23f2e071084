"""Imports a given int8 .tflite: its samples from a file, or random inputs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import DataError, ExportError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Labels
from edgefl.data.arrays import read_arrays
from firmware_export.certificate.simplify import SimplifiedModel, simplify_model
from firmware_export.codegen.c_source import generate_c
from firmware_export.codegen.lint import lint
from firmware_export.tflite.interpreter import LoadedModel, load_tflite
from firmware_export.tflite.portable import to_portable
from firmware_export.tflite.quantized_model import read_quantized_model

DEFAULT_RANDOM_INPUTS = 100
MAX_SAMPLES = 100_000
SAMPLE_FILE_REMEDY = "pass a .npz with samples x and, if known, labels y, from numpy.savez(path, x=x, y=y)"


def read_imported_model(path: Path, labels: Sequence[str] = ()) -> SimplifiedModel:
    """Return an int8 model that the generated C can compute, in the form that strict readers accept.

    Args:
        path: the .tflite, whatever trained it.
        labels: name of each output. Empty if the names are unknown.

    Raises:
        ExportError: the file cannot be read, is damaged, has a part without a kernel, or another number of
            outputs than labels. The error names each operator without a kernel with its layer.
    """
    try:
        model = path.read_bytes()
    except OSError as error:
        raise ExportError(f"cannot read the model {path}: {error.strerror}; pass a .tflite file") from error
    read_quantized_model(model)  # refuses a damaged model before its shapes are computed
    simplified = simplify_model(model)
    findings = lint(read_quantized_model(simplified.content))
    if findings:
        listed = "\n".join(f"  {finding}" for finding in findings)
        raise ExportError(
            f"{path} cannot become firmware, expected an int8 model of supported layers:\n{listed}"
        )
    # This refuses shapes that contradict each other, which a runtime does not always survive.
    generate_c(simplified.content, labels=labels)
    return replace(simplified, content=to_portable(simplified.content))


def draw_random_samples(loaded: LoadedModel, count: int, seed: int) -> Array:
    """Return random samples whose quantized values are uniform.

    Args:
        loaded: the model, with an int8 or int16 input.

    Returns:
        Samples, shape (count, ...), float32.
    """
    shape = (count, *loaded.shape[1:])
    limits = np.iinfo(loaded.dtype)
    drawn = derive_rng(seed, 0, "inputs").integers(limits.min, limits.max + 1, shape)
    return dequantize_input(loaded, drawn)


def dequantize_input(loaded: LoadedModel, quantized: Any) -> Array:
    """Return the real values of quantized inputs. Quantizing them again gives the same bytes.

    Args:
        quantized: inputs, shape (n, ...), integers of the type of the input.

    Returns:
        Real values, shape (n, ...), float32.
    """
    values: Array = (np.asarray(quantized, np.float64) - loaded.zero_point) * loaded.scale
    return values.astype(np.float32)


def read_samples(path: Path, model: bytes, count: int) -> tuple[Array, Labels]:
    """Return the first samples of a file, with their labels.

    Args:
        path: a .npz with the array `x`, shape (n, ...), and the labels `y` if they are known. Values of the
            type of the model's input are its integers, and other types are real values.
        model: the int8 .tflite.
        count: maximum number of samples.

    Returns:
        Samples, shape (n, ...), float32, and labels, shape (n,) or (0,), int64.

    Raises:
        DataError: the file cannot be read, has no `x`, or an array has a wrong type, shape or value. A label
            that is not the index of an output is a wrong value.
    """
    x = read_arrays(path, ("x",), remedy=SAMPLE_FILE_REMEDY)["x"]
    y = read_arrays(path, ("y",), some=True, remedy=SAMPLE_FILE_REMEDY).get("y", np.empty(0, np.int64))
    loaded = load_tflite(model)
    if not x.ndim or x.shape[1:] != loaded.shape[1:] or not len(x):
        expected = ", ".join(map(str, loaded.shape[1:]))
        raise DataError(
            f"x of {path} has shape {x.shape}, expected (n, {expected}) for this model; pass other samples"
        )
    if x.dtype.kind not in "fiu":
        raise DataError(
            f"x of {path} has type {x.dtype}, expected numbers; save it as float32 or "
            f"{np.dtype(loaded.dtype)}"
        )
    with np.errstate(over="ignore"):  # the next check finds what is too large
        samples = dequantize_input(loaded, x) if x.dtype == loaded.dtype else x.astype(np.float32)
    if not np.isfinite(samples).all():
        raise DataError(f"x of {path} has values that are not finite, expected numbers; remove those samples")
    if y.size and (y.shape != (len(x),) or y.dtype.kind not in "iu" or y.max() > np.iinfo(np.int64).max):
        raise DataError(
            f"y of {path} is {y.dtype} of shape {y.shape}, expected {len(x)} integers, one label per sample; "
            "save y as int64, or leave it out"
        )
    network = read_quantized_model(model)
    if y.size and len(network.outputs) > 1:
        raise DataError(
            f"y of {path} has labels, and the model has {len(network.outputs)} outputs, expected one whose "
            "largest value is the class; leave y out"
        )
    classes = math.prod(network.get_tensor(network.outputs[0]).shape)
    if y.size and classes == 1:
        raise DataError(
            f"y of {path} has labels, and the model has one output, such as a sigmoid, which has no class of "
            "highest score; leave y out, or end the model with Dense(2) and a softmax"
        )
    if y.size and (y.min() < 0 or y.max() >= classes):
        raise DataError(
            f"y of {path} has labels from {y.min()} to {y.max()}, expected 0 to {classes - 1}, the outputs "
            "of this model; save the index of each sample's class, or leave y out"
        )
    return samples[:count], y[:count].astype(np.int64)

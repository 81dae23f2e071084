"""Golden vectors: the device's held-out samples as quantized inputs, and tflite-micro's outputs for them.

The samples are the device's own data. Keep golden.npz and samples.bin private.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.errors import ExportError
from edgefl.rng import derive_rng
from edgefl.types import Array, Labels, Shard
from firmware_export.certificate.tflm_runner import run_tflm
from firmware_export.tflite.interpreter import load_tflite, quantize_input, run_samples


@dataclass(frozen=True)
class GoldenVectors:
    """Samples with their quantized inputs and outputs.

    Attributes:
        x: samples, shape (n, ...), float32.
        y: labels, shape (n,), int64.
        inputs: quantized samples, shape (n, ...), int8.
        outputs: outputs of tflite-micro, shape (n, classes), int8.
    """

    x: Array
    y: Labels
    inputs: Any
    outputs: Any


@dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy of both models on the samples of one label.

    Attributes:
        label: the label.
        samples: number of samples with the label.
        accuracy_float: share of them that the float model answers correctly.
        accuracy_int8: share of them that the int8 model answers correctly.
    """

    label: int
    samples: int
    accuracy_float: float
    accuracy_int8: float


@dataclass(frozen=True)
class AccuracyComparison:
    """The accuracy of the float and the int8 model.

    Attributes:
        samples: number of samples.
        accuracy_float: share of correct answers of the float model.
        accuracy_int8: share of correct answers of the int8 model.
        agreement: share of samples for which both models give the same answer.
        by_class: the accuracy for each label.
    """

    samples: int
    accuracy_float: float
    accuracy_int8: float
    agreement: float
    by_class: tuple[ClassAccuracy, ...]


def choose_golden_samples(shard: Shard, count: int, seed: int) -> tuple[Array, Labels]:
    """Choose held-out samples at random and return them in the shard's order.

    If nothing is held out, it chooses training samples.

    Args:
        shard: the device's samples.
        count: maximum number of samples.
        seed: random seed.

    Returns:
        Samples and labels, shapes (n, ...) and (n,), float32 and int64.
    """
    x, y = (shard.x_test, shard.y_test) if len(shard.y_test) else (shard.x_train, shard.y_train)
    picked = np.sort(derive_rng(seed, 0, "golden").permutation(len(y))[:count])
    return x[picked], y[picked]


def make_golden(model: bytes, x: Array, y: Labels) -> GoldenVectors:
    """Return the golden vectors of an int8 model.

    Args:
        model: the int8 .tflite.
        x: samples, shape (n, ...), float32.
        y: labels, shape (n,), int64.

    Raises:
        ExportError: the model's input is not int8, the samples have another shape, or tflite-micro is missing
            or refuses the model.
    """
    loaded = load_tflite(model)
    if loaded.dtype != np.int8:
        raise ExportError(
            f"the model takes {np.dtype(loaded.dtype)}, expected int8; export the mixture again"
        )
    inputs = quantize_input(loaded, x)
    return GoldenVectors(np.asarray(x, np.float32), np.asarray(y, np.int64), inputs, run_tflm(model, inputs))


def compare_accuracy(golden: GoldenVectors, model_float: bytes) -> AccuracyComparison:
    """Compare the accuracy of the float model and of the golden outputs.

    The float model runs on LiteRT's default kernels.

    Args:
        golden: the golden vectors of the int8 model.
        model_float: the float .tflite.
    """
    answers, _ = run_samples(load_tflite(model_float), golden.x)
    of_float = answers.argmax(axis=1)
    of_int8 = golden.outputs.argmax(axis=1)
    classes = [
        ClassAccuracy(
            int(label),
            int(at.sum()),
            float((of_float[at] == label).mean()),
            float((of_int8[at] == label).mean()),
        )
        for label in np.unique(golden.y)
        for at in [golden.y == label]
    ]
    return AccuracyComparison(
        len(golden.y),
        float((of_float == golden.y).mean()),
        float((of_int8 == golden.y).mean()),
        float((of_float == of_int8).mean()),
        tuple(classes),
    )


def encode_golden(golden: GoldenVectors) -> bytes:
    """Encode golden vectors as a .npz. Equal vectors give equal bytes."""
    blob = io.BytesIO()
    np.savez_compressed(blob, x=golden.x, y=golden.y, inputs=golden.inputs, outputs=golden.outputs)
    return blob.getvalue()


def decode_golden(blob: bytes) -> GoldenVectors:
    """Decode the golden vectors that `encode_golden` encoded.

    Raises:
        ExportError: the bytes are not such a file.
    """
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as file:
            golden = GoldenVectors(file["x"], file["y"], file["inputs"], file["outputs"])
        # an array without the .npy header loads as bytes, which have no shape
        x, count, inputs, outputs = (
            array.shape[0] for array in (golden.x, golden.y, golden.inputs, golden.outputs)
        )
    except Exception as error:  # zipfile and zlib raise many kinds
        raise ExportError(f"golden.npz cannot be read: {error!r}; export again") from error
    if golden.inputs.dtype != np.int8 or golden.outputs.dtype != np.int8 or golden.outputs.ndim != 2:
        raise ExportError("golden.npz contains other types than int8; export again")
    if not count or not x == inputs == outputs == count:
        raise ExportError("golden.npz has different numbers of inputs, outputs and labels; export again")
    return golden

"""Golden vectors: the device's held-out samples as the model takes them, and what tflite-micro answers to
each.

They are the device's own data: golden.npz and samples.bin stay with whoever may see these.
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
    """x: float32[n, *shape]; y: int64[n]; inputs: int8[n, *shape]; outputs: int8[n, classes], of
    tflite-micro.
    """

    x: Array
    y: Labels
    inputs: Any
    outputs: Any


@dataclass(frozen=True)
class ClassAccuracy:
    """How many samples of a label there are, and the share answered with it by the float and by the int8
    model.
    """

    label: int
    samples: int
    accuracy_float: float
    accuracy_int8: float


@dataclass(frozen=True)
class AccuracyComparison:
    """Shares of right answers over all samples and by class; agreement: the share of samples where int8
    answers as float does.
    """

    samples: int
    accuracy_float: float
    accuracy_int8: float
    agreement: float
    by_class: tuple[ClassAccuracy, ...]


def choose_golden_samples(shard: Shard, count: int, seed: int) -> tuple[Array, Labels]:
    """Return up to `count` held-out samples and their labels in their order.

    Training samples where nothing is held out.
    """
    x, y = (shard.x_test, shard.y_test) if len(shard.y_test) else (shard.x_train, shard.y_train)
    picked = np.sort(derive_rng(seed, 0, "golden").permutation(len(y))[:count])
    return x[picked], y[picked]


def make_golden(model: bytes, x: Array, y: Labels) -> GoldenVectors:
    """Return the vectors of an int8 model. ExportError when its input is not int8."""
    loaded = load_tflite(model)
    if loaded.dtype != np.int8:
        raise ExportError(
            f"the model takes {np.dtype(loaded.dtype)}, expected int8; export the mixture again"
        )
    inputs = quantize_input(loaded, x)
    return GoldenVectors(np.asarray(x, np.float32), np.asarray(y, np.int64), inputs, run_tflm(model, inputs))


def compare_accuracy(golden: GoldenVectors, model_float: bytes) -> AccuracyComparison:
    """Return the accuracies of the float model, on LiteRT's default kernels, and of the golden outputs."""
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
    """Return the vectors as a .npz: the same bytes for the same vectors."""
    blob = io.BytesIO()
    np.savez_compressed(blob, x=golden.x, y=golden.y, inputs=golden.inputs, outputs=golden.outputs)
    return blob.getvalue()


def decode_golden(blob: bytes) -> GoldenVectors:
    """Return what `encode_golden` wrote; ExportError for anything else."""
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as file:
            golden = GoldenVectors(file["x"], file["y"], file["inputs"], file["outputs"])
        # a member without the header of .npy comes as bytes
        x, count, inputs, outputs = (
            array.shape[0] for array in (golden.x, golden.y, golden.inputs, golden.outputs)
        )
    except Exception as error:  # zipfile and zlib raise many kinds
        raise ExportError(f"golden.npz cannot be read: {error!r}; export again") from error
    if golden.inputs.dtype != np.int8 or golden.outputs.dtype != np.int8 or golden.outputs.ndim != 2:
        raise ExportError("golden.npz holds other types than int8; export again")
    if not count or not x == inputs == outputs == count:
        raise ExportError("golden.npz holds as many inputs as outputs and labels no more; export again")
    return golden

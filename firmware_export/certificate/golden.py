"""Golden vectors: samples as quantized inputs, and tflite-micro's outputs for them.

For a mixture they are the device's held-out samples. Keep golden.npz and samples.bin private.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Labels, Shard
from firmware_export.certificate.tflm_runner import measure_tflm
from firmware_export.quantize.anomaly import load_detector, read_model_task
from firmware_export.quantize.task_figures import combine_figures, measure_detector, measure_model
from firmware_export.tflite.interpreter import dequantize_output, load_tflite, quantize_input, run_samples

INPUT_TYPES = (np.int8, np.int16)
OUTPUT_TYPES = (*INPUT_TYPES, np.int32)


@dataclass(frozen=True)
class GoldenVectors:
    """Samples with their quantized inputs and outputs.

    Attributes:
        x: samples, shape (n, ...), float32.
        y: labels, shape (n,), int64. Shape (0,) if the samples have no labels. For a regression the values to
            predict, shape (n, k), float32. For an anomaly task 1 for an anomaly and 0 for a normal sample.
        inputs: quantized samples, shape (n, ...), int8 or int16.
        outputs: outputs of tflite-micro, shape (n, classes), int8, int16 or int32.
        scores: anomaly scores, shape (n,), int64. None for another task.
        arena_bytes: smallest arena in which tflite-micro runs the model. 0 if the vectors are from a file.
    """

    x: Array
    y: Labels
    inputs: Any
    outputs: Any
    scores: Any = None
    arena_bytes: int = 0


@dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy of both models on the samples of one label.

    Attributes:
        label: the label.
        samples: number of samples with the label.
        accuracy_float: share of them that the float model answers correctly. None without a float model.
        accuracy_int8: share of them that the int8 model answers correctly.
    """

    label: int
    samples: int
    accuracy_float: float | None
    accuracy_int8: float


@dataclass(frozen=True)
class AccuracyComparison:
    """The accuracy of the float and the int8 model.

    Attributes:
        samples: number of samples.
        accuracy_float: share of correct answers of the float model. None without labels or a float model.
        accuracy_int8: share of correct answers of the int8 model. None without labels.
        agreement: share of samples for which both models give the same answer. None without a float model.
        by_class: the accuracy for each label.
    """

    samples: int
    accuracy_float: float | None
    accuracy_int8: float | None
    agreement: float | None
    by_class: tuple[ClassAccuracy, ...]


def choose_golden_samples(shard: Shard, count: int, seed: int) -> tuple[Array, Labels]:
    """Choose held-out samples at random and return them in the shard's order.

    If nothing is held out, it chooses training samples.

    Args:
        shard: the device's samples.
        count: maximum number of samples.

    Returns:
        Samples and labels, shapes (n, ...) and (n,), float32 and int64. For other tasks than classification
            the labels are those of GoldenVectors.
    """
    x, y = (shard.x_test, shard.y_test) if len(shard.y_test) else (shard.x_train, shard.y_train)
    if shard.anomaly_test is not None:
        y = shard.anomaly_test.astype(np.int64) if len(shard.y_test) else np.zeros(len(x), np.int64)
    picked = np.sort(derive_rng(seed, 0, "golden").permutation(len(y))[:count])
    return x[picked], y[picked]


def make_golden(model: bytes, x: Array, y: Labels) -> GoldenVectors:
    """Return the golden vectors of an int8 model.

    Args:
        model: the int8 .tflite.
        x: samples, shape (n, ...), float32.
        y: labels as in GoldenVectors.

    Raises:
        ExportError: the model's input is neither int8 nor int16, the samples have another shape, or
            tflite-micro is missing or refuses the model.
    """
    loaded = load_tflite(model)
    if loaded.dtype not in INPUT_TYPES:
        raise ExportError(
            f"the model takes {np.dtype(loaded.dtype)}, expected int8 or int16; export the mixture again"
        )
    inputs = quantize_input(loaded, x)
    run = measure_tflm(model, inputs)
    task = read_model_task(model)
    scores = load_detector(model, loaded).score(inputs, run.outputs) if task and task.is_anomaly else None
    kind = np.float32 if np.asarray(y).dtype.kind == "f" else np.int64
    return GoldenVectors(
        x=np.asarray(x, np.float32),
        y=np.asarray(y, kind),
        inputs=inputs,
        outputs=run.outputs,
        scores=scores,
        arena_bytes=run.arena_bytes,
    )


def compare_accuracy(
    golden: GoldenVectors, model_float: bytes | None, *, is_other_task: bool = False
) -> AccuracyComparison:
    """Compare the accuracy of the float model and of the golden outputs.

    The float model runs on LiteRT's default kernels.

    Args:
        golden: the golden vectors of the int8 model.
        model_float: the float .tflite. None if there is only the int8 model.
        is_other_task: whether the model is no classifier, and so has no accuracy.
    """
    if is_other_task:
        return AccuracyComparison(
            samples=len(golden.inputs), accuracy_float=None, accuracy_int8=None, agreement=None, by_class=()
        )
    of_int8 = golden.outputs.argmax(axis=1)
    of_float = None
    if model_float is not None:
        of_float = run_samples(load_tflite(model_float), golden.x)[0].argmax(axis=1)
    agreement = None if of_float is None else float((of_float == of_int8).mean())
    if not len(golden.y):
        return AccuracyComparison(
            samples=len(golden.inputs),
            accuracy_float=None,
            accuracy_int8=None,
            agreement=agreement,
            by_class=(),
        )

    def measure(answers: Any, at: Any) -> float:
        return float((answers[at] == golden.y[at]).mean())

    classes = tuple(
        ClassAccuracy(
            label=int(label),
            samples=int(at.sum()),
            accuracy_float=None if of_float is None else measure(of_float, at),
            accuracy_int8=measure(of_int8, at),
        )
        for label in np.unique(golden.y)
        for at in [golden.y == label]
    )
    everything = slice(None)
    accuracy_float = None if of_float is None else measure(of_float, everything)
    return AccuracyComparison(
        samples=len(golden.y),
        accuracy_float=accuracy_float,
        accuracy_int8=measure(of_int8, everything),
        agreement=agreement,
        by_class=classes,
    )


def measure_task(golden: GoldenVectors, model: bytes, model_float: bytes | None) -> dict[str, Any] | None:
    """Return the task of a model with its figures on the golden vectors, or None for a classification.

    Args:
        golden: the golden vectors of the int8 model.
        model: the int8 .tflite.
        model_float: the float .tflite. None if there is only the int8 model.

    Returns:
        `kind`, `loss` and the figures of `task_figures.measure_model`, with `_float` and `_int8` behind their
            names. For an anomaly task also `threshold`, `unit`, `false_alarm_rate` and `measured`, as in
            report.json. Samples without labels give no figures.

    Raises:
        ExportError: the labels do not fit the model.
    """
    task = read_model_task(model)
    if task is None:
        return None
    entry: dict[str, Any] = {"kind": task.kind, "loss": task.loss}
    loaded = load_tflite(model, reference=True)
    answers = dequantize_output(loaded, golden.outputs)
    is_anomaly = golden.y > 0 if task.is_anomaly else None
    targets: Any = golden.x.reshape(len(golden.x), -1) if task.is_anomaly else golden.y
    if len(golden.y) and targets.shape != answers.shape:
        raise ExportError(
            f"the labels of the samples have shape {targets.shape}, expected {answers.shape} for this model; "
            "export again with the samples of its federation"
        )
    if len(golden.y):
        on_int8 = measure_model(task.loss, answers, targets, is_anomaly, golden.scores)
        outputs = None if model_float is None else run_samples(load_tflite(model_float), golden.x)[0]
        on_float = {} if outputs is None else measure_model(task.loss, outputs, targets, is_anomaly)
        entry |= combine_figures(on_float, on_int8)
    if is_anomaly is not None:
        detector = load_detector(model, loaded)
        entry |= {
            "threshold": detector.threshold,
            "unit": detector.rule.unit,
            "false_alarm_rate": detector.false_alarm_rate,
            **({"measured": measure_detector(detector, golden.scores, is_anomaly)} if len(golden.y) else {}),
        }
    return entry


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
            golden = GoldenVectors(x=file["x"], y=file["y"], inputs=file["inputs"], outputs=file["outputs"])
        # an array without the .npy header loads as bytes, which have no shape
        x, labels, inputs, outputs = (
            array.shape[0] for array in (golden.x, golden.y, golden.inputs, golden.outputs)
        )
    except Exception as error:  # zipfile and zlib raise many kinds
        raise ExportError(f"golden.npz cannot be read: {error!r}; export again") from error
    if (
        golden.inputs.dtype not in INPUT_TYPES
        or golden.outputs.dtype not in OUTPUT_TYPES
        or golden.outputs.ndim != 2
    ):
        raise ExportError("golden.npz contains other types than int8, int16 and int32; export again")
    if not x or not x == inputs == outputs or labels not in (0, x):
        raise ExportError("golden.npz has different numbers of inputs, outputs and labels; export again")
    return golden

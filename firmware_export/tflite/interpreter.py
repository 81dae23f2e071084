"""Runs a .tflite sample by sample, float or int8, on any of the three runtimes."""

import importlib.metadata
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.system.stderr import suppress_stderr
from edgefl.base.types import Array, Labels
from edgefl.program.plan.runtime import describe_runtime, list_runtimes, load_interpreter
from firmware_export.tflite.portable import check_inside

MICRO_RUNTIME = "tflite-micro"


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run.

    Attributes:
        invoke: maps one sample, shape `shape` and type `dtype`, to the output without its batch axis.
        shape: shape of the input, with a batch axis of 1.
        dtype: type of the input.
        scale: scale of the input's quantization. 0 for a float input.
        zero_point: zero point of the input's quantization.
        runtime: name and version of the runtime.
        output_scale: scale of the output's quantization. 0 for a float output.
        output_zero_point: zero point of the output's quantization.
    """

    invoke: Callable[[Any], Any]
    shape: tuple[int, ...]
    dtype: Any
    scale: float
    zero_point: int
    runtime: str
    output_scale: float = 0.0
    output_zero_point: int = 0


def load_tflite(
    model: bytes, runtime: str = "auto", *, reference: bool = False, threads: int = 1
) -> LoadedModel:
    """Load a model with one input and one output.

    Args:
        model: the .tflite.
        runtime: "auto" chooses an installed runtime. Others are "litert", "tflite-runtime" and
            "tflite-micro".
        reference: whether to use the reference kernels, which are slow and compute like a microcontroller.

    Raises:
        PlanError: the runtime is not installed, or it refuses the model.
        ExportError: the model has several inputs or outputs, or cannot be run.
    """
    with suppress_stderr():  # the runtime prints a line about its delegate
        return _load_micro(model) if runtime == MICRO_RUNTIME else _load(model, runtime, reference, threads)


def _load(model: bytes, runtime: str, reference: bool, threads: int) -> LoadedModel:
    interpreter = load_interpreter(model, threads, reference=reference, runtime=runtime)
    inputs = interpreter.get_input_details()
    outputs = interpreter.get_output_details()
    if len(inputs) != 1 or len(outputs) != 1:
        raise ExportError(
            f"the model has {len(inputs)} inputs and {len(outputs)} outputs, expected one each; is this a "
            "plan's program?"
        )
    try:
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise ExportError(
            f"the model cannot be run here: {error}; it is damaged or needs a newer runtime"
        ) from error
    source = inputs[0]["index"]
    sink = outputs[0]["index"]

    def invoke(sample: Any) -> Any:
        interpreter.set_tensor(source, sample)
        interpreter.invoke()
        return interpreter.get_tensor(sink)[0]

    scale, zero = inputs[0]["quantization"]
    name = describe_runtime(list_runtimes()[0] if runtime == "auto" else runtime) + (
        ", reference kernels" if reference else ""
    )
    output_scale, output_zero = outputs[0]["quantization"]
    return LoadedModel(
        invoke=invoke,
        shape=tuple(int(n) for n in inputs[0]["shape"]),
        dtype=inputs[0]["dtype"],
        scale=float(scale),
        zero_point=int(zero),
        runtime=name,
        output_scale=float(output_scale),
        output_zero_point=int(output_zero),
    )


def _load_micro(model: bytes) -> LoadedModel:
    if importlib.util.find_spec("tflite_micro") is None:
        raise ExportError(
            "tflite-micro is not installed; `pip install --pre tflite-micro`, or the extra `export`"
        )
    check_inside(model)
    if list_runtimes():
        load_interpreter(model)  # tflite-micro trusts its input: a damaged model would abort the process
    from tflite_micro.python.tflite_micro import runtime as micro

    try:
        interpreter = micro.Interpreter.from_bytes(model)
    except (RuntimeError, ValueError) as error:
        raise ExportError(
            f"tflite-micro refuses this model: {error}; it runs int8 models with the operators that it has"
        ) from error

    def invoke(sample: Any) -> Any:
        interpreter.set_input(sample, 0)
        interpreter.invoke()
        return interpreter.get_output(0)[0].copy()

    details = interpreter.get_input_details(0)
    scale, zero = _read_micro_quantization(details)
    shape = tuple(int(n) for n in details["shape"])
    output_scale, output_zero = _read_micro_quantization(interpreter.get_output_details(0))
    return LoadedModel(
        invoke=invoke,
        shape=shape,
        dtype=details["dtype"],
        scale=scale,
        zero_point=zero,
        runtime=f"tflite-micro {importlib.metadata.version('tflite-micro')}",
        output_scale=output_scale,
        output_zero_point=output_zero,
    )


def _read_micro_quantization(details: Any) -> tuple[float, int]:
    quantization = details["quantization_parameters"]
    scale = float(quantization["scales"][0]) if len(quantization["scales"]) else 0.0
    return scale, int(quantization["zero_points"][0]) if len(quantization["zero_points"]) else 0


def quantize_input(loaded: LoadedModel, x: Array) -> Any:
    """Return samples in the type of the model's input.

    Args:
        x: samples, shape (n, ...), float32.

    Returns:
        Samples, shape (n, ...), in the type of the input. A float input returns `x` unchanged.

    Raises:
        ExportError: the samples have another shape than the input.
    """
    if tuple(x.shape[1:]) != loaded.shape[1:]:
        raise ExportError(
            f"the samples are {tuple(x.shape[1:])}, the model takes {loaded.shape[1:]}; is this shard from "
            "another data set?"
        )
    if loaded.dtype == np.float32:
        return x
    limits = np.iinfo(loaded.dtype)
    return np.clip(np.round(x / loaded.scale) + loaded.zero_point, limits.min, limits.max).astype(
        loaded.dtype
    )


def dequantize_output(loaded: LoadedModel, outputs: Any) -> Any:
    """Return the real values of outputs.

    Args:
        outputs: raw outputs, shape (n, ...), in the type of the model's output.

    Returns:
        The values, shape (n, ...). Outputs of a float model are returned unchanged.
    """
    if not loaded.output_scale:
        return outputs
    return loaded.output_scale * (np.asarray(outputs, np.float64) - loaded.output_zero_point)


def run_samples(loaded: LoadedModel, x: Array) -> tuple[Any, Array]:
    """Run a model on each sample.

    Args:
        x: samples, shape (n, ...), float32.

    Returns:
        Raw outputs, shape (n, classes), and the duration of each inference in milliseconds, shape (n,),
            float32.

    Raises:
        ExportError: the samples have another shape than the input.
    """
    rows = []
    times = np.empty(len(x), np.float32)
    for index, sample in enumerate(quantize_input(loaded, x)):
        start = time.perf_counter()
        rows.append(loaded.invoke(sample[None]))
        times[index] = (time.perf_counter() - start) * 1000
    return np.stack(rows), times


def measure_accuracy(predicted: Any, labels: Labels) -> float:
    """Return the share of correct answers.

    Args:
        predicted: outputs, shape (n, classes).
        labels: labels, shape (n,), int64.
    """
    return float((predicted.argmax(axis=1) == labels).mean())

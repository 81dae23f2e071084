"""Runs a .tflite sample by sample, float or int8, on any of the three runtimes."""

import importlib.metadata
import importlib.util
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
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

    Several inputs are one input of shape (1, values), one after another. So are several outputs. Their scales
    and zero points then are arrays, one for each value.

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
    scale: Any
    zero_point: Any
    runtime: str
    output_scale: Any = 0.0
    output_zero_point: Any = 0


@dataclass(frozen=True)
class RuntimeEnd:
    """One input or output of a model in a runtime.

    Attributes:
        shape: its shape, with a batch axis.
        dtype: its type.
        scale: scale of its quantization. 0 for a float tensor.
        zero_point: zero point of its quantization.
    """

    shape: tuple[int, ...]
    dtype: Any
    scale: float
    zero_point: int


def _make_loaded_model(
    run: Callable[[Sequence[Any]], Sequence[Any]],
    inputs: Sequence[RuntimeEnd],
    outputs: Sequence[RuntimeEnd],
    runtime: str,
) -> LoadedModel:
    """Return a loaded model, with one input and one output as in `LoadedModel`.

    Args:
        run: maps the inputs, in their shapes, to the outputs.
        runtime: name and version of the runtime.

    Raises:
        ExportError: the model has several inputs or outputs of different types, or none.
    """
    for noun, ends in (("inputs", inputs), ("outputs", outputs)):
        types = {end.dtype for end in ends}
        if len(ends) != 1 and not (len(types) == 1 and types <= {np.int8, np.int16, np.int32}):
            raise ExportError(
                f"the model has {len(ends)} {noun}, expected one, or several of one integer type; is this a "
                "plan's program?"
            )
    if len(inputs) == len(outputs) == 1:
        (source,), (sink,) = inputs, outputs
        return LoadedModel(
            invoke=lambda sample: run([sample])[0][0],
            shape=source.shape,
            dtype=source.dtype,
            scale=source.scale,
            zero_point=source.zero_point,
            runtime=runtime,
            output_scale=sink.scale,
            output_zero_point=sink.zero_point,
        )
    sizes = [math.prod(end.shape) for end in inputs]
    stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]

    def invoke(sample: Any) -> Any:
        parts = np.split(np.asarray(sample).ravel(), stops[:-1])
        made = run([part.reshape(end.shape) for part, end in zip(parts, inputs, strict=True)])
        return np.concatenate([np.ravel(values) for values in made])

    def repeat(values: Iterable[float], of: Sequence[RuntimeEnd]) -> Any:
        return np.repeat(list(values), [math.prod(end.shape) for end in of])

    return LoadedModel(
        invoke=invoke,
        shape=(1, stops[-1]),
        dtype=inputs[0].dtype,
        scale=repeat((end.scale for end in inputs), inputs),
        zero_point=repeat((end.zero_point for end in inputs), inputs),
        runtime=runtime,
        output_scale=repeat((end.scale for end in outputs), outputs),
        output_zero_point=repeat((end.zero_point for end in outputs), outputs),
    )


def load_tflite(
    model: bytes, runtime: str = "auto", *, reference: bool = False, threads: int = 1
) -> LoadedModel:
    """Load a model.

    Args:
        model: the .tflite.
        runtime: "auto" chooses an installed runtime. Others are "litert", "tflite-runtime" and
            "tflite-micro".
        reference: whether to use the reference kernels, which are slow and compute like a microcontroller.

    Raises:
        PlanError: the runtime is not installed, or it refuses the model.
        ExportError: the model has several inputs or outputs that are not of one integer type, or cannot
            be run.
    """
    with suppress_stderr():  # the runtime prints a line about its delegate
        return _load_micro(model) if runtime == MICRO_RUNTIME else _load(model, runtime, reference, threads)


def _load(model: bytes, runtime: str, reference: bool, threads: int) -> LoadedModel:
    interpreter = load_interpreter(model, threads, reference=reference, runtime=runtime)
    inputs = interpreter.get_input_details()
    outputs = interpreter.get_output_details()
    name = describe_runtime(list_runtimes()[0] if runtime == "auto" else runtime) + (
        ", reference kernels" if reference else ""
    )

    def run(values: Sequence[Any]) -> list[Any]:
        for detail, value in zip(inputs, values, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        return [interpreter.get_tensor(detail["index"]) for detail in outputs]

    loaded = _make_loaded_model(
        run, [_describe_end(detail) for detail in inputs], [_describe_end(detail) for detail in outputs], name
    )
    try:
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise ExportError(
            f"the model cannot be run here: {error}; it is damaged or needs a newer runtime"
        ) from error
    return loaded


def _describe_end(detail: Any) -> RuntimeEnd:
    scale, zero = detail["quantization"]
    return RuntimeEnd(
        shape=tuple(int(n) for n in detail["shape"]),
        dtype=detail["dtype"],
        scale=float(scale),
        zero_point=int(zero),
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

    inputs = _list_micro_ends(interpreter.get_input_details)
    outputs = _list_micro_ends(interpreter.get_output_details)

    def run(values: Sequence[Any]) -> list[Any]:
        for number, value in enumerate(values):
            interpreter.set_input(value, number)
        interpreter.invoke()
        return [interpreter.get_output(number).copy() for number in range(len(outputs))]

    version = importlib.metadata.version("tflite-micro")
    return _make_loaded_model(run, inputs, outputs, f"tflite-micro {version}")


def _list_micro_ends(describe: Callable[[int], Any]) -> list[RuntimeEnd]:
    """Return the inputs or outputs of a model in tflite-micro.

    Args:
        describe: returns the details of one input or output, and raises IndexError behind the last one.
    """
    ends: list[RuntimeEnd] = []
    with suppress(IndexError):
        while True:
            details = describe(len(ends))
            quantization = details["quantization_parameters"]
            ends.append(
                RuntimeEnd(
                    shape=tuple(int(n) for n in details["shape"]),
                    dtype=details["dtype"],
                    scale=float(next(iter(quantization["scales"]), 0.0)),
                    zero_point=int(next(iter(quantization["zero_points"]), 0)),
                )
            )
    return ends


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
    if not np.any(loaded.output_scale):
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

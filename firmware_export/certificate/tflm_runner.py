"""Runs tflite-micro in a separate process.

tflite-micro trusts its input, and a small arena may abort the process.

`python -m firmware_export.certificate.tflm_runner MODEL INPUTS.npy OUT.npz ARENA` writes the outputs. With
`measure` in place of the size ARENA, it also writes the smallest arena in bytes. Otherwise it writes 0.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import VALUE_TYPES, Subgraph, TfliteTensor, read_subgraph
from firmware_export.firmware.limits import TOOL_LIMITS, run_limited
from firmware_export.tflite.portable import check_inside

ARENA_STEP_BYTES = 16
FIRST_ARENA_BYTES = 1 << 10
MAX_ARENA_BYTES = 64 << 20
MEASURE = "measure"


@dataclass(frozen=True)
class TflmRun:
    """The run of a model on tflite-micro.

    Attributes:
        outputs: outputs, shape (n, m), int8.
        arena_bytes: the smallest tensor arena in which the model can be loaded and run, a multiple of 16. The
            size is for a 64-bit computer. Pointers of a 32-bit core are half as wide, so it needs somewhat
            less.
    """

    outputs: Any
    arena_bytes: int


def read_tflm_version() -> str:
    """Return the version of the installed tflite-micro.

    Raises:
        ExportError: tflite-micro is not installed.
    """
    if find_spec("tflite_micro") is None:
        raise ExportError(
            "tflite-micro is not installed, and its outputs are the reference for all others; pip "
            "install --pre tflite-micro"
        )
    try:
        return version("tflite-micro")
    except PackageNotFoundError:
        return "unknown"


def run_tflm(model: bytes, inputs: Any, arena_bytes: int = 0) -> Any:
    """Return the outputs of a model on tflite-micro, one inference after another.

    Args:
        model: the quantized .tflite.
        inputs: quantized samples, shape (n, ...), in the type of the model's input. Several inputs
            of the model follow one another.
        arena_bytes: size of the arena. 0 means MAX_ARENA_BYTES.

    Returns:
        Outputs, shape (n, m), in the type of the model's output. Several outputs of the model follow one
            another.

    Raises:
        ExportError: tflite-micro is missing, refuses the model, or would read its weights as zeros.
    """
    return _run_child(model, inputs, str(arena_bytes)).outputs


def measure_tflm(model: bytes, inputs: Any) -> TflmRun:
    """Run a model on tflite-micro, and measure the arena that it needs.

    A bisection finds the smallest arena, because the recording allocator reports too little.

    Args:
        model: the int8 .tflite.
        inputs: quantized samples, shape (n, ...), int8.

    Raises:
        ExportError: as in `run_tflm`, or the model does not run in MAX_ARENA_BYTES.
    """
    run = _run_child(model, inputs, MEASURE)
    if not run.arena_bytes:
        raise ExportError(
            f"tflite-micro cannot run the model in an arena of up to {MAX_ARENA_BYTES:,} bytes; make the "
            "model smaller: fewer filters, or smaller samples"
        )
    return run


def _run_child(model: bytes, inputs: Any, arena: str) -> TflmRun:
    """Run a model in a process of its own.

    Args:
        arena: size of the arena in bytes, or MEASURE.
    """
    read_tflm_version()
    check_inside(model)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "model.tflite").write_bytes(model)
        np.save(work / "inputs.npy", inputs)
        files = (str(work / file) for file in ("model.tflite", "inputs.npy", "run.npz"))
        command = [sys.executable, "-m", "firmware_export.certificate.tflm_runner", *files, arena]
        try:
            done = run_limited(command, Path.cwd(), TOOL_LIMITS)
        except subprocess.TimeoutExpired as error:
            raise ExportError(
                f"tflite-micro did not finish within {TOOL_LIMITS.time_s:.0f} s; try fewer --samples"
            ) from error
        if done.returncode:
            reason = find_reason(done.text) or f"it exited with {done.returncode}"
            raise ExportError(
                f"tflite-micro refuses the model: {reason}; it runs int8 models with the operators that it "
                "has"
            )
        with np.load(work / "run.npz") as made:
            return TflmRun(made["outputs"].reshape(len(inputs), -1), int(made["arena_bytes"]))


def find_reason(stderr: str) -> str:
    """Return the reason of a failure from the text that tflite-micro printed.

    Args:
        stderr: for example the reason of a kernel, "Node PAD (number 1) failed to prepare with status 1", and
            a traceback.

    Returns:
        The line about the operator and the line before it, which has the reason. Without such a line, the
            last line. Empty if there is no text.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.startswith("Node "):
            return ": ".join([line, *lines[max(number - 1, 0) : number]])
    return lines[-1] if lines else ""


def _load_interpreter(model: bytes, size: int) -> Any:
    from tflite_micro.python.tflite_micro import runtime

    return runtime.Interpreter.from_bytes(model, arena_size=size or MAX_ARENA_BYTES)


def _compute_outputs(model: Path, inputs: Path, size: int) -> Any:
    content = model.read_bytes()
    graph = read_subgraph(content)
    interpreter = _load_interpreter(content, size)
    rows = []
    for sample in np.load(inputs):
        _set_inputs(interpreter, [graph.tensors[index] for index in graph.inputs], sample)
        interpreter.invoke()
        rows.append(np.concatenate([interpreter.get_output(i).ravel() for i in range(len(graph.outputs))]))
    return np.stack(rows)


def _set_inputs(interpreter: Any, tensors: Sequence[TfliteTensor], sample: Any) -> None:
    """Set the inputs of a model, whose values follow one another in a sample."""
    ends = np.cumsum([tensor.size for tensor in tensors])
    for number, (tensor, part) in enumerate(zip(tensors, np.split(sample.ravel(), ends[:-1]), strict=True)):
        interpreter.set_input(part.reshape(tensor.shape), number)


def _search_arena(model: Path) -> int:
    """Return the smallest arena in which the model runs, or 0 if MAX_ARENA_BYTES is too small."""
    from tflite_micro.python.tflite_micro import runtime  # noqa: F401  # once, for the processes of all tries

    content = model.read_bytes()
    graph = read_subgraph(content)
    low = 0
    high = FIRST_ARENA_BYTES
    while not _try_arena(content, graph, high):
        low = high
        high *= 2
        if high > MAX_ARENA_BYTES:
            return 0
    while high - low > ARENA_STEP_BYTES:
        middle = (low + high) // (2 * ARENA_STEP_BYTES) * ARENA_STEP_BYTES
        low, high = (low, middle) if _try_arena(content, graph, middle) else (middle, high)
    return high


def _try_arena(model: bytes, graph: Subgraph, size: int) -> bool:
    """Return whether the model runs in an arena of this size, without printing why not.

    A failure damages the memory of tflite-micro, or ends the process. So each size is tried in a process of
    its own, a copy of this one, which has not used tflite-micro.
    """
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1] == 0
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        interpreter = _load_interpreter(model, size)
        tensors = [graph.tensors[index] for index in graph.inputs]
        zeros = np.zeros(sum(tensor.size for tensor in tensors), VALUE_TYPES[tensors[0].dtype])
        _set_inputs(interpreter, tensors, zeros)
        interpreter.invoke()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    model_file, inputs_file, run_file = map(Path, sys.argv[1:4])
    is_measured = sys.argv[4] == MEASURE
    smallest = _search_arena(model_file) if is_measured else 0  # before this process uses tflite-micro
    computed = _compute_outputs(model_file, inputs_file, 0 if is_measured else int(sys.argv[4]))
    np.savez(run_file, outputs=computed, arena_bytes=smallest)

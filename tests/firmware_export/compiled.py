"""Compiles and runs generated C on the host, and compares it with tflite-micro sample by sample."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.program.plan.tflite import VALUE_TYPES, read_subgraph
from firmware_export.codegen.c_source import CSource, generate_c
from firmware_export.tflite.interpreter import load_tflite, quantize_input
from firmware_export.tflite.portable import to_portable
from firmware_export.tflite.quantized_model import QuantizedModel

STRICT = (
    "-std=c99",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pedantic",
    "-Wconversion",
    "-Wshadow",
    "-Wcast-qual",
    "-Wstrict-prototypes",
)
ARENA_BYTES = 1 << 24
MAIN = """
#include <stdio.h>
#include <string.h>
#include "model.h"
int main(void)
{
    static __typeof__(*model_input()) input[MODEL_INPUT_VALUES];
    static __typeof__(*model_output()) output[MODEL_OUTPUT_VALUES], in_arena[MODEL_OUTPUT_VALUES];
    while (fread(input, 1, sizeof input, stdin) == sizeof input) {
        memcpy(model_input(), input, sizeof input);
        model_invoke(model_input(), model_output());
        memcpy(in_arena, model_output(), sizeof output);
#ifdef MODEL_STATE_BYTES
        memcpy(output, in_arena, sizeof output); /* a second inference would continue the sequence */
#else
        model_invoke(input, output);
#endif
        if (memcmp(in_arena, output, sizeof output)) {
            return 1;
        }
        fwrite(output, 1, sizeof output, stdout);
#ifdef MODEL_EXPERTS
        fwrite(model_gate, 1, MODEL_EXPERTS, stderr);
#endif
    }
    return 0;
}
"""


def draw_inputs(network: QuantizedModel, rng: np.random.Generator, count: int) -> Any:
    """Return inputs of a model with one input, shape (n, ...). The first two have only extreme values."""
    tensor = network.get_tensor(network.inputs[0])
    limits = np.iinfo(VALUE_TYPES[tensor.dtype])
    x = rng.integers(limits.min, limits.max + 1, (count, *tensor.shape[1:])).astype(limits.dtype)
    x[0], x[1] = limits.max, limits.min
    return x


def write_files(source: CSource, directory: Path) -> list[Path]:
    """Write the files, and return those to compile."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in source.files.items():
        (directory / name).write_text(text)
    return [directory / "model.c", directory / "model_weights.c"]


def build(source: CSource, directory: Path, *flags: str, main: str = MAIN) -> Path:
    """Compile with strict warnings as errors, and return the program."""
    files = write_files(source, directory)
    (directory / "main.c").write_text(main)
    program = directory / "program"
    command = ["gcc", *STRICT, "-O2", *flags, "-o", str(program), str(directory / "main.c"), *map(str, files)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return program


def run(program: Path, samples: Any, outputs: int, dtype: Any = np.int8) -> tuple[Any, bytes]:
    """Run a program on inputs.

    Args:
        dtype: type of the outputs.

    Returns:
        Outputs, shape (n, outputs), and the bytes of the gates.
    """
    ran = subprocess.run([program], input=samples.tobytes(), capture_output=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return np.frombuffer(ran.stdout, dtype).reshape(len(samples), outputs), ran.stderr


def run_micro(model: bytes, samples: Any) -> Any:
    """Return tflite-micro's outputs, shape (n, m), in their type.

    Args:
        samples: inputs, shape (n, ...). Several inputs of the model follow one another. So do the outputs.
    """
    from tflite_micro.python.tflite_micro import runtime

    graph = read_subgraph(model)
    shapes = [graph.tensors[index].shape for index in graph.inputs]
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    interpreter = runtime.Interpreter.from_bytes(to_portable(model), arena_size=ARENA_BYTES)
    rows = []
    for sample in samples:
        for number, part in enumerate(np.split(sample.ravel(), ends[:-1])):
            interpreter.set_input(part.reshape(shapes[number]), number)
        interpreter.invoke()
        made = [interpreter.get_output(number).copy().ravel() for number in range(len(graph.outputs))]
        rows.append(np.concatenate(made))
    return np.stack(rows)


def check_against_micro(model: bytes, x: Any, directory: Path) -> None:
    """Check that the C of a model gives tflite-micro's bytes for samples x, shape (n, ...), float32."""
    samples = quantize_input(load_tflite(model, reference=True), x)
    expected = run_micro(model, samples)
    np.testing.assert_array_equal(
        run(build(generate_c(model), directory), samples, expected.shape[1], expected.dtype)[0], expected
    )

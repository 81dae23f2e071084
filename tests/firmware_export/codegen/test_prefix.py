"""The interface of the generated C: several models in a program, C++, the caller's arena, helpers."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from firmware_export.codegen.c_source import generate_c
from firmware_export.codegen.prefix import check_prefix, rename_symbols
from firmware_export.tflite.interpreter import load_tflite, quantize_input

pytest.importorskip("tflite_micro")
TWO_MODELS = """
#include <cstdint>
#include <cstdio>
#include "door.h"
#include "motor.h"
int main()
{
    while (std::fread(door_input(), 1, DOOR_INPUT_BYTES, stdin) == DOOR_INPUT_BYTES) {
        if (std::fread(motor_input(), 1, MOTOR_INPUT_BYTES, stdin) != MOTOR_INPUT_BYTES) {
            return 1;
        }
        door_invoke(door_input(), door_output());
        motor_invoke(motor_input(), motor_output());
        std::fwrite(door_output(), 1, DOOR_OUTPUT_BYTES, stdout);
        std::fwrite(motor_output(), 1, MOTOR_OUTPUT_BYTES, stdout);
    }
    return 0;
}
"""
TWO_ARENAS = """
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include "model.h"
#define SAMPLES 2000
static int8_t inputs[2][MODEL_INPUT_BYTES], outputs[2][SAMPLES][MODEL_OUTPUT_BYTES];
static uint64_t arenas[2][MODEL_ARENA_BYTES / 8];
static void *work(void *which)
{
    const int i = which != 0;
    for (int sample = 0; sample < SAMPLES; sample++) {
        model_run(arenas[i], inputs[i], outputs[i][sample]);
    }
    return 0;
}
int main(void)
{
    pthread_t other;
    if (fread(inputs, 1, sizeof inputs, stdin) != sizeof inputs || pthread_create(&other, 0, work, arenas)) {
        return 1;
    }
    work(0);
    pthread_join(other, 0);
    fwrite(outputs, 1, sizeof outputs, stdout);
    return 0;
}
"""
QUANTIZE_AND_DEQUANTIZE = """
#include <stdio.h>
#include "model.h"
int main(void)
{
    float value;
    while (fread(&value, sizeof value, 1, stdin) == 1) {
        const int8_t quantized = model_quantize_input(value);
        const float real = model_dequantize_output(quantized);
        fwrite(&quantized, 1, 1, stdout);
        fwrite(&real, sizeof real, 1, stdout);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def models(graphs, random_models) -> dict[str, bytes]:
    """Two models with many kernels in common."""
    return {
        "door": random_models.make_every_kernel_model(graphs),
        "motor": random_models.make_random_model(graphs, 5)[1],
    }


def compile_program(sources: list[Path], program: Path, *flags: str) -> Path:
    compiler = "g++" if any(path.suffix == ".cpp" for path in sources) else "gcc"
    objects = []
    for path in sources:
        command = [
            "g++" if path.suffix == ".cpp" else "gcc",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            *flags,
            "-c",
            path,
        ]
        objects.append(path.with_suffix(".o"))
        ran = subprocess.run([*command, "-o", objects[-1]], capture_output=True, text=True, timeout=250)
        assert ran.returncode == 0, ran.stderr
    ran = subprocess.run(
        [compiler, *flags, *objects, "-pthread", "-o", program], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return program


def write_sources(files: dict[str, str], directory: Path) -> list[Path]:
    for name, text in files.items():
        (directory / name).write_text(text)
    return [directory / name for name in files if name.endswith(".c")]


def draw_inputs(model: bytes, count: int) -> np.ndarray:
    shape = load_tflite(model, reference=True).shape[1:]
    return np.random.default_rng(4).integers(-128, 128, (count, *shape)).astype(np.int8)


def test_two_models_run_in_one_cpp_program(models, compiled, tmp_path) -> None:
    sources = [tmp_path / "main.cpp"]
    sources[0].write_text(TWO_MODELS)
    inputs = {name: draw_inputs(model, 20) for name, model in models.items()}
    for name, model in models.items():
        sources += write_sources(rename_symbols(generate_c(model).files, name), tmp_path)
    program = compile_program(sources, tmp_path / "program")
    sent = b"".join(inputs["door"][i].tobytes() + inputs["motor"][i].tobytes() for i in range(20))
    ran = subprocess.run([program], input=sent, capture_output=True, timeout=100)
    expected = [compiled.run_micro(models[name], inputs[name]) for name in ("door", "motor")]
    assert ran.returncode == 0
    received = np.frombuffer(ran.stdout, np.int8).reshape(20, -1)
    np.testing.assert_array_equal(received, np.hstack([rows.reshape(20, -1) for rows in expected]))


def test_inferences_in_two_arenas_run_at_the_same_time(models, compiled, tmp_path) -> None:
    model = models["door"]
    sources = [tmp_path / "main.c", *write_sources(dict(generate_c(model).files), tmp_path)]
    sources[0].write_text(TWO_ARENAS)
    program = compile_program(sources, tmp_path / "program", "-fsanitize=thread")
    inputs = draw_inputs(model, 2)
    ran = subprocess.run([program], input=inputs.tobytes(), capture_output=True, timeout=250)
    if b"unexpected memory mapping" in ran.stderr:
        pytest.skip("this kernel's addresses are too random for GCC's thread sanitizer")
    assert ran.returncode == 0, ran.stderr
    received = np.frombuffer(ran.stdout, np.int8).reshape(2, 2000, -1)
    expected = compiled.run_micro(model, inputs).reshape(2, 1, -1)
    assert (received == expected).all()


def test_functions_of_the_header_quantize_like_the_interpreter(graphs, tmp_path) -> None:
    """A scale that is a power of two makes ties exact, and an odd zero point shows the order of the steps."""
    tensors = [graphs.T((1, 1), 0.5, 1), graphs.T((1, 1), 0.25, -3)]
    model = graphs.make_tflite(tensors, [graphs.Op("RELU", (0,), (1,))])
    sources = [tmp_path / "main.c", *write_sources(dict(generate_c(model).files), tmp_path)]
    sources[0].write_text(QUANTIZE_AND_DEQUANTIZE)
    program = compile_program(sources, tmp_path / "program", "-std=c99", "-pedantic", "-Wconversion")
    steps = np.concatenate([np.arange(-300, 300, 0.5), np.random.default_rng(0).uniform(-200, 200, 1000)])
    values = np.append(steps * 0.5, [1e30, -1e30, np.inf, -np.inf]).astype(np.float32)
    sent = np.append(values, np.float32(np.nan)).tobytes()
    ran = subprocess.run([program], input=sent, capture_output=True, check=True, timeout=100)
    rows = np.frombuffer(ran.stdout, np.dtype([("quantized", "i1"), ("real", "<f4")]))
    expected = quantize_input(load_tflite(model, reference=True), values[:, None])[:, 0]
    np.testing.assert_array_equal(rows["quantized"][:-1], expected)
    np.testing.assert_array_equal(rows["real"], 0.25 * (rows["quantized"].astype(np.float32) + 3))
    assert rows["quantized"][-1] == -128


@pytest.mark.parametrize("prefix", ["", "Kws", "7up", "a-b", "a__b", "_a", "a_", "x" * 25, "a b", 'a"'])
def test_unusable_prefixes_are_named(prefix) -> None:
    with pytest.raises(ConfigError, match="lower case letters"):
        check_prefix(prefix)


@pytest.mark.parametrize("prefix", ["stdint", "math", "arm_acle", "run", "arduino", "selftest"])
def test_prefixes_that_hide_a_header_or_a_function_are_refused(prefix) -> None:
    with pytest.raises(ConfigError, match=f"{prefix!r} is taken"):
        check_prefix(prefix)


def test_prefix_changes_symbols_macros_and_files_only(models) -> None:
    files = generate_c(models["door"]).files
    renamed = rename_symbols(files, "door_2")
    assert renamed.keys() == {"door_2.h", "door_2.c", "door_2_weights.c"}
    assert '#include "door_2.h"' in renamed["door_2.c"]
    assert "EDGEFL_DOOR_2_H" in renamed["door_2.h"] and "DOOR_2_INPUT_BYTES" in renamed["door_2.h"]
    assert not [line for text in renamed.values() for line in text.split("\n") if "model_invoke" in line]
    assert rename_symbols(files, "model") == files

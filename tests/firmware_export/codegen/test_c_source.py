"""The C of real mixtures gives the bytes of tflite-micro.

It is strict C99, reproducible, and free of undefined behaviour.
"""

import re
import subprocess
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from edgefl_export_tests_mixtures import MIXTURES  # conftest.py has loaded it

from edgefl.base.errors import ExportError
from edgefl.base.tasks.samples import SAMPLES_METADATA_NAME, SamplesConfig, encode_samples
from edgefl.program.plan.fill import fill_template
from edgefl.program.plan.tflite import with_metadata
from firmware_export.codegen.c_source import generate_c
from firmware_export.codegen.layer import make_identifier
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.targets import TARGETS
from firmware_export.quantize.quantize import RECIPES, quantize
from firmware_export.quantize.ranges import record_extremes
from firmware_export.tflite.interpreter import load_tflite, quantize_input
from tests.firmware_export.graphs import Op, T, make_tflite

GATED = {"aem": 3, "ensemble": 3, "fedmix": 3, "pfl-mf": 2, "pfl-mfe": 2}
BLENDED = {"blend": 3, "blend-of-mixture": 4}
"""Number of experts of a kind with a gate, and of a blend, which has none."""
CORES = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "rv32imc", "lx106")
RUNTIME_FUNCTIONS = ("__aeabi_", "__gnu_thumb1_", "__muldi3", "__divsi3", "__modsi3")
"""Functions of libgcc for what a core has no instruction for."""
PARTS_MAIN = """
#include <stdio.h>
#include "model.h"
int main(int argc, char **argv)
{
    static uint32_t parts[MODEL_PARTS][1 << 18];
    static int8_t input[MODEL_INPUT_BYTES], output[MODEL_OUTPUT_BYTES];
    for (int i = 0; i < MODEL_PARTS; i++) {
        fwrite(model_part[i], 1, model_part_bytes[i], stderr);
    }
    if (argc > 1) {
        FILE *file = fopen(argv[1], "rb");
        for (int i = 0; i < MODEL_PARTS; i++) {
            if (fread(parts[i], 1, model_part_bytes[i], file) != model_part_bytes[i]) {
                return 1;
            }
            model_part[i] = parts[i];
        }
        fclose(file);
    }
    while (fread(input, 1, sizeof input, stdin) == sizeof input) {
        model_invoke(input, output);
        fwrite(output, 1, sizeof output, stdout);
    }
    return 0;
}
"""


@pytest.fixture(scope="module", params=MIXTURES)
def made(request, mixture_of):
    return mixture_of(*request.param)


def quantize_samples(made, count: int = 1000):
    x = np.concatenate([made.shard.x_test, made.shard.x_train])[:count]
    return quantize_input(load_tflite(made.model, reference=True), x)


def test_c_of_every_mixture_gives_tflite_micro_bytes(made, compiled, tmp_path) -> None:
    pytest.importorskip("tflite_micro")
    source = generate_c(made.model)
    x = quantize_samples(made)
    program = compiled.build(source, tmp_path)
    expected = compiled.run_micro(made.model, x)
    received, gates = compiled.run(program, x, expected.shape[1])
    assert len(x) >= 700
    np.testing.assert_array_equal(received, expected)
    gated = GATED.get(made.kind, 0)
    experts = BLENDED.get(made.kind, gated)
    assert [f"expert{k}" in source.parts for k in range(4)] == [k < experts for k in range(4)]
    assert len(gates) == gated * len(x)
    assert ("gate" in source.parts) == bool(gated)


def test_generated_c_is_reproducible_and_reports_its_ram_size(made, compiled, tmp_path) -> None:
    first = generate_c(made.model)
    second = generate_c(made.model)
    assert first == second and list(first.files) == ["model.h", "model.c", "model_weights.c"]
    assert f"#define MODEL_RAM_BYTES {first.ram_bytes}\n" in first.files["model.h"]
    assert len(first.files["model.h"]) > 0 and not re.search(
        r"\b(float|double|malloc|include <(?!stdint|arm_acle|arm_mve))", first.files["model.c"]
    )
    assert first.weight_bytes == sum(map(len, first.images.values()))
    macs = sum(layer.macs for layer in first.layers)
    assert macs > 10_000 and all(f", {layer.name}: " in first.files["model.c"] for layer in first.layers)


ARENA_MAIN = """
#include <stdio.h>
#include "model.h"
static uint64_t memory[MODEL_ARENA_BYTES / 8 + 1];
int main(void)
{
    static int8_t input[MODEL_INPUT_BYTES], output[MODEL_OUTPUT_BYTES];
    for (int shift = 0; shift <= 8; shift++) {
        output[0] = 99;
        printf("%d ", model_run((char *)memory + shift, input, output) == 0 && output[0] != 99);
    }
    return 0;
}
"""


def test_arena_that_is_not_aligned_is_refused(compiled, graphs, tmp_path) -> None:
    tensors = [graphs.T((1, 4), 0.05, 3), graphs.T((1, 4), 0.05, 3)]
    source = generate_c(graphs.make_tflite(tensors, [graphs.Op("RELU", (0,), (1,))]))
    program = compiled.build(source, tmp_path, main=ARENA_MAIN)
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["1", *["0"] * 7, "1"]


def test_the_last_layer_has_the_name_of_its_weights(digits) -> None:
    """The converter calls the output of the model `PartitionedCall:0`."""
    model = fill_template(digits.plan.template, digits.plan.spec.bindings, digits.mixture.weights)
    source = generate_c(quantize(model, record_extremes(model, digits.shard.x_train[:60]), RECIPES[0]))
    names = [layer.name for layer in source.layers]
    assert not [name for name in names if "partitionedcall" in name]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("output", "constants", "name"),
    [
        ("dense/Relu;dense/BiasAdd", ["dense/MatMul"], "dense"),
        ("PartitionedCall:0", ["fc3/MatMul", "fc3/add"], "fc3"),
        ("StatefulPartitionedCall_1:0", ["arith.constant7", "tfl.pseudo_qconst3"], "fully_connected"),
        ("StatefulPartitionedCall/model/fc3/add", [], "model_fc3"),
        ("PartitionedCall:0", [], "fully_connected"),
    ],
)
def test_layer_is_named_after_its_output_or_weights(output: str, constants: list[str], name: str) -> None:
    named = [SimpleNamespace(name=output, data=None)]
    named += [SimpleNamespace(name=constant, data=np.zeros(1)) for constant in constants]
    network: Any = SimpleNamespace(get_tensor=lambda index: named[index])
    inputs = (-1, *range(1, len(named)))
    operator: Any = SimpleNamespace(name="FULLY_CONNECTED", inputs=inputs, outputs=(0,))
    assert make_identifier(network, operator) == name


@pytest.fixture(scope="module")
def lenets(fashion, digits):
    """Two int8 models of one plan, and samples of the second one."""
    models = []
    for trained in (fashion, digits):
        model = fill_template(trained.plan.template, trained.plan.spec.bindings, trained.mixture.weights)
        models.append(quantize(model, record_extremes(model, trained.shard.x_train[:60]), RECIPES[0]))
    return *models, quantize_input(load_tflite(models[1], reference=True), digits.shard.x_test[:60])


def test_generated_c_has_no_undefined_behaviour(lenets, compiled, tmp_path) -> None:
    first, _, x = lenets
    program = compiled.build(
        generate_c(first), tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    )
    np.testing.assert_array_equal(compiled.run(program, x, 10)[0], compiled.run_micro(first, x))


def test_firmware_with_replaced_parts_computes_the_other_model(lenets, compiled, tmp_path) -> None:
    """An update sends the images of the parts, which hold everything that depends on weights and scales."""
    first, second, x = lenets
    one = generate_c(first)
    other = generate_c(second)
    assert one.layout == other.layout and one.parts == other.parts and one.images != other.images
    program = compiled.build(one, tmp_path, main=PARTS_MAIN)
    (tmp_path / "parts").write_bytes(b"".join(other.images[name] for name in other.parts))
    ran = subprocess.run([program, tmp_path / "parts"], input=x.tobytes(), capture_output=True, timeout=60)
    assert ran.stderr == b"".join(one.images[name] for name in one.parts)
    np.testing.assert_array_equal(
        np.frombuffer(ran.stdout, np.int8).reshape(-1, 10), compiled.run_micro(second, x)
    )


def test_expert_below_the_gate_threshold_is_skipped(mixture_of, compiled, tmp_path) -> None:
    made = mixture_of("aem", "uci-har")
    x = quantize_samples(made, 300)
    expected, gates = compiled.run(compiled.build(generate_c(made.model), tmp_path / "all"), x, 6)
    skipping = generate_c(made.model, threshold=0.3)
    received, same_gates = compiled.run(compiled.build(skipping, tmp_path / "some"), x, 6)
    assert gates == same_gates
    values = (np.frombuffer(gates, np.int8).reshape(-1, 3).astype(int) + 128) / 256
    every = ((values >= 0.3) | (values == 0)).all(axis=1)
    assert not every.all() and (received != expected).any()
    np.testing.assert_array_equal(received[every], expected[every])
    assert skipping.layout == generate_c(made.model).layout, "the threshold lies in the gate's part"
    for threshold in (-0.1, 0.34, 1.0):
        with pytest.raises(ExportError, match=r"expected 0 <= threshold < 0.333"):
            generate_c(made.model, threshold=threshold)
    with pytest.raises(ExportError, match="this model has no gate"):
        generate_c(mixture_of("single", "uci-har").model, threshold=0.1)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("level", [pytest.param("-O0", marks=pytest.mark.slow), "-O2"])
@pytest.mark.parametrize("data", ["uci-har", pytest.param("fashion-mnist", marks=pytest.mark.slow)])
def test_c_compiled_for_a_core_needs_no_library(mixture_of, compiled, tmp_path, data, core, level) -> None:
    target = TARGETS[core]
    if reason := explain_not_runnable(target):
        pytest.skip(reason)
    files = compiled.write_files(generate_c(mixture_of("aem", data).model), tmp_path)
    command = [target.architecture.gcc, *target.flags, "-ffreestanding", level, *compiled.STRICT]
    for file in files:
        ran = subprocess.run(
            [*command, "-c", file, "-o", file.with_suffix(".o")], capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
    names = subprocess.run(
        [f"{target.architecture.tool_prefix}nm", "-u", files[0].with_suffix(".o")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    foreign = {name for name in names if name != "U" and not name.startswith(("model_", *RUNTIME_FUNCTIONS))}
    if level == "-O0":  # GCC then copies a struct with memcpy, which every freestanding program has
        foreign -= {"memcpy"}
    assert not foreign and not (level != "-O0" and any("mem" in name for name in names))


@pytest.mark.parametrize(
    ("samples", "lines"),
    [
        (
            SamplesConfig(scale=255, max_value=1),
            ["/* The input is a sample divided by 255: values from 0 to 1. */"],
        ),
        (
            SamplesConfig(channels=("ax", "a*/\n/*y")),
            [
                "/* The input is a sample, with 8-bit values such as pixels divided by 255. */",
                "/* Channels in order: ax, a* /?/ *y. */",
            ],
        ),
        (SamplesConfig(scale=1, max_value=255), ["without any scaling: values from 0 to 255. */"]),
        (SamplesConfig(scale=4, max_value=1, min_value=-1), ["divided by 4: values from -1 to 1. */"]),
        (None, []),
    ],
)
def test_header_states_unit_and_channels_of_the_input(samples, lines) -> None:
    model = make_tflite(
        [T(shape=(1, 2, 2), scales=0.5, zero=0), T(shape=(1, 2, 2), scales=0.5, zero=0)],
        [Op(name="RELU", inputs=(0,), outputs=(1,))],
    )
    if samples is not None:
        model = with_metadata(model, {SAMPLES_METADATA_NAME: encode_samples(samples)})
    header = generate_c(model).files["model.h"]
    assert all(line in header for line in lines)
    assert ("The input is" in header) == bool(lines)

"""The kernels for the instructions of each core, on random models in QEMU, compared with tflite-micro."""

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.codegen.c_source import generate_c
from firmware_export.firmware.firmware import build_and_run, explain_not_runnable
from firmware_export.firmware.targets import TARGETS
from firmware_export.tflite.quantized_model import read_quantized_model

pytest.importorskip("tflite_micro")
KINDS = 9
"""Successive seeds go through the kinds of models."""
REFUSED = {59, 68}
"""Seeds whose norms follow one another until a multiplier is above 2^31, which the export refuses."""
SAMPLES = 12
HELIUM = "cortex-m55"
"""It has kernels of its own. The kernels of the other cores also run in other tests."""


def check_core(compiled, core, model, tmp_path, optimize="speed"):
    """Check that a core gives the bytes of tflite-micro."""
    if reason := explain_not_runnable(TARGETS[core]):
        pytest.skip(reason)
    network = read_quantized_model(model)
    x = compiled.draw_inputs(network, np.random.default_rng(2), SAMPLES)
    _, ran = build_and_run(generate_c(model, optimize=optimize).files, TARGETS[core], x, tmp_path / core)
    np.testing.assert_array_equal(ran.outputs, compiled.run_micro(model, x))


@pytest.mark.parametrize(
    ("core", "seed"),
    [
        *((HELIUM, seed) for seed in range(2 * KINDS)),
        *(
            pytest.param(HELIUM, seed, marks=pytest.mark.slow)
            for seed in sorted({*range(2 * KINDS, 12 * KINDS)} - REFUSED)
        ),
        *(
            pytest.param(core, seed, marks=pytest.mark.slow)
            for core in ("cortex-m3", "cortex-m4", "rv32imc", "lx106")
            for seed in range(4 * KINDS)
        ),
    ],
)
def test_core_gives_tflite_micro_bytes(compiled, graphs, random_models, tmp_path, core, seed) -> None:
    _, model = random_models.make_random_model(graphs, seed)
    check_core(compiled, core, model, tmp_path, "speed" if seed % 2 else "ram")


def test_helium_runs_every_kernel(compiled, graphs, random_models, tmp_path) -> None:
    check_core(compiled, HELIUM, random_models.make_every_kernel_model(graphs), tmp_path, "ram")


@pytest.mark.parametrize("core", ["cortex-m0", "cortex-m4", HELIUM, "rv32imc", "lx106"])
def test_core_keeps_a_state(compiled, graphs, random_models, tmp_path, core) -> None:
    check_core(compiled, core, random_models.make_every_stateful_kernel_model(graphs), tmp_path)


@pytest.mark.parametrize("core", ["cortex-m0", "cortex-m4", HELIUM, "rv32imc", "lx106"])
def test_core_computes_with_16_bits(compiled, graphs, random_models, tmp_path, core) -> None:
    check_core(compiled, core, random_models.make_every_wide_kernel_model(graphs), tmp_path)


@pytest.mark.parametrize("core", [HELIUM, "cortex-m4", "rv32imc", "lx106"])
def test_dilated_kernel_may_lie_outside_the_input(compiled, graphs, random_models, tmp_path, core) -> None:
    """Two rows that lie five apart meet no row of an input of three, so the middle output is the bias."""
    made = random_models.Graph(graphs=graphs, rng=np.random.default_rng(3))
    source = made.add_tensor((1, 3, 3, 8), 0.05, 7)
    inputs, scale = made.add_kernel(source, made.draw_weights(1, 2, 2, 8), 8, 3)
    options = {
        "padding": 0,
        "strideH": 1,
        "strideW": 1,
        "dilationHFactor": 5,
        "dilationWFactor": 5,
        "depthMultiplier": 1,
    }
    output = made.add_operator(
        "DEPTHWISE_CONV_2D", inputs, (made.add_tensor((1, 3, 3, 8), scale),), options, "DepthwiseConv2D"
    )
    model = graphs.make_tflite(made.tensors, made.operators, outputs=(made.flatten(output),))
    check_core(compiled, core, model, tmp_path)


@pytest.mark.parametrize("core", [HELIUM, "cortex-m4"])
@pytest.mark.parametrize("name", ["ADD", "SUB"])
@pytest.mark.parametrize("scales", [(0.05, 0.05), (0.05, 0.02), (0.001, 0.05), (0.05, 0.0499999)])
def test_sums_of_equal_and_unequal_scales(
    compiled, graphs, random_models, tmp_path, core, name, scales
) -> None:
    """The wider operand is halved exactly, the other one is rounded."""
    made = random_models.Graph(graphs=graphs, rng=np.random.default_rng(3))
    source = made.add_tensor((1, 3, 3, 7), scales[0], 7)
    other = made.add_operator("QUANTIZE", (source,), (made.add_tensor((1, 3, 3, 7), scales[1], -3),), {}, "")
    output = made.add_operator(
        name, (source, other), (made.add_tensor((1, 3, 3, 7), 0.06, 5),), {}, name.capitalize()
    )
    model = graphs.make_tflite(made.tensors, made.operators, outputs=(made.flatten(output),))
    check_core(compiled, core, model, tmp_path)


@pytest.mark.parametrize("seed", sorted(REFUSED))
def test_multiplier_out_of_range_is_refused(graphs, random_models, seed) -> None:
    with pytest.raises(ExportError, match="the scales of a layer give the multiplier"):
        generate_c(random_models.make_random_model(graphs, seed)[1])

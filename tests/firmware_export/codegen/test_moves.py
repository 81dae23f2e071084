"""Moves in the arena: chains of convolutions in which each output overwrites its input."""

import subprocess

import numpy as np
import pytest

from firmware_export.codegen.c_source import generate_c
from firmware_export.codegen.c_text import read_c_template
from firmware_export.tflite.quantized_model import read_quantized_model

pytest.importorskip("tflite_micro")
SAME = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
MOVE_MAIN = """
#include <stdio.h>
int main(void)
{
    for (int32_t from = 0; from <= 40; from += 8) {
        for (int32_t to = 0; to <= 40; to += 8) {
            static uint64_t arena[8];
            int8_t *const bytes = (int8_t *)arena;
            for (int i = 0; i < 64; i++) {
                bytes[i] = (int8_t)i;
            }
            move(3, bytes + from, bytes + to);
            for (int i = 0; i < 64; i++) {
                if (bytes[i] != (i >= to && i < to + 24 ? i - to + from : i)) {
                    return 1;
                }
            }
        }
    }
    return 0;
}
"""


def make_chain(graphs, random_models, kernels, shape=(1, 4, 4, 8), seed=1):
    """Return a model of CONV_2D with kernels of these sizes, or of DEPTHWISE_CONV_2D for negative sizes."""
    made = random_models.Graph(graphs=graphs, rng=np.random.default_rng(seed))
    tip = made.add_tensor(shape)
    channels = shape[3]
    for size in kernels:
        depthwise = size < 0
        weights = made.draw_weights(1 if depthwise else channels, abs(size), abs(size), channels)
        inputs, scale = made.add_kernel(tip, weights, channels, 3 if depthwise else 0)
        tip = made.add_operator(
            "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D",
            inputs,
            (made.add_tensor(shape, scale),),
            {**SAME, **({"depthMultiplier": 1} if depthwise else {})},
            "DepthwiseConv2D" if depthwise else "Conv2D",
        )
    return graphs.make_tflite(made.tensors, made.operators, outputs=(tip,))


def list_operators(source):
    return [layer.op for layer in source.layers]


def test_chain_of_pointwise_convolutions_takes_one_activation_and_a_pixel(graphs, random_models) -> None:
    """128 bytes each, 8 bytes a pixel. Without a move each output begins 8 bytes before its input."""
    model = make_chain(graphs, random_models, (1, 1, 1, 1))
    least = generate_c(model, optimize="ram")
    assert list_operators(least) == ["CONV_2D", *["MOVE", "CONV_2D"] * 3]
    assert least.arena_bytes == least.bound_bytes == 128 + 8
    fastest = generate_c(model)
    assert list_operators(fastest) == ["CONV_2D"] * 4
    assert 128 + 4 * 8 <= fastest.arena_bytes < 2 * 128 + 64
    assert least.layout != fastest.layout


def test_no_move_is_made_without_need(graphs, random_models) -> None:
    """One layer needs no move. A depthwise layer, which needs 48 bytes, has room for four pointwise ones."""
    assert "MOVE" not in list_operators(generate_c(make_chain(graphs, random_models, (1,)), optimize="ram"))
    source = generate_c(make_chain(graphs, random_models, (-3, 1, 1, 1, 1)), optimize="ram")
    assert source.arena_bytes == source.bound_bytes == 128 + 48
    assert list_operators(source).count("MOVE") == 1


@pytest.mark.parametrize("kernels", [(1, -3, 1, -3, 1), (3, -3, 2, 3, 1), (-2, -3, -1, -3)])
def test_chain_with_moves_gives_tflite_micro_bytes(
    compiled, graphs, random_models, tmp_path, kernels
) -> None:
    model = make_chain(graphs, random_models, kernels, (1, 5, 7, 12))
    source = generate_c(model, optimize="ram")
    assert "MOVE" in list_operators(source)
    x = np.random.default_rng(2).integers(-128, 128, (20, 5, 7, 12)).astype(np.int8)
    expected = compiled.run_micro(model, x)
    program = compiled.build(source, tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    np.testing.assert_array_equal(compiled.run(program, x, expected.shape[1])[0], expected)
    assert read_quantized_model(model).get_tensor(0).size < source.arena_bytes < 2 * 420


def test_move_copies_between_places_that_overlap(compiled, tmp_path) -> None:
    code = tmp_path / "move.c"
    code.write_text(f"#include <stdint.h>\n{read_c_template('move')}{MOVE_MAIN}")
    command = ["gcc", *compiled.STRICT, "-O2", "-fsanitize=address,undefined", "-o", tmp_path / "move", code]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert subprocess.run([tmp_path / "move"], check=False).returncode == 0

"""Dense weights with few values: the choice of values, the rounding, the packing, and the generated C."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import ExportError
from firmware_export.codegen.c_dense import pack_indices
from firmware_export.codegen.c_source import generate_c
from firmware_export.quantize.dense_weights import (
    MIN_KERNEL_WEIGHTS,
    choose_few_values,
    round_kernel,
    with_few_values,
)
from firmware_export.quantize.routes import QuantizationOptions
from firmware_export.tflite.quantized_model import read_quantized_model
from tests.firmware_export.codegen.test_c_operators import check_against_micro


def draw_int8(rng, *shape):
    return rng.integers(-127, 128, shape).astype(np.int8)


def make_dense_model(graphs, rng, inputs, outputs, rows=1, weights=None):
    weights = draw_int8(rng, outputs, inputs) if weights is None else weights
    scales = [float(scale) for scale in rng.uniform(0.001, 0.004, outputs)]
    tensors = [
        graphs.T((1, rows * inputs), 0.02, 3),
        graphs.T((outputs, inputs), scales, 0, weights),
        graphs.T(
            (outputs,),
            [0.02 * scale for scale in scales],
            0,
            rng.integers(-3000, 3000, outputs).astype(np.int32),
        ),
        graphs.T((rows, outputs), 0.1, -5),
        graphs.T((1, rows * outputs), 0.1, -5),
        graphs.T((2,), data=np.array([1, rows * outputs], np.int32), kind="INT32"),
    ]
    layer = graphs.Op("FULLY_CONNECTED", (0, 1, 2), (3,), {"fusedActivationFunction": 0}, "FullyConnected")
    return graphs.make_tflite(
        tensors,
        [layer, graphs.Op("RESHAPE", (3, 5), (4,), {"newShape": [1, rows * outputs]}, "Reshape")],
        outputs=(4,),
    )


def read_kernel(model):
    network = read_quantized_model(model)
    return network.get_tensor(network.operators[0].inputs[1]).data


def test_chosen_values_match_hand_computed_means() -> None:
    kernel = np.array([[-12, -10, -8, 50, 52], [-12, -8, 51, 49, 50]], np.int8)
    assert choose_few_values(kernel, 2).tolist() == [
        -10,
        50,
    ]  # the means of the first five and the last five weights: -10 and 50.4
    # The kernel has fewer values than allowed, so all of them remain
    assert choose_few_values(kernel, 16).tolist() == sorted(set(kernel.ravel().tolist()))


def test_rounding_compensates_errors_of_equal_inputs() -> None:
    """Round two weights whose inputs are always equal.

    3 + 3 is closer to 5 + 0 than to 5 + 5, although 5 is the nearest value of each single weight.
    """
    equal_inputs = np.repeat(np.arange(-8.0, 8.0, dtype=np.float32)[:, None] * 10, 2, axis=1)
    assert round_kernel(np.array([[3, 3]], np.int8), equal_inputs, np.array([0, 5], np.int8)).tolist() == [
        [5, 0]
    ]
    different_inputs = np.eye(2, dtype=np.float32)[np.arange(16) % 2] * 50
    assert round_kernel(
        np.array([[3, 3]], np.int8), different_inputs, np.array([0, 5], np.int8)
    ).tolist() == [[5, 5]]


@given(st.integers(0, 2**32 - 1), st.sampled_from([8, 16]))
def test_chosen_values_are_few_and_close_to_the_weights(seed, count) -> None:
    kernel = np.clip(np.random.default_rng(seed).normal(0, 40, (8, 40)), -127, 127).astype(np.int8)
    values = choose_few_values(kernel, count)
    assert len(values) <= count
    assert (np.diff(values.astype(int)) > 0).all()
    grid = np.linspace(kernel.min(), kernel.max(), count)

    def compute_error(of):
        return float((np.abs(kernel[..., None] - of.astype(float)).min(axis=-1) ** 2).sum())

    assert (
        compute_error(values) <= compute_error(grid) + kernel.size * 0.25
    )  # values are integers, unlike the grid's


def test_rounding_preserves_the_outputs_of_a_layer() -> None:
    rng = np.random.default_rng(1)
    # More than one block
    inputs = (rng.normal(0, 30, (256, 20)) @ rng.normal(0, 0.3, (20, 600))).astype(np.float32)
    kernel = draw_int8(rng, 12, 600)
    values = choose_few_values(kernel, 8)
    made = round_kernel(kernel, inputs, values)
    assert set(made.ravel().tolist()) <= set(values.tolist())
    nearest = values[np.abs(kernel[..., None].astype(int) - values).argmin(axis=-1)]
    lost = [np.square(inputs @ (kernel.astype(float) - candidate).T).mean() for candidate in (made, nearest)]
    assert lost[0] < 0.1 * lost[1]


@pytest.mark.parametrize(
    ("bits", "expected"), [(4, [0x21, 0x43, 0x65, 0x87, 0x09, 0, 0, 0]), (3, [0xD1, 0x58, 0x1F, 0x01, 0, 0])]
)
def test_packed_indices_match_hand_computed_bytes(bits, expected) -> None:
    codes = np.array([[1, 2, 3, 4, 5, 6, 7, 8 & (1 << bits) - 1, 9 & (1 << bits) - 1]])
    assert pack_indices(codes, bits).view(np.uint8).tolist() == [expected]


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize(("inputs", "outputs", "rows"), [(256, 8, 1), (700, 6, 1), (171, 7, 3), (1030, 1, 1)])
def test_packed_dense_layer_matches_tflite_micro(
    compiled, graphs, tmp_path, bits, inputs, outputs, rows
) -> None:
    rng = np.random.default_rng(bits + inputs)
    levels = np.sort(rng.choice(np.arange(-127, 128), 1 << bits, replace=False)).astype(np.int8)
    model = make_dense_model(graphs, rng, inputs, outputs, rows, rng.choice(levels, (outputs, inputs)))
    made = generate_c(model)
    assert f"weights of {bits} bits" in made.files["model.c"]
    assert made.weight_bytes < 0.6 * inputs * outputs + 60 * outputs
    check_against_micro(compiled, tmp_path, model, rng, (rows * inputs,))


def test_reduction_to_few_values_is_idempotent(graphs) -> None:
    rng = np.random.default_rng(5)
    model = make_dense_model(graphs, rng, 64, 40)
    samples = rng.normal(0, 1, (30, 64)).astype(np.float32)
    made = with_few_values(model, samples, 3)
    assert len(np.unique(read_kernel(made))) <= 8
    assert with_few_values(model, samples, 3) == made
    assert np.array_equal(read_kernel(with_few_values(made, samples, 4)), read_kernel(made))


def test_a_model_of_small_layers_is_refused(graphs) -> None:
    rng = np.random.default_rng(6)
    small = make_dense_model(graphs, rng, 16, MIN_KERNEL_WEIGHTS // 16 - 1)
    with pytest.raises(
        ExportError, match="no dense layer has 1,024 weights or more, so --weights 4 changes nothing"
    ):
        with_few_values(small, rng.normal(0, 1, (4, 16)).astype(np.float32), 4)


def test_few_values_require_eight_bit_activations() -> None:
    with pytest.raises(ExportError, match="leave out --weights or --activations 16"):
        QuantizationOptions(bits=16, dense=3)


def test_other_kernels_are_stored_unchanged(graphs) -> None:
    rng = np.random.default_rng(7)
    assert "fully_connected_narrow" not in generate_c(make_dense_model(graphs, rng, 64, 40)).files["model.c"]
    few = rng.choice(np.array([-3, 0, 3], np.int8), (8, 64))
    # 512 weights
    assert (
        "fully_connected_narrow"
        not in generate_c(make_dense_model(graphs, rng, 64, 8, weights=few)).files["model.c"]
    )

"""Kernels that are nearly zero compared with their biases: one by hand, and a model with dead filters."""

import numpy as np
import pytest

from edgefl.program.plan.fill import fill_template
from firmware_export.quantize.quantize import RECIPES, quantize
from firmware_export.quantize.ranges import RecordedExtremes, choose_ranges, record_extremes
from firmware_export.quantize.weight_layers import MAX_BIAS_STEPS, WeightLayer, widen_kernel_ranges
from firmware_export.tflite.interpreter import load_tflite, run_samples


def test_widened_kernel_ranges_match_hand_computed_limits() -> None:
    """An input from 0 to 2.55 in 255 steps has a scale of .01.

    A bias of 2^30 steps of scale * limit / 127 requires a limit of 127 * bias / (.01 * 2^30).
    """
    kernel = np.array([[0.0, 0.0], [0.5, -0.25]], np.float32)
    layer = WeightLayer(source="x", name="k", axis=0, kernel=kernel, bias=np.array([3.0, 3.0], np.float32))
    ranges = choose_ranges(
        RecordedExtremes(extremes={"x": np.array([[0, 2.55]], np.float32)}, ranks={"x": 2}), 1, 100.0, 0.0
    )
    limit = widen_kernel_ranges((layer,), ranges, True, 8)["k"]
    np.testing.assert_allclose(limit["max"], [[127 * 3 / (0.01 * MAX_BIAS_STEPS)], [0.5]], rtol=1e-6)
    np.testing.assert_array_equal(limit["min"], -limit["max"])
    assert widen_kernel_ranges((layer,), ranges, False, 8) == {}, "as one tensor it is wide enough"
    empty = WeightLayer(source="x", name="k", axis=0, kernel=kernel * 0, bias=layer.bias)
    assert widen_kernel_ranges((empty,), ranges, False, 8)["k"]["max"].shape == (1, 1)


def test_range_of_a_zero_tensor_has_a_width() -> None:
    zeros = np.zeros((4, 2), np.float32)
    small = np.array([[0.0, 1e-6]] * 4, np.float32)
    seen = RecordedExtremes(
        extremes={"a": zeros, "b": small, "logits": small},
        ranks={"a": 2, "b": 2, "logits": 2},
        steep=frozenset({"logits"}),
    )
    ranges = choose_ranges(seen, 4, 100.0, 0.0)
    assert [ranges[name]["max"].item() for name in ("a", "b", "logits")] == [
        1.0,
        np.float32(1e-6),
        np.float32(1e-3),
    ]


@pytest.mark.parametrize("scale", [0.0, 1e-12])
@pytest.mark.parametrize("recipe", [RECIPES[0], RECIPES[-1]], ids=["by channel", "by tensor"])
def test_a_dead_filter_keeps_its_bias(digits, scale, recipe) -> None:
    weights = {name: value.copy() for name, value in digits.mixture.weights.items()}
    weights["conv1/kernel"][..., 0] *= scale
    weights["conv1/bias"][0] = 0.5
    for part in ("global", "local"):
        weights[f"{part}/fc3/kernel"][:, 2] *= scale
        weights[f"{part}/fc3/bias"][2] = 3.0
    model = fill_template(digits.plan.template, digits.plan.spec.bindings, weights)
    integer = quantize(model, record_extremes(model, digits.shard.x_train[:100]), recipe)
    expected, _ = run_samples(load_tflite(model), digits.shard.x_test)
    received, _ = run_samples(load_tflite(integer, reference=True), digits.shard.x_test)
    assert (received.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.95

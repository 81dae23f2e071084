"""Models with group norm and layer norm are exported to int8 and agree with the float models."""

import numpy as np
import pytest

from edgefl.program.plan.fill import fill_template
from firmware_export.quantize.quantize import RECIPES, quantize
from firmware_export.quantize.ranges import record_extremes
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.interpreter import load_tflite, run_samples

keras = pytest.importorskip("keras")


@pytest.mark.parametrize("norm", ["GroupNormalization", "LayerNormalization"])
def test_norm_layers_are_quantized_to_int8(norm: str, compiled, tmp_path) -> None:
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.template import build_template

    layers = keras.layers
    options = {"groups": 2} if norm == "GroupNormalization" else {}
    parts = [
        layers.Conv2D(8, 3),
        getattr(layers, norm)(**options, name="norm"),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(4),
    ]
    keras.utils.set_random_seed(0)
    network = Network(keras.Sequential([keras.Input((10, 10, 1)), *parts]))
    template, bindings = build_template(of.predict_logits(network, 8))
    rng = np.random.default_rng(0)
    weights = network.read_weights()
    weights |= {
        name: rng.uniform(0.5, 1.5, weights[name].shape).astype(np.float32)
        for name in ("norm/gamma", "norm/beta")
    }
    model = fill_template(template, bindings, weights)
    x = rng.normal(size=(200, 10, 10, 1)).astype(np.float32)
    integer = quantize(model, record_extremes(model, x), RECIPES[0])
    assert "RSQRT" in {name for name, _ in read_graph(integer).operators}
    expected, _ = run_samples(load_tflite(model), x)
    received, _ = run_samples(load_tflite(integer, reference=True), x)
    assert np.corrcoef(received.ravel(), expected.ravel())[0, 1] > 0.99
    assert (received.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.9
    pytest.importorskip("tflite_micro")
    compiled.check_against_micro(integer, x, tmp_path)


@pytest.mark.parametrize("channels", [1, 3])
def test_rescaling_before_a_convolution_is_quantized_to_int8(channels: int, compiled, tmp_path) -> None:
    """The converter would fold the factor into the convolution, whose weights a device fills in."""
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.template import build_template

    layers = keras.layers
    parts = [
        layers.Rescaling(1 / 255, offset=-0.5),
        layers.Conv2D(6, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(4),
    ]
    keras.utils.set_random_seed(0)
    network = Network(keras.Sequential([keras.Input((8, 8, channels)), *parts]))
    template, bindings = build_template(of.predict_logits(network, 8))
    model = fill_template(template, bindings, network.read_weights())
    x = np.random.default_rng(0).integers(0, 256, (200, 8, 8, channels)).astype(np.float32)
    integer = quantize(model, record_extremes(model, x), RECIPES[0])
    expected, _ = run_samples(load_tflite(model), x)
    received, _ = run_samples(load_tflite(integer, reference=True), x)
    assert np.corrcoef(received.ravel(), expected.ravel())[0, 1] > 0.99
    pytest.importorskip("tflite_micro")
    compiled.check_against_micro(integer, x, tmp_path)

"""The models of the papers are exported to int8 and agree with the float models.

Their C gives tflite-micro's bytes.
"""

import numpy as np
import pytest

from edgefl.base.config import ModelConfig
from edgefl.program.plan.fill import fill_template
from firmware_export.quantize.quantize import RECIPES, quantize
from firmware_export.quantize.ranges import record_extremes
from firmware_export.tflite.interpreter import load_tflite, run_samples

pytest.importorskip("keras")

MODELS = {
    "resnet20": ModelConfig(name="resnet20", input_shape=(16, 16, 3), num_classes=4, options={"width": 8}),
    "mobilenetv2": ModelConfig(
        name="mobilenetv2",
        input_shape=(16, 16, 3),
        num_classes=4,
        options={"width": 0.35, "dropout": 0.0, "momentum": 0.0},
    ),
    "vgg16": ModelConfig(
        name="vgg16", input_shape=(32, 32, 3), num_classes=4, options={"filters": 8, "hidden": 16}
    ),
    "cnn1d": ModelConfig(name="cnn1d", input_shape=(128, 9), num_classes=6),
    "aem-cnn of normalized gray pictures": ModelConfig(
        name="aem-cnn", input_shape=(16, 16, 1), num_classes=4, options={}, mean=(0.5,), std=(0.2,)
    ),
    "gate-cnn": ModelConfig(name="gate-cnn", input_shape=(16, 16, 3), num_classes=7),
    "gate-pixels": ModelConfig(name="gate-pixels", input_shape=(8, 8, 1), num_classes=3),
}
SLOW = ("mobilenetv2", "vgg16")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MODELS]
)
def test_paper_models_are_quantized_to_int8(name: str, compiled, tmp_path) -> None:
    import keras

    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.template import build_template
    from edgefl.program.models import build_model

    keras.utils.set_random_seed(1)
    network = Network(build_model(MODELS[name]))
    template, bindings = build_template(of.predict_logits(network, 16), network.epsilons)
    rng = np.random.default_rng(0)
    x = (
        rng.normal(size=(40, *[1] * len(network.input_shape))) + rng.normal(size=(40, *network.input_shape))
    ).astype(np.float32)
    weights = network.read_weights()
    # Momentum 0 takes the statistics from one batch. ReLU6 rarely clips values around 3
    if network.statistics:
        weights |= {
            key: value + 3 for key, value in weights.items() if key.endswith("beta") and "project" not in key
        }
        weights |= {
            key: np.asarray(value) for key, value in network.apply(weights, x, training=True)[1].items()
        }
    model = fill_template(template, bindings, weights)
    integer = quantize(model, record_extremes(model, x), RECIPES[0])
    expected, _ = run_samples(load_tflite(model), x)
    received, _ = run_samples(load_tflite(integer, reference=True), x)
    assert np.corrcoef(received.ravel(), expected.ravel())[0, 1] > 0.95
    pytest.importorskip("tflite_micro")
    compiled.check_against_micro(integer, x[:20], tmp_path)

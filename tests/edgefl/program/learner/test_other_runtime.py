"""The program gives the same results on tflite-runtime 2.14 as on ai-edge-litert.

tflite-runtime is the only runtime of 32-bit devices.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.learning.algorithms.plans import build_plan
from edgefl.program.plan.spec import save_plan

SCRIPT = Path(__file__).with_name("fit_all.py")
ROOT = Path(__file__).parents[4]


def save_strided_model(path: Path) -> ModelConfig:
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            # The gradient of a bias before batch normalization is rounding noise, and Adam turns it into
            # whole steps.
            layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False, name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(name="relu"),
            layers.DepthwiseConv2D(3, padding="same", activation="relu", name="depthwise"),
            layers.DepthwiseConv2D(3, dilation_rate=2, padding="same", name="dilated"),
            layers.DepthwiseConv2D(3, strides=2, padding="same", activation="relu", name="halving"),
            layers.Conv2D(12, 1, activation="relu", name="pointwise"),
            layers.AveragePooling2D(2, name="pool"),
            layers.Conv2D(8, 3, padding="same", activation="relu", name="last"),
            layers.GlobalAveragePooling2D(name="mean"),
            layers.Dense(10, name="fc"),
        ]
    )
    model.save(path)
    return ModelConfig(name=str(path), input_shape=(16, 16, 3), num_classes=10)


@pytest.mark.parametrize("model", [pytest.param("lenet5", marks=pytest.mark.slow), "strided"])
def test_every_signature_agrees_between_the_runtimes(model, other_python, tmp_path):
    settings = (
        ModelConfig(name="lenet5") if model == "lenet5" else save_strided_model(tmp_path / "model.keras")
    )
    plan, weights = build_plan(FederationConfig(algorithm="pfl-mfe", model=settings))
    save_plan(plan, tmp_path / "plan")
    save_file(dict(weights), tmp_path / "weights.safetensors")
    outputs = []
    for python in (sys.executable, other_python):
        out = tmp_path / f"{len(outputs)}.safetensors"
        command = [
            python,
            str(SCRIPT),
            str(tmp_path / "plan"),
            str(tmp_path / "weights.safetensors"),
            str(out),
        ]
        completed = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
        )
        assert completed.returncode == 0, completed.stderr
        outputs.append(load_file(out))
    assert outputs[0].keys() == outputs[1].keys()
    for name, array in outputs[0].items():
        np.testing.assert_allclose(outputs[1][name], array, atol=1e-4, rtol=1e-4, err_msg=name)

"""`edgefl export MODEL.tflite` of models with 16-bit activations."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from firmware_export.certificate.import_model import draw_random_samples, read_samples
from firmware_export.certificate.verify import verify_bundle
from firmware_export.commands.export import export
from firmware_export.tflite.interpreter import load_tflite, quantize_input

pytest.importorskip("tflite_micro")


def run_export(*arguments: object) -> str:
    result = CliRunner().invoke(export, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def model(graphs, tmp_path) -> Path:
    """Three outputs, each the input of its own number, with 16 bits and as an integer of 32 bits."""
    tensors = [
        graphs.T((1, 3), 0.001, kind="INT16"),
        graphs.T((3, 3), 0.01, data=100 * np.eye(3, dtype=np.int8)),
        graphs.T((3,), [1e-5], data=np.zeros(3, np.int64)),
        graphs.T((1, 3), 0.001, kind="INT16"),
        graphs.T((1, 3), [0.0001], kind="INT32"),
    ]
    operators = [
        graphs.Op(
            name="FULLY_CONNECTED", inputs=(0, 1, 2), outputs=(3,), options={}, options_class="FullyConnected"
        ),
        graphs.Op("QUANTIZE", (3,), (4,)),
    ]
    path = tmp_path / "wide.tflite"
    path.write_bytes(graphs.make_tflite(tensors, operators))
    return path


def test_class_is_the_largest_value_and_not_the_largest_byte(model, tmp_path) -> None:
    """A byte of 2559, 9 * 256 + 255, is larger than those of 2560."""
    x = np.array([[256, 255, 0], [255, 256, 0], [255, 0, 256], [256, 255, 255]], np.int16)
    np.savez(tmp_path / "samples.npz", x=x, y=np.array([0, 1, 2, 1]))
    out = tmp_path / "out"
    text = run_export(model, "-o", out, "--target", "host", "--data", tmp_path / "samples.npz")
    assert "accuracy: int8 0.7500" in text
    assert f"{out / 'model.tflite'}: int16, " in text
    with np.load(out / "golden.npz") as golden:
        assert (golden["inputs"].dtype, golden["outputs"].dtype) == (np.int16, np.int32)
        np.testing.assert_array_equal(golden["inputs"], x)
        np.testing.assert_array_equal(golden["outputs"][0], [2560, 2550, 0])
    assert (out / "firmware" / "samples.bin").read_bytes() == x.tobytes()
    certificate = json.loads((out / "certificate.json").read_text())
    assert {row["status"] for row in certificate["parity"]} <= {"equal", "not run"}
    assert any("4 samples, every output byte the same" in line for line in verify_bundle(out).checked)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", out / "c"]
    sources = [out / "c" / name for name in ("examples/host/main.c", "model.c", "model_weights.c")]
    subprocess.run(["gcc", *flags, *sources, "-o", tmp_path / "program"], check=True)
    ran = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True)
    assert ran.stdout == "class 0\noutput 0: 0\noutput 1: 0\noutput 2: 0\n"


def test_integers_of_the_input_are_read_unchanged(model, tmp_path) -> None:
    loaded = load_tflite(model.read_bytes())
    every = np.resize(np.arange(-32768, 32768), (21846, 3)).astype(np.int16)
    np.savez(tmp_path / "integers.npz", x=every)
    x, _ = read_samples(tmp_path / "integers.npz", model.read_bytes(), len(every))
    np.testing.assert_array_equal(quantize_input(loaded, x), every)
    np.savez(tmp_path / "real.npz", x=np.array([[1, -2, 3]], np.int8))
    real, _ = read_samples(tmp_path / "real.npz", model.read_bytes(), 1)
    np.testing.assert_array_equal(quantize_input(loaded, real), [[1000, -2000, 3000]])


def test_random_inputs_use_all_bits(model) -> None:
    loaded = load_tflite(model.read_bytes())
    drawn = quantize_input(loaded, draw_random_samples(loaded, 1000, 1))
    assert drawn.dtype == np.int16 and drawn.min() < -32000 and drawn.max() > 32000


@pytest.mark.slow
def test_keras_model_in_the_converter_s_16x8_mode(tmp_path) -> None:
    tf = pytest.importorskip("tensorflow")
    layers = tf.keras.layers
    rng = np.random.default_rng(1)
    tf.keras.utils.set_random_seed(1)
    entry = tf.keras.Input((20, 12, 3), batch_size=1)
    left = layers.Conv2D(8, 3, padding="same", activation="relu")(entry)
    right = layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same")(left))
    total = layers.Add()([left, layers.Conv2D(8, 1)(layers.ReLU(6.0)(right))])
    tip = layers.Conv2D(12, 3, strides=2, activation="tanh")(layers.MaxPool2D(2)(total))
    gate = layers.Dense(12, activation="sigmoid")(layers.GlobalAveragePooling2D()(tip))
    tip = layers.LeakyReLU(0.1)(layers.Multiply()([tip, layers.Reshape((1, 1, 12))(gate)]))
    tip = layers.Concatenate()([layers.AveragePooling2D(2)(tip), layers.MaxPool2D(2)(tip)])
    tip = layers.Dense(5, activation="softmax")(layers.Flatten()(tip))
    converter = tf.lite.TFLiteConverter.from_keras_model(tf.keras.Model(entry, tip))
    x = rng.normal(0, 1, (80, 20, 12, 3)).astype(np.float32)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([sample[None]] for sample in x)
    modes = tf.lite.OpsSet
    converter.target_spec.supported_ops = [modes.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8]
    model = tmp_path / "keras.tflite"
    model.write_bytes(converter.convert())
    np.savez(tmp_path / "samples.npz", x=x)
    out = tmp_path / "out"
    text = run_export(model, "-o", out, "--target", "cortex-m4", "--data", tmp_path / "samples.npz")
    assert "the input of the C is int16 instead of float32" in text
    assert "the output of the C is int16 instead of float32" in text
    with np.load(out / "golden.npz") as golden:
        assert len(np.unique(golden["outputs"], axis=0)) > 70
    assert any("80 samples, every output byte the same" in line for line in verify_bundle(out).checked)

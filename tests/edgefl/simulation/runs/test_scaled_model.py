"""A model that divides pixels itself, on files of pixels."""

import json

import keras
import numpy as np
import pytest
from keras import layers

from edgefl.cli import main as cli

CONFIG = """
[federation]
name = "pixels"
rounds = 1
[model]
name = "own.keras"
input_shape = [8, 8, 1]
num_classes = 3
[algorithm]
name = "fedavg"
learning_rate = 1e-7
epochs = 1
[data]
name = "npz:pi-1.npz,pi-2.npz"
[partition]
name = "group"
num_clients = 2
"""


@pytest.fixture
def pixels(tmp_path, monkeypatch):
    """A trained model of dark, grey and bright pictures, and the files of two devices."""
    monkeypatch.chdir(tmp_path)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Rescaling(1 / 255, name="divide"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    # The scores of a mean brightness m are 0, 6 m - 2 and 12 m - 6: the classes meet at 1/3 and 2/3
    model.layers[-1].set_weights([np.array([[0.0, 6.0, 12.0]]), np.array([0.0, -2.0, -6.0])])
    model.save("own.keras")
    rng = np.random.default_rng(4)
    for number in (1, 2):
        y = np.arange(90) % 3
        x = np.array([5, 125, 245])[y][:, None, None, None] + rng.integers(-5, 6, (90, 8, 8, 1))
        np.savez(f"pi-{number}.npz", x=x.astype(np.uint8), y=y)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_pixels_are_divided_once(pixels, capsys, dtype) -> None:
    for name in ("pi-1.npz", "pi-2.npz"):
        with np.load(name) as file:
            arrays = dict(file)
        np.savez(name, x=arrays["x"].astype(dtype), y=arrays["y"])
    (pixels / "federation.toml").write_text(CONFIG)
    assert cli.run_command(["simulate", "federation.toml", "--out", "run", "--json"]) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out)["figures"]
    assert figures["accuracy_federated"]["mean"] == 1
    assert "the layer 'divide' of the model scales samples of up to about 255 itself" in captured.err


@pytest.mark.slow
def test_init_sees_that_the_model_divides(pixels, capsys) -> None:
    data = ["--data", "pi-1.npz", "--data", "pi-2.npz"]
    assert cli.run_command(["init", "--yes", "new.toml", *data, "--model", "own.keras"]) == 0
    assert "the layer 'divide' of the model" in capsys.readouterr().err
    text = (pixels / "new.toml").read_text()
    assert "\nscale = 1.0\n" in text and "\nmax_value = 255.0\n" in text

"""LSTM, GRU and SimpleRNN without a loop over time give the outputs of Keras, or are refused."""

from typing import Any

import keras
import numpy as np
import pytest

from edgefl.base.errors import PlanError
from edgefl.program.compiler.layers import TRACING_EXPORT
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.recurrent import MAX_STEPS, call_recurrent

L = keras.layers
SHAPE = (5, 3)


def build_network(*layers: Any, shape: tuple[int, ...] = SHAPE) -> tuple[Network, Any]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(shape), *layers, L.Flatten(), L.Dense(3, name="fc")])
    return Network(model), model


LAYERS = {
    "LSTM": lambda: L.LSTM(4),
    "LSTM without bias": lambda: L.LSTM(4, use_bias=False, recurrent_activation="hard_sigmoid"),
    "GRU": lambda: L.GRU(4),
    "GRU without bias": lambda: L.GRU(4, use_bias=False),
    "GRU with reset before": lambda: L.GRU(4, reset_after=False),
    "SimpleRNN": lambda: L.SimpleRNN(4, "relu"),
    "sequences": lambda: L.GRU(4, return_sequences=True),
    "backwards": lambda: L.LSTM(4, go_backwards=True, return_sequences=True),
    "both directions": lambda: L.Bidirectional(L.LSTM(4)),
    "sequences of both directions": lambda: L.Bidirectional(L.GRU(4, return_sequences=True)),
    "sum of both directions": lambda: L.Bidirectional(L.SimpleRNN(4), merge_mode="sum"),
    "two steps": lambda: L.GRU(4),
}


@pytest.mark.parametrize("name", LAYERS)
def test_steps_match_keras(name: str) -> None:
    shape = (2, 3) if name == "two steps" else SHAPE
    network, model = build_network(LAYERS[name](), shape=shape)
    rng = np.random.default_rng(2)
    weights = [rng.normal(0, 0.5, w.shape) for w in model.get_weights()]
    model.set_weights(weights)
    x = rng.normal(size=(7, *shape)).astype(np.float32)
    token = TRACING_EXPORT.set(True)
    try:
        received, _ = network.apply(network.read_weights(), x)
    finally:
        TRACING_EXPORT.reset(token)
    np.testing.assert_allclose(received, model(x), atol=1e-5)


def test_a_small_gru_matches_values_computed_by_hand() -> None:
    """With one unit and zero weights but these, the gates are 1/2 and the candidate is tanh(x)."""
    layer = L.GRU(1)
    layer.build((None, 2, 1))
    values = {"kernel": [[0, 0, 1]], "recurrent_kernel": [[0, 0, 0]], "bias": [[0, 0, 0], [0, 0, 0]]}
    read = {id(getattr(layer.cell, name)): np.array(v, np.float32) for name, v in values.items()}
    called = call_recurrent(layer, lambda v: read[id(v)], np.array([[[1.0], [2.0]]], np.float32), False)
    assert called is not None
    np.testing.assert_allclose(called[0], [[0.25 * np.tanh(1) + 0.5 * np.tanh(2)]], rtol=1e-6)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (
            lambda: L.LSTM(4, name="memory"),
            (33, 3),
            r"memory \(LSTM\) has 33 steps, expected 2 to 32.*Conv1D",
        ),
        (lambda: L.Bidirectional(L.GRU(4), name="both"), (40, 3), r"both \(GRU\) has 40 steps"),
        (lambda: L.GRU(4, name="memory"), (1, 3), r"memory \(GRU\) has 1 steps"),
        (lambda: L.RNN(L.LSTMCell(4), name="memory"), SHAPE, r"memory \(RNN\) loops.*unroll=True"),
        (
            lambda: L.GRU(4, stateful=True, name="memory"),
            SHAPE,
            r"memory \(GRU\) has a mask, stateful.*remove it",
        ),
    ],
)
def test_layers_that_need_a_loop_are_refused(layer: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        keras.utils.set_random_seed(1)
        inputs = keras.Input(shape, batch_size=1)
        Network(keras.Model(inputs, L.Dense(3)(layer()(inputs))))


def test_mask_is_refused() -> None:
    with pytest.raises(PlanError, match=r"memory \(GRU\) has a mask.*remove it"):
        build_network(L.Masking(), L.GRU(4, name="memory"))


def test_longest_sequence_is_accepted() -> None:
    network, _ = build_network(L.SimpleRNN(2), shape=(MAX_STEPS, 1))
    assert network.features_shape == (2,)

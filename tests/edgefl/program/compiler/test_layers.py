"""Chains of layers compile to builtin ops of the runtime, and train to the same weights as in TensorFlow."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from edgefl.base.rng import derive_rng
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.optimizer import sgd
from edgefl.program.learner.keras import KerasLearner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.inspect import inspect_plan
from tests.support.network_plan import compile_network_plan

L = keras.layers


def apply_squeeze_excitation(x: Any) -> Any:
    """Apply a squeeze-and-excitation block with slices (Hu et al. 2018)."""
    y = L.Conv2D(4, 3, padding="same", activation="silu")(x)
    share = L.Dense(4, "hard_sigmoid")(L.GlobalAveragePooling2D()(y))
    y = L.Multiply()([y, L.Reshape((1, 1, 4))(share)])
    y = L.Concatenate()([y[:, 1:-1], L.Average()([y, x])[:, :-2]])
    return L.Flatten()(L.MaxPooling2D(2)(y))


def build_chain(*layers: Any) -> Callable[[Any], Any]:
    return keras.Sequential(layers)


CHAINS: dict[str, tuple[tuple[int, ...], Callable[[], Callable[[Any], Any]]]] = {
    "image": (
        (7, 7, 2),
        lambda: build_chain(
            L.Rescaling(0.5, 0.1),
            L.SeparableConv2D(4, 3),
            L.LeakyReLU(0.1),
            L.Cropping2D(1),
            L.UpSampling2D(2),
            L.LayerNormalization(),
            L.PReLU(),
            L.ZeroPadding2D(1),
            L.Permute((2, 1, 3)),
            L.GlobalMaxPooling2D(),
        ),
    ),
    "depthwise": (
        (8, 8, 3),
        lambda: build_chain(
            L.DepthwiseConv2D(3, dilation_rate=2, depth_multiplier=2, activation="elu"),
            L.GroupNormalization(3),
            L.Activation("softsign"),
            L.AveragePooling2D(3, strides=2, padding="same"),
            L.UnitNormalization(),
            L.Activation("mish"),
            L.Flatten(),
        ),
    ),
    "window": (
        (9, 2),
        lambda: build_chain(
            L.Conv1D(3, 3, padding="causal", dilation_rate=2),
            L.BatchNormalization(),
            L.ReLU(6.0),
            L.DepthwiseConv1D(3, padding="same"),
            L.SeparableConv1D(4, 2),
            L.GroupNormalization(2),
            L.UpSampling1D(2),
            L.AveragePooling1D(3),
            L.ZeroPadding1D(1),
            L.GlobalAveragePooling1D(),
            L.Dense(5, "softplus"),
            L.BatchNormalization(),
        ),
    ),
    "normalised": (
        (4, 2),
        lambda: build_chain(
            L.Normalization(mean=[3.0, -1.0], variance=[100.0, 0.01]),
            L.LSTM(3, unroll=True, return_sequences=True),
            L.SimpleRNN(3, unroll=True),
        ),
    ),
    "recurrent": ((3, 2), lambda: build_chain(L.GRU(3, unroll=True))),
    "steps": (
        (4, 2),
        lambda: build_chain(
            L.Bidirectional(L.LSTM(3, return_sequences=True)),
            L.GRU(3, return_sequences=True),
            L.GRU(2, reset_after=False, go_backwards=True, return_sequences=True),
            L.SimpleRNN(3),
        ),
    ),
    "joined": ((6, 6, 4), lambda: apply_squeeze_excitation),
}


@pytest.mark.parametrize("name", CHAINS)
def test_layer_chain_trains_like_tensorflow(name):
    shape, make = CHAINS[name]
    keras.utils.set_random_seed(0)
    x = keras.Input(shape)
    network = Network(keras.Model(x, L.Dense(3)(make()(x))))
    objectives = (of.classify(network, 4, sgd(0.05)),)
    plan = compile_network_plan(network, objectives)
    ops = set(inspect_plan(plan)["signatures"]["train"]["ops"])
    assert not {op for op in ops if op == "CUSTOM" or op.startswith(("FLEX", "STABLEHLO"))}
    rng = np.random.default_rng(0)
    data = rng.normal(size=(6, *shape)).astype(np.float32)
    y = rng.integers(0, 3, 6)
    start = network.read_weights()
    weights, expected = (
        learner.fit("train", start, {"x": data}, y, epochs=2, rng=derive_rng(1, 1))[0]
        for learner in (LiteRTLearner(plan), KerasLearner(plan.spec, objectives))
    )
    for weight in weights:
        np.testing.assert_allclose(weights[weight], expected[weight], atol=1e-5, err_msg=weight)
    assert any(np.abs(weights[weight] - start[weight]).max() > 1e-3 for weight in weights)

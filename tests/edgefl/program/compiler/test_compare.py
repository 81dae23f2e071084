"""A program is compared with its Keras model, and an error names the layer that differs."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from edgefl.base.errors import PlanError
from edgefl.base.rng import derive_rng
from edgefl.program.compiler import layers as forms
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.compare import (
    POSITIVE,
    TOLERANCES,
    check_network,
    check_program,
    draw_tensor,
    find_wrong_export_layer,
    measure_difference,
    measure_signature,
    subtract_rounding,
)
from edgefl.program.compiler.compile import compile_program
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.optimizer import adam, sgd
from edgefl.program.compiler.template import build_template
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.models.input_normalization import normalize_input
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.spec import TensorSpec
from tests.support.network_plan import compile_network_plan

L = keras.layers


def build(shape: tuple[int, ...], *layers: Any) -> Network:
    keras.utils.set_random_seed(1)
    return Network(keras.Sequential([keras.Input(shape), *layers, L.Dense(3, name="end")]))


def check(network: Network) -> None:
    objectives = (of.predict_logits(network, 4), of.classify(network, 4, adam(0.01)))
    program, signatures = compile_program(objectives)
    check_program(network, objectives, signatures, program)


def test_relu_behind_a_dense_layer_without_bias_is_computed():
    """The kernel is the identity, so the hidden values are 0 and 3, and each logit is their sum."""
    network = build((2,), L.Dense(2, activation="relu", use_bias=False, name="h"))
    plan = compile_network_plan(network, (of.predict_logits(network, 1),))
    weights = {
        "h/kernel": np.eye(2, dtype=np.float32),
        "end/kernel": np.ones((2, 3), np.float32),
        "end/bias": np.zeros(3, np.float32),
    }
    out = LiteRTLearner(plan).predict("predict", weights, {"x": np.array([[-2.0, 3.0]], np.float32)})
    np.testing.assert_array_equal(out, [[3, 3, 3]])


def test_lost_activation_is_refused_by_the_name_of_its_layer(monkeypatch):
    """Without its own form, the converter loses the ReLU behind a Dense layer without bias."""
    monkeypatch.delitem(forms.PROGRAM_FORMS, L.Dense)
    network = build(
        (4,), L.Dense(5, activation="tanh", name="first"), L.Dense(6, "relu", False, name="second")
    )
    with pytest.raises(
        PlanError, match=r"layer second cannot be compiled: the results of predict on a device"
    ):
        check(network)


def test_lost_gradient_is_refused_by_the_name_of_its_layer(monkeypatch):
    def pass_gradient(layer: Any, read: Any, x: Any, training: bool) -> Any:
        @tf.custom_gradient
        def run(x: Any) -> Any:
            return tf.nn.relu(x), lambda gradient: gradient

        return run(x), ()

    monkeypatch.setitem(forms.PROGRAM_FORMS, L.ReLU, pass_gradient)
    network = build((4,), L.Dense(5, name="first"), L.ReLU(name="second"), L.Dense(5, "tanh", name="third"))
    with pytest.raises(PlanError, match=r"layer second cannot be compiled: the results of train on a device"):
        check(network)


def test_layer_that_the_export_computes_wrongly_is_named(monkeypatch):
    def squash(layer: Any, read: Any, x: Any, training: bool) -> Any:
        return tf.tanh(layer.call(x)), ()

    network = build((4,), L.Dense(5, "relu", name="first"), L.ReLU(name="second"))
    assert find_wrong_export_layer(network).startswith("the model ")
    monkeypatch.setitem(forms.EXPORT_FORMS, L.ReLU, squash)
    with pytest.raises(PlanError, match="layer second cannot be converted for the export"):
        build_template(of.predict_logits(network, 4), {}, lambda: find_wrong_export_layer(network))


class LosesZeros(keras.Layer):
    """A ReLU whose gradient at 0 is 1 in a program, and 0 in Keras."""

    def call(self, x: Any) -> Any:
        return keras.ops.relu(x)


def test_gradient_that_differs_only_at_zero_is_refused(monkeypatch):
    """Black pictures and new biases give exactly 0."""

    def bend(layer: Any, read: Any, x: Any, training: bool) -> Any:
        @tf.custom_gradient
        def run(x: Any) -> Any:
            return tf.nn.relu(x), lambda gradient: gradient * (1.0 + tf.sign(tf.minimum(x, 0.0)))

        return run(x), ()

    monkeypatch.setitem(forms.PROGRAM_FORMS, LosesZeros, bend)
    network = build(
        (4,), L.Dense(5, name="first"), LosesZeros(name="second"), L.Dense(5, "tanh", name="third")
    )
    with pytest.raises(PlanError, match=r"layer second cannot be compiled: the results of train on a device"):
        check(network)


def take_logarithm(*layers: Any) -> Network:
    """Return a network that has no numbers for negative samples."""
    x = keras.Input((4,))
    y = keras.ops.log(x)
    for layer in (*layers, L.Dense(3, name="end")):
        y = layer(y)
    return Network(keras.Model(x, y))


def test_lost_activation_behind_a_logarithm_is_refused(monkeypatch):
    """Negative samples give NaN in Keras and in the program, which proves nothing."""
    check(take_logarithm(L.Dense(5, "relu", False, name="second")))
    monkeypatch.delitem(forms.PROGRAM_FORMS, L.Dense)
    with pytest.raises(
        PlanError, match=r"layer second cannot be compiled: the results of predict on a device"
    ):
        check(take_logarithm(L.Dense(5, "relu", False, name="second")))


def test_model_without_numbers_is_refused():
    x = keras.Input((4,))
    y = L.Dense(3, name="end")(keras.ops.sqrt(-keras.ops.abs(x) - 1.0))
    with pytest.raises(PlanError, match="layer end cannot be compared with Keras: the gradient of its"):
        check_network(Network(keras.Model(x, y)))


class DoublesOutsideOfCall(keras.Layer):
    """A layer that computes more in a model than in `call`, which a plan traces."""

    def call(self, x: Any) -> Any:
        return x

    def __call__(self, x: Any, **kwargs: Any) -> Any:
        return 2.0 * super().__call__(x, **kwargs)


def test_layer_that_differs_from_keras_is_named():
    check_network(build((4,), L.Dense(5, "tanh", name="first"), L.Dense(3, name="second")))
    with pytest.raises(PlanError, match="layer doubled cannot be compiled: its output in a plan differs"):
        check_network(build((4,), L.Dense(4, name="first"), DoublesOutsideOfCall(name="doubled")))


def test_layer_behind_mean_and_std_is_named():
    network = build((4,), L.Dense(4, name="first"), DoublesOutsideOfCall(name="doubled"))
    model = normalize_input(network.model, (0.5,), (0.2,))
    with pytest.raises(PlanError, match="layer doubled cannot be compiled: its output in a plan differs"):
        check_network(Network(model))


def test_gradient_that_is_only_rounding_is_accepted():
    """A batch norm removes the shift before it, so the gradient of the shift is a sum that is 0."""
    chain = [
        layer
        for i in range(8)
        for layer in (L.Conv2D(8, 1, use_bias=False, name=f"conv{i}"), L.BatchNormalization(name=f"norm{i}"))
    ]
    network = build((6, 6, 2), *chain, L.GlobalAveragePooling2D(name="mean"))
    check_network(Network(normalize_input(network.model, (0.5, 0.5), (0.2, 0.2))))


def test_only_what_rounding_explains_is_subtracted():
    left = subtract_rounding({"a": 0.5, "b": 0.1}, {"a": 0.0, "b": 0.02})
    assert left == pytest.approx({"a": 0.3, "b": -0.1})
    assert subtract_rounding({"a": 0.5}, {"a": 1.0}) == pytest.approx({"a": 0.2})


def test_drawn_values_lie_on_both_sides_of_zero():
    rng = np.random.default_rng(0)
    for name in ("x", "fc/kernel", "fc/bias", "norm/moving_mean"):
        values = draw_tensor(TensorSpec(name, (40, 10)), rng)
        assert values.dtype == np.float32 and 0.3 < (values > 0).mean() < 0.7
    assert draw_tensor(TensorSpec("norm/moving_variance", (40,)), rng).min() > 0


def test_shares_of_experts_are_positive_in_one_draw():
    """The logarithm of mixed probabilities has no number for negative shares."""
    rng = np.random.default_rng(0)
    values = [draw_tensor(TensorSpec("responsibility/0", (1,)), rng, POSITIVE) for _ in range(20)]
    assert min(value.item() for value in values) > 0
    assert (draw_tensor(TensorSpec("fc/kernel", (20, 5)), rng, POSITIVE) < 0).any()


@pytest.mark.parametrize(
    ("received", "expected", "difference"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([np.nan], [np.nan], 0.0),
        ([1.0], [np.nan], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_difference_is_relative_to_the_largest_value(received, expected, difference):
    assert measure_difference(np.array(received), np.array(expected)) == difference


PENALTIES: dict[str, list[Any]] = {
    "kernel": [L.Dense(4, "tanh", kernel_regularizer=keras.regularizers.L2(0.5))],
    "bias": [L.Dense(4, "tanh", bias_regularizer="l1")],
    "activity": [L.Dense(4, "tanh", activity_regularizer=keras.regularizers.L1L2(0.3, 0.2))],
    "layer": [L.Dense(4, "tanh"), L.ActivityRegularization(l1=0.5)],
    "norm": [L.Dense(4, "tanh"), L.BatchNormalization(gamma_regularizer="l2", beta_regularizer="l1")],
    "frozen": [L.Dense(4, "tanh", kernel_regularizer="l2", trainable=False)],
}


@pytest.mark.parametrize("name", PENALTIES)
def test_three_steps_with_penalties_match_keras(name):
    """The penalties are part of the loss, as in Keras."""
    keras.utils.set_random_seed(0)
    layers = [type(layer).from_config(layer.get_config()) for layer in PENALTIES[name]]
    model = keras.Sequential([keras.Input((5,)), *layers, L.Dense(3, kernel_regularizer="l2", name="head")])
    network = Network(model)
    start = network.read_weights()
    objectives = (of.classify(network, 6, sgd(0.1)),)
    plan = compile_network_plan(network, objectives)
    check_program(network, objectives, plan.spec.signatures, plan.program)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 5)).astype(np.float32), rng.integers(0, 3, 6)
    weights, _ = LiteRTLearner(plan).fit("train", start, {"x": x}, y, epochs=3, rng=derive_rng(1, 1))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for _ in range(3):
        model.train_on_batch(x, y)
    for weight, expected in network.read_weights().items():
        np.testing.assert_allclose(weights.get(weight, start[weight]), expected, atol=1e-6, err_msg=weight)


def test_padded_samples_have_no_penalty():
    """Three samples in a batch of four give the same step as a batch of three."""
    network = build((5,), L.Dense(4, "tanh", activity_regularizer="l2", kernel_regularizer="l2"))
    weights = []
    for batch in (3, 4):
        plan = compile_network_plan(network, (of.classify(network, batch, sgd(0.1)),))
        x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
        fitted, _ = LiteRTLearner(plan).fit(
            "train", network.read_weights(), {"x": x}, np.arange(3), epochs=2, rng=derive_rng(1, 1)
        )
        weights.append(list(fitted.values()))
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


class ChangedInterpreter:
    """The interpreter of a program, with errors in some of its calls."""

    def __init__(self, program: bytes, errors: list[float]) -> None:
        self._interpreter = load_interpreter(program)
        self._errors = [*errors]

    def get_signature_runner(self, name: str) -> Any:
        runner = self._interpreter.get_signature_runner(name)
        error = self._errors.pop(0) if self._errors else 0.0

        def run(**arguments: Any) -> dict[str, Any]:
            results = runner(**arguments)
            step = results["t_0"] - arguments["t_0"]
            return {**results, "t_0": results["t_0"] + error * np.abs(step).max()}

        return run


@pytest.mark.parametrize(
    ("errors", "is_accepted"),
    [
        ([0.0], True),
        ([0.1, 0.0, 0.0], True),  # one flip
        ([0.1, 0.1, 0.0], False),
        ([0.1, 0.0, 0.1], False),
        ([0.5, 0.0, 0.0], False),  # more than a flip
        ([np.nan, 0.0, 0.0], False),
    ],
)
def test_small_difference_counts_if_two_of_three_draws_have_it(errors, is_accepted):
    network = build((6,), L.Dense(5, "tanh"))
    objective = of.classify(network, 8, sgd())
    program, (signature,) = compile_program([objective])
    difference = measure_signature(objective, signature, ChangedInterpreter(program, errors), 3)
    assert (difference <= TOLERANCES["train"]) is is_accepted

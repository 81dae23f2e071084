"""A batch that is trained in parts gives the same step as a whole batch."""

from dataclasses import replace

import keras
import numpy as np
import pytest

from devices.plan_trial import draw_noise_arguments
from edgefl.base.errors import ConfigError, PlanError
from edgefl.base.rng import derive_rng
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.types import Array, Weights
from edgefl.program.compiler.compare import check_program
from edgefl.program.compiler.compile import compile_program
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.objective import Objective, classify, split_batch
from edgefl.program.compiler.optimizer import Optimizer, adam, sgd
from edgefl.program.learner.keras import KerasLearner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.learner.part_check import check_parts
from edgefl.program.plan.spec import (
    MICRO_BATCH_PLAN_FORMAT,
    Plan,
    divide_batch,
    parse_spec,
    serialize_spec,
)
from tests.support.network_plan import compile_network_plan

BATCH = 10
COUNT = 23
"""Two whole batches, and one with three samples."""
OPTIMIZERS = {"sgd": sgd(0.1, momentum=0.9, weight_decay=0.01), "adam": adam(0.01)}


def make_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 1))
    y = keras.layers.Conv2D(4, 3, activation="relu", activity_regularizer="l2")(inputs)
    y = keras.layers.GroupNormalization(2)(y)
    y = keras.layers.Dropout(0.25)(keras.layers.Flatten()(y))
    return keras.Model(inputs, keras.layers.Dense(3, kernel_regularizer="l2")(y))


def make_model_without_dropout() -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 1))
    y = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(y)))


def make_plan(model: keras.Model, optimizer: Optimizer, micro_batch: int) -> tuple[Plan, Objective, Weights]:
    network = Network(model)
    objective = split_batch(classify(network, BATCH, optimizer), micro_batch)
    return compile_network_plan(network, [objective]), objective, network.read_weights()


def draw_samples() -> tuple[Array, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.random((COUNT, 8, 8, 1), np.float32), rng.integers(0, 3, COUNT)


def fit(learner: LiteRTLearner | KerasLearner, weights: Weights) -> tuple[Weights, float, Weights]:
    """Train two epochs. Return the weights, the loss and the slots."""
    x, y = draw_samples()
    slots: dict[str, Array] = {}
    trained, loss = learner.fit("train", weights, {"x": x}, y, epochs=2, rng=derive_rng(1, 1), slots=slots)
    return trained, loss, slots


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("micro_batch", [1, 3, 5])
def test_parts_give_the_step_of_the_whole_batch(optimizer: str, micro_batch: int) -> None:
    """With 3, four parts of three samples, of which the last has one and two of weight 0."""
    model = make_model()
    whole, _, weights = make_plan(model, OPTIMIZERS[optimizer], 0)
    parts, objective, _ = make_plan(model, OPTIMIZERS[optimizer], micro_batch)
    expected, expected_loss, expected_slots = fit(LiteRTLearner(whole), weights)
    assert all(np.abs(array - weights[name]).max() > 1e-3 for name, array in expected.items())
    for learner in (LiteRTLearner(parts), KerasLearner(parts.spec, [objective])):
        received, loss, slots = fit(learner, weights)
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        assert received.keys() == expected.keys() and slots.keys() == expected_slots.keys()
        for name, array in {**expected, **expected_slots}.items():
            np.testing.assert_allclose({**received, **slots}[name], array, rtol=1e-4, atol=2e-5)


def test_parts_have_equal_sizes_and_never_more_samples() -> None:
    sizes = [divide_batch(10, micro_batch) for micro_batch in (0, 1, 3, 4, 5, 6, 9, 10, 64)]
    assert sizes == [10, 1, 3, 4, 5, 5, 5, 10, 10]
    for batch_size in range(1, 40):
        for micro_batch in range(1, 40):
            size = divide_batch(batch_size, micro_batch)
            assert size <= micro_batch
            assert divide_batch(batch_size, size) == size  # as a learner divides again from the plan


def test_part_without_samples_is_left_out() -> None:
    """The last batch has three samples, so one of its two calls would have none."""
    calls = []

    class CountingLearner(LiteRTLearner):
        def step(self, signature: str, arguments: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            calls.append(arguments["d_sample_weight"].copy())
            return dict(super().step(signature, arguments))

    plan, _, weights = make_plan(make_model(), OPTIMIZERS["sgd"], 5)
    fit(CountingLearner(plan), weights)
    assert len(calls) == 2 * (2 + 2 + 1)
    np.testing.assert_allclose(calls[0], np.full(5, 0.1))
    np.testing.assert_allclose(calls[4], [1 / 3, 1 / 3, 1 / 3, 0, 0])


def test_spec_states_the_parts_and_its_format() -> None:
    plan, objective, _ = make_plan(make_model(), OPTIMIZERS["sgd"], 4)
    (signature,) = plan.spec.signatures
    assert (signature.batch_size, signature.call_size) == (10, 4)
    assert [spec.shape[0] for spec in (*signature.data, *signature.noise)] == [4, 4]
    assert signature.gradients == objective.optimized
    spec = replace(plan.spec, format=MICRO_BATCH_PLAN_FORMAT)
    assert parse_spec(serialize_spec(spec)) == spec
    whole, _, _ = make_plan(make_model(), OPTIMIZERS["sgd"], 0)
    assert "gradients" not in serialize_spec(whole.spec)


def test_samples_that_depend_on_each_other_are_refused() -> None:
    layers = keras.layers
    norms = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3), layers.BatchNormalization(name="norm1"), layers.Dense(3)]
    )
    with pytest.raises(ConfigError, match=r"micro_batch is 4, but the model has batch norms \(norm1/"):
        make_plan(norms, OPTIMIZERS["sgd"], 4)
    dropout = layers.Dropout(0.5, noise_shape=(1, 4), name="drop1")
    shared = keras.Sequential([keras.Input((4,)), dropout, layers.Dense(3)])
    with pytest.raises(ConfigError, match=r"drop1 drops the same values of all samples .*starts with None"):
        make_plan(shared, OPTIMIZERS["sgd"], 4)
    plan, _, _ = make_plan(norms, OPTIMIZERS["sgd"], BATCH)
    assert not plan.spec.signatures[0].gradients


def test_loss_that_depends_on_other_samples_is_refused() -> None:
    inputs = keras.Input((4,))
    y = keras.layers.Dense(6, activation="relu")(inputs)
    y = y - keras.ops.mean(y, axis=0, keepdims=True)
    network = Network(keras.Model(inputs, keras.layers.Dense(3)(y)))
    whole = classify(network, BATCH, OPTIMIZERS["sgd"])
    with pytest.raises(ConfigError, match=r"in train the loss of a sample depends on the others: .* leave"):
        check_parts(whole, split_batch(whole, 5), 3)


def test_check_of_parts_takes_positive_samples_if_the_loss_is_undefined_for_others() -> None:
    inputs = keras.Input((4,))
    y = keras.layers.Dense(3)(keras.ops.log(inputs))
    whole = classify(Network(keras.Model(inputs, y)), BATCH, OPTIMIZERS["sgd"])
    check_parts(whole, split_batch(whole, 5), 3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_check_of_parts_accepts_rounding(optimizer: str) -> None:
    whole = classify(Network(make_model()), BATCH, OPTIMIZERS[optimizer])
    check_parts(whole, split_batch(whole, 3), 3)


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_bias_whose_gradient_is_only_rounding_does_not_refuse_a_model(micro_batch: int) -> None:
    """A norm removes the bias before it. A sum of gradients has larger rounding errors than their mean."""
    y = inputs = keras.Input((8, 8, 3))
    for _ in range(3):
        y = keras.layers.Conv2D(16, 3, padding="same")(y)
        y = keras.layers.ReLU()(keras.layers.GroupNormalization(-1)(y))
    network = Network(keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(y))))
    objective = split_batch(classify(network, 32, OPTIMIZERS["sgd"]), micro_batch)
    program, signatures = compile_program([objective])
    check_program(network, [objective], signatures, program)


def test_regression_is_trained_in_parts() -> None:
    inputs = keras.Input((8, 8, 1))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(inputs)))
    network = Network(model, TaskConfig(kind="regression", outputs=2))
    x, _ = draw_samples()
    targets = np.random.default_rng(4).random((COUNT, 2), np.float32)
    results = []
    for micro_batch in (0, 3):
        objective = split_batch(classify(network, BATCH, OPTIMIZERS["sgd"]), micro_batch)
        learner = LiteRTLearner(compile_network_plan(network, [objective]))
        weights = network.read_weights()
        results.append(learner.fit("train", weights, {"x": x}, targets, epochs=2, rng=derive_rng(1, 1)))
    (expected, expected_loss), (received, loss) = results
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, array in expected.items():
        np.testing.assert_allclose(received[name], array, rtol=1e-4, atol=2e-5)


def test_augmentation_changes_the_pictures_as_without_parts() -> None:
    model = make_model_without_dropout()
    plans = [make_plan(model, OPTIMIZERS["sgd"], size) for size in (0, 4)]
    weights = plans[0][2]
    results = []
    for plan, _, _ in plans:
        augmented = replace(plan.spec, augmentation={"crop": 2, "flip": True, "rotate": 0.0})
        results.append(fit(LiteRTLearner(replace(plan, spec=augmented)), weights)[0])
    for name, array in results[0].items():
        np.testing.assert_allclose(results[1][name], array, rtol=1e-4, atol=2e-5)
    plain = fit(LiteRTLearner(plans[1][0]), weights)[0]
    assert any(np.abs(plain[name] - array).max() > 1e-3 for name, array in results[1].items())


def test_random_arguments_fit_a_plan_of_parts() -> None:
    """The trial of a plan on a device runs each signature with them."""
    plan, _, _ = make_plan(make_model(), OPTIMIZERS["adam"], 4)
    (signature,) = plan.spec.signatures
    out = LiteRTLearner(plan).step("train", draw_noise_arguments(signature, 3))
    assert np.isfinite(out["loss"])


def test_plan_of_parts_refuses_a_program_without_gradients() -> None:
    plan, _, weights = make_plan(make_model(), OPTIMIZERS["sgd"], 5)
    whole, _, _ = make_plan(make_model(), OPTIMIZERS["sgd"], 0)
    with pytest.raises(PlanError, match="the program takes"):
        fit(LiteRTLearner(replace(plan, program=whole.program)), weights)

"""FedRep: a round by hand, the head stays on the device, and models without a head or a trunk."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import AugmentationConfig, FederationConfig, PersonalizationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import PHASE_PERSONALIZE, REGISTRY, build_objectives, make_algorithm
from edgefl.learning.algorithms.names import find_head_weights
from edgefl.learning.algorithms.partial import START_MODEL
from tests.support.numpy_learner.softmax import softmax_spec
from tests.support.softmax_federation import simulate_softmax

ONE_STEP = {"head_epochs": 1, "head_learning_rate": 1.0}
HEAD = {"head/kernel", "head/bias"}


def start_algorithm(one_sample, **options):
    algorithm = one_sample.make_algorithm("fedrep", **{**ONE_STEP, **options})
    return algorithm, algorithm.init(one_sample.start, derive_rng(1, 0, "init"))


def train(one_sample, algorithm, state, client_state):
    return algorithm.local_update(
        algorithm.broadcast(state, "a"), client_state, one_sample.shard, "a", derive_rng(1, 1, "a")
    )


def test_a_round_by_hand(one_sample):
    """The head moves first, to kernel and bias (.5, -.5), while the trunk is 1.

    The logits are then (1, -1), so class 1 has the probability p = 1 / (1 + e^2). The gradient of the trunk
    is -p * .5 - p * .5 = -p.
    """
    algorithm, state = start_algorithm(one_sample)
    update, client_state = train(one_sample, algorithm, state, ClientState())
    np.testing.assert_allclose(client_state.arrays["head/kernel"], [[0.5, -0.5]], atol=1e-6)
    np.testing.assert_allclose(client_state.arrays["head/bias"], [0.5, -0.5], atol=1e-6)
    p = 1 / (1 + np.exp(2))
    np.testing.assert_allclose(update.deltas["global"]["trunk/kernel"], [[p]], atol=1e-6)
    after = algorithm.aggregate(state, [update])
    np.testing.assert_allclose(after.models["global"]["trunk/kernel"], [[1 + p]], atol=1e-6)


def test_the_head_is_never_sent(one_sample):
    algorithm, state = start_algorithm(one_sample)
    client_state = ClientState()
    for _ in range(3):
        sent = algorithm.broadcast(state, "a")
        assert set(sent.models["global"]) == {"trunk/kernel"}
        for name in HEAD:  # still the initial values
            np.testing.assert_array_equal(sent.models[START_MODEL][name], one_sample.start[name])
        update, client_state = train(one_sample, algorithm, state, client_state)
        assert {name: set(delta) for name, delta in update.deltas.items()} == {"global": {"trunk/kernel"}}
        assert set(client_state.arrays) == HEAD
        state = algorithm.aggregate(state, [update])


def test_trunk_without_a_learning_rate_stays_while_the_head_moves(one_sample):
    algorithm, state = start_algorithm(one_sample, learning_rate=0.0)
    update, client_state = train(one_sample, algorithm, state, ClientState())
    np.testing.assert_array_equal(update.deltas["global"]["trunk/kernel"], [[0.0]])
    np.testing.assert_allclose(client_state.arrays["head/bias"], [0.5, -0.5], atol=1e-6)


def test_personalization_trains_only_the_head(one_sample):
    """A known client goes on from its head, a late one starts from the initial head."""
    algorithm, state = start_algorithm(one_sample)
    models = algorithm.broadcast(state, "a").models
    late, late_state = one_sample.personalize(algorithm, ClientState(), models)
    np.testing.assert_allclose(late.weights["head/bias"], [0.5, -0.5], atol=1e-6)
    assert late.weights["trunk/kernel"][0, 0] == 1
    assert set(late_state.arrays) == HEAD
    again, _ = one_sample.personalize(algorithm, late_state, models)
    p = 1 / (1 + np.exp(2))
    np.testing.assert_allclose(again.weights["head/bias"], [0.5 + p, -0.5 - p], atol=1e-6)
    assert again.weights["trunk/kernel"][0, 0] == 1


def make_shard(seed, label_by_group):
    """Return 60 samples in three groups, whose labels depend on the client."""
    rng = np.random.default_rng(seed)
    group = np.arange(60) % 3
    x = (np.eye(3, 4)[group] * 2 + rng.normal(0, 0.5, (60, 4))).astype(np.float32)
    y = np.array(label_by_group)[group]
    return Shard(x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:], num_classes=3)


def test_clients_that_label_differently_need_their_own_heads():
    """The features are the same and the labels are permuted, so that one head cannot be right for both."""
    shards = {"a": make_shard(1, (0, 1, 2)), "b": make_shard(2, (1, 2, 0))}
    accuracy = {}
    for name in ("fedavg", "fedrep", "fedper"):
        config = FederationConfig(
            rounds=8,
            algorithm=name,
            options={"learning_rate": 0.05},
            personalization=PersonalizationConfig(select=False, baseline=False),
        )
        options = REGISTRY[name].defaults | config.options
        spec = softmax_spec(name, inputs=4, features=3, classes=3, options=options)
        end = simulate_softmax(spec, shards, config)
        assert end.state.phase in (PHASE_PERSONALIZE, "done")
        accuracy[name] = np.mean([metrics["accuracy_mixture"] for metrics in end.metrics.values()])
    assert accuracy["fedavg"] < 0.7
    assert min(accuracy["fedrep"], accuracy["fedper"]) > 0.9, accuracy


def test_head_is_the_last_dense_layers():
    weights = {
        name: np.zeros(shape, np.float32)
        for name, shape in (
            ("conv/kernel", (3, 3, 1, 4)),
            ("conv/bias", (4,)),
            ("lstm/kernel", (4, 8)),
            ("lstm/recurrent_kernel", (2, 8)),
            ("lstm/bias", (8,)),
            ("fc1/kernel", (2, 6)),
            ("fc1/bias", (6,)),
            ("fc2/kernel", (6, 3)),
            ("fc2/bias", (3,)),
        )
    }
    assert find_head_weights(weights) == ["fc1/kernel", "fc1/bias", "fc2/kernel", "fc2/bias"]
    assert find_head_weights({name: weights[name] for name in ("conv/kernel", "conv/bias")}) == []


@pytest.mark.parametrize(
    ("layers", "message"),
    [("haed", r"head_layers has 'haed'.*did you mean 'head'"), ("trunk,head", "3 of 3 weights")],
)
def test_invalid_head_layers_are_an_error(one_sample, layers, message):
    with pytest.raises(ConfigError, match=message):
        start_algorithm(one_sample, head_layers=layers)


def test_head_epochs_of_zero_are_an_error(one_sample):
    with pytest.raises(ConfigError, match="head_epochs is 0, expected 1 or more"):
        one_sample.make_algorithm("fedrep", head_epochs=0)


def make_network(*layers, task=None):
    import keras

    from edgefl.program.compiler.network import Network

    model = keras.Sequential([keras.Input((8, 1)), *layers])
    return Network(model, task) if task else Network(model)


def test_objectives_train_either_part(tiny_config):
    from edgefl.program.compiler.build import make_network as make_tiny_network

    network = make_tiny_network(replace(tiny_config, algorithm="fedrep"))
    objectives = {each.name: each for each in build_objectives("fedrep", network, {})}
    assert {spec.name for spec in objectives["train"].trained} == {"conv/kernel", "conv/bias"}
    assert {spec.name for spec in objectives["train"].frozen} == set(network.head_names)
    assert {spec.name for spec in objectives["train_head"].trained} == set(network.head_names)


def test_augmentation_changes_the_samples_of_the_head(tiny_config, digits, monkeypatch):
    """One head trains on the changed samples. The other draws the same changes, but does not make them.

    The trunk of the received model is frozen, so only the samples can make the heads differ.
    """
    from edgefl.learning.algorithms.plans import build_plan
    from edgefl.program.learner import loop
    from edgefl.program.learner.litert import LiteRTLearner

    def draw_only(images, augmentation, rng):
        augment_images(images, augmentation, rng)
        return images

    augment_images = loop.augment_images
    config = replace(
        tiny_config, algorithm="fedrep", options={}, augmentation=AugmentationConfig(2, True, 10.0)
    )
    plan, initial = build_plan(config)
    shard = Shard(
        x_train=digits[0][:40],
        y_train=digits[1][:40],
        x_test=digits[0][40:60],
        y_test=digits[1][40:60],
        num_classes=10,
    )
    heads = []
    for augment in (draw_only, augment_images):
        monkeypatch.setattr(loop, "augment_images", augment)
        algorithm = make_algorithm("fedrep", LiteRTLearner(plan), {**plan.spec.options, "head_epochs": 2})
        state = algorithm.init(initial, derive_rng(1, 0, "init"))
        sent = algorithm.broadcast(state, "a")
        update, after = algorithm.local_update(sent, ClientState(), shard, "a", derive_rng(1, 1, "a"))
        assert {name for delta in update.deltas.values() for name in delta} == {"conv/kernel", "conv/bias"}
        heads.append(after.arrays)
    plain, augmented = heads
    for name, array in plain.items():
        assert not np.array_equal(array, sent.models[START_MODEL][name]), name
        assert not np.array_equal(array, augmented[name]), name


def test_models_that_cannot_be_split_are_an_error():
    import keras

    from edgefl.base.tasks.config import TaskConfig

    layers = keras.layers
    with pytest.raises(ConfigError, match="none of the 0 weights before the head is trained"):
        build_objectives("fedrep", make_network(layers.Flatten(), layers.Dense(3)), {})
    frozen = make_network(layers.Conv1D(2, 3, trainable=False), layers.Flatten(), layers.Dense(3))
    with pytest.raises(ConfigError, match="none of the 2 weights before the head is trained"):
        build_objectives("fedrep", frozen, {})
    without_head = make_network(
        layers.Conv1D(2, 3), layers.GlobalAveragePooling1D(), task=TaskConfig(kind="regression", outputs=2)
    )
    with pytest.raises(ConfigError, match="no dense layer at its end; end the model with Dense"):
        build_objectives("fedrep", without_head, {})


def test_head_without_a_bias_must_be_named():
    """The aggregator finds the head by the names of kernels and biases."""
    import keras

    layers = keras.layers
    network = make_network(
        layers.Conv1D(2, 3, name="conv"), layers.Flatten(), layers.Dense(3, use_bias=False, name="fc")
    )
    with pytest.raises(ConfigError, match=r"which selects no weight.*set head_layers = 'fc'"):
        build_objectives("fedrep", network, {})
    assert build_objectives("fedrep", network, {"head_layers": "fc"})

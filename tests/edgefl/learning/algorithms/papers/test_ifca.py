"""IFCA: a round of two clients by hand, the choice, and the resulting clusters."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, ServerState, Shard, Update
from edgefl.learning.algorithms import PHASE_FEDERATE, PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.arithmetic import redraw
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.model_choice import find_lowest_loss, measure_mean_losses, read_pick_counts
from edgefl.learning.algorithms.names import GLOBAL, name_expert, select_experts
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def make_model(bias=(0.0, 0.0)):
    return {
        "trunk/kernel": np.ones((1, 1), np.float32),
        "head/kernel": np.zeros((1, 2), np.float32),
        "head/bias": np.array(bias, np.float32),
    }


def make_shard(label):
    x = np.ones((1, 1), np.float32)
    y = np.array([label])
    return Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=2)


def make_update(client_id, expert, n, values):
    return Update(
        client_id=client_id,
        round=1,
        num_samples=n,
        deltas={name_expert(expert): {"w": np.array(values, np.float32)}},
        metrics={"loss": 1.0, "expert": float(expert)},
    )


def federate(algorithm, server, state, shards, rounds):
    for _ in range(rounds):
        rngs = {c: derive_rng(1, state.round, c) for c in shards}
        updates = [
            algorithm.local_update(server.broadcast(state, c), ClientState(), shards[c], c, rngs[c])[0]
            for c in sorted(shards)
        ]
        state = server.aggregate(state, updates)
    return state, updates


def test_two_clients_one_round_by_hand():
    """x is 1 and the rate is 1.

    The client of class 0 takes the model that leans to it (losses ln 2 = .693147 and .313262). It moves its
    bias by 1 - sigmoid(1) = .268941. The client of class 1 takes the model of equal odds (.693147 against
    1.313262) and moves it by .5.
    """
    learner = SoftmaxLearner(softmax_spec("ifca", inputs=1, features=1, classes=2, batch_size=1))
    options = {"num_experts": 2, "epochs": 1, "learning_rate": 1.0, "weight_decay": 0.0}
    device = make_algorithm("ifca", learner, options)
    server = make_algorithm("ifca", None, options)
    state = ServerState(
        round=1, phase="federate", models={"expert0": make_model(), "expert1": make_model((1.0, 0.0))}
    )
    losses = measure_mean_losses(
        learner,
        select_experts(state.models),
        *(make_shard(0).x_train, make_shard(0).y_train),
        0,
        derive_rng(1, 1),
    )
    assert losses == pytest.approx({0: 0.693147, 1: 0.313262}, abs=1e-6)
    state, updates = federate(device, server, state, {"a": make_shard(0), "b": make_shard(1)}, 1)
    assert [u.metrics["expert"] for u in updates] == [1.0, 0.0]
    np.testing.assert_allclose(state.models["expert1"]["head/bias"], [1.268941, -0.268941], atol=1e-6)
    np.testing.assert_allclose(state.models["expert1"]["head/kernel"], [[0.268941, -0.268941]], atol=1e-6)
    np.testing.assert_allclose(state.models["expert0"]["head/bias"], [-0.5, 0.5], atol=1e-6)
    assert read_pick_counts(state) == {0: 1, 1: 1}


def test_a_model_is_averaged_over_the_clients_that_chose_it():
    """Oracle 1: [1,2], [5,6] with n = 1, 3 -> [4,5]. Oracle 2: a model without updates does not change."""
    server = make_algorithm("ifca", None, {"num_experts": 3})
    zeros = {"w": np.zeros(2, np.float32)}
    state = ServerState(
        round=1,
        phase="federate",
        models={"expert0": zeros, "expert1": zeros, "expert2": {"w": np.array([7, 8], np.float32)}},
    )
    after = server.aggregate(
        state,
        [make_update("a", 1, 1, [1, 2]), make_update("b", 0, 9, [3, 3]), make_update("c", 1, 3, [5, 6])],
    )
    np.testing.assert_array_equal(after.models["expert1"]["w"], np.array([4, 5], np.float32))
    np.testing.assert_array_equal(after.models["expert0"]["w"], np.array([3, 3], np.float32))
    np.testing.assert_array_equal(after.models["expert2"]["w"], state.models["expert2"]["w"])
    assert read_pick_counts(after) == {0: 1, 1: 2}
    assert server.aggregate(after, []).models == after.models


def test_the_lowest_loss_is_chosen():
    """Oracle 2: losses [.7, .3, .3] -> a minimiser."""
    assert find_lowest_loss({0: 0.7, 1: 0.3, 2: 0.3}) == 1
    assert find_lowest_loss({3: float("nan"), 5: 2.0}) == 5
    assert find_lowest_loss({2: float("nan")}) == 2


@given(rows=st.integers(1, 9), columns=st.integers(1, 9), seed=st.integers(0, 999))
def test_redrawn_weights_are_a_permutation(rows, columns, seed):
    weights = {
        "kernel": np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32),
        "bias": np.arange(3.0),
    }
    drawn = redraw(weights, derive_rng(seed, 0))
    assert drawn["kernel"].shape == (rows, columns)
    np.testing.assert_array_equal(np.sort(drawn["kernel"], axis=None), np.sort(weights["kernel"], axis=None))
    np.testing.assert_array_equal(np.sort(drawn["bias"]), weights["bias"])


def test_experts_start_with_different_biases():
    weights = {"kernel": np.zeros((2, 2), np.float32), "bias": np.arange(99, dtype=np.float32)}
    models = make_algorithm("ifca", None, {"num_experts": 3}).init(weights, derive_rng(1, 0, "init")).models
    assert len({item["bias"].tobytes() for item in models.values()}) == 3


def test_experts_start_from_draws_of_the_plan_builder():
    """Draw 1 exists. Draw 2 is missing and is made from the initial weights."""
    initial = {"bias": np.arange(9.0), "draw:1/bias": np.full(9, 7.0)}
    models = make_algorithm("ifca", None, {"num_experts": 3}).init(initial, derive_rng(1, 0, "init")).models
    assert [sorted(model) for model in models.values()] == [["bias"]] * 3
    np.testing.assert_array_equal(models["expert1"]["bias"], initial["draw:1/bias"])
    np.testing.assert_array_equal(np.sort(models["expert2"]["bias"]), initial["bias"])


def test_experts_start_different_and_all_are_broadcast():
    weights = {"kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.zeros(4, np.float32)}
    server = make_algorithm("ifca", None, {"num_experts": 4})
    state = server.init(weights, derive_rng(1, 0, "init"))
    sent = server.broadcast(state, "a").models
    assert sorted(sent) == ["expert0", "expert1", "expert2", "expert3"]
    np.testing.assert_array_equal(sent["expert0"]["kernel"], weights["kernel"])
    assert len({item["kernel"].tobytes() for item in sent.values()}) == 4


def test_all_models_are_compared_on_the_same_few_samples(shards):
    learner = SoftmaxLearner(softmax_spec("ifca", inputs=4, features=2, classes=3))
    weights = {
        s.name: np.random.default_rng(1).normal(size=s.shape).astype(np.float32) for s in learner.spec.weights
    }
    x = shards["pi-1"].x_train
    y = shards["pi-1"].y_train
    few = measure_mean_losses(learner, {0: weights, 4: weights}, x, y, 5, derive_rng(1, 1))
    assert few[0] == few[4]
    every = measure_mean_losses(learner, {0: weights}, x, y, 0, derive_rng(1, 1))
    rng = derive_rng(1, 1)
    assert few[0] != every[0]
    assert measure_mean_losses(learner, {0: weights}, x, y, len(y), rng) == every
    assert rng.random() == derive_rng(1, 1).random()


def test_ifca_with_one_expert_equals_fedavg(shards):
    rates = {"epochs": 2, "learning_rate": 0.1, "momentum": 0.5, "weight_decay": 0.0}
    learner = SoftmaxLearner(softmax_spec("ifca", inputs=4, features=3, classes=3))
    weights = {
        s.name: np.random.default_rng(1).normal(size=s.shape).astype(np.float32) for s in learner.spec.weights
    }
    final_models = []
    for name, options in (("ifca", {**rates, "num_experts": 1, "validation_share": 0.0}), ("fedavg", rates)):
        device = make_algorithm(name, learner, options)
        server = make_algorithm(name, None, options)
        final_models.append(
            federate(device, server, server.init(weights, derive_rng(1, 0, "init")), shards, 3)[0].models
        )
    for name, array in final_models[0]["expert0"].items():
        np.testing.assert_array_equal(array, final_models[1][GLOBAL][name])


def choose_between_two(name, labels, unseen=None, **options):
    """Return the model that a client with two samples chooses at the end, and its update of a round.

    Bias (5, 0) costs .0067 on class 0 and 5.0067 on class 1. Bias (0, 1) costs 1.3133 and .3133. Over both
    samples, (0, 1) is the better model, by .8133 against 2.5067. Over one sample, it depends on the class.
    """
    if name == "aem":
        options |= {"epsilon": 0.0, "gate_share": 0.0, "local_epochs": 1}
    options["num_experts"] = 2
    learner = SoftmaxLearner(
        softmax_spec(name, inputs=1, features=1, classes=2, batch_size=1, options=options)
    )
    device = make_algorithm(name, learner, options)
    server = make_algorithm(name, None, options)
    models = {"expert0": make_model((5.0, 0.0)), "expert1": make_model((0.0, 1.0))}
    local = {"local": make_model((0.0, 0.0))} if name == "aem" else {}
    state = ServerState(round=9, phase=PHASE_PERSONALIZE, models={**models, **local})
    x = np.ones((len(labels), 1), np.float32)
    shard = Shard(
        x_train=x,
        y_train=np.array(labels),
        x_test=x,
        y_test=np.array(labels),
        num_classes=2,
        unseen_train=unseen,
    )
    mixture, _ = device.personalize(server.broadcast(state, "a"), ClientState(), shard, derive_rng(1, 9, "a"))
    update, _ = device.local_update(
        server.broadcast(replace(state, phase=PHASE_FEDERATE), "a"),
        ClientState(),
        replace(shard, unseen_train=None),
        "a",
        derive_rng(1, 9, "a"),
    )
    return mixture.diagnostics["best"], update


@pytest.mark.parametrize("name", ["ifca", "aem"])
def test_with_a_share_the_last_choice_uses_only_validation_samples(name):
    """One of two samples is a validation sample, and the other one trains."""
    best = {}
    for labels in ((0, 1), (1, 0)):
        best[labels], update = choose_between_two(name, labels, validation_share=0.1)
        assert (update.num_samples, update.metrics["expert"]) == (1, 1 - best[labels])
    assert sorted(best.values()) == [0, 1]


@pytest.mark.parametrize("name", ["ifca", "aem"])
def test_by_default_all_samples_train_and_choose(name):
    for labels in ((0, 1), (1, 0)):
        best, update = choose_between_two(name, labels)
        assert (best, update.num_samples, update.metrics["expert"]) == (1, 2, 1)


@pytest.mark.parametrize("name", ["ifca", "aem"])
def test_samples_that_the_rounds_did_not_have_do_not_choose(name):
    """The rounds had rows 0 and 1, of which one trained. Rows 2 and 3 came after the rounds."""
    for labels in ((0, 1), (1, 0)):
        best, _ = choose_between_two(name, labels, validation_share=0.1)
        for further in ((0, 0), (1, 1)):
            unseen = np.array([2, 3])
            again, _ = choose_between_two(name, (*labels, *further), unseen, validation_share=0.1)
            assert again == best


def shift_labels(shard):
    """Return the same samples with each label shifted by one, so that no model fits both shards."""
    y = (shard.y_train + 1) % 3
    y_test = (shard.y_test + 1) % 3
    return Shard(x_train=shard.x_train, y_train=y, x_test=shard.x_test, y_test=y_test, num_classes=3)


def test_clients_with_conflicting_labels_form_two_clusters(shards):
    federation = {
        f"{c}-{group}": shift_labels(s) if group else s for c, s in shards.items() for group in (0, 1)
    }
    options = {"num_experts": 2, "epochs": 3, "learning_rate": 0.1}
    learner = SoftmaxLearner(softmax_spec("ifca", inputs=4, features=4, classes=3))
    device = make_algorithm("ifca", learner, options)
    server = make_algorithm("ifca", None, options)
    weights = {
        s.name: np.random.default_rng(3).normal(0, 0.5, s.shape).astype(np.float32)
        for s in learner.spec.weights
    }
    state, updates = federate(device, server, server.init(weights, derive_rng(1, 0, "init")), federation, 8)
    chosen = {u.client_id: u.metrics["expert"] for u in updates}
    assert {chosen[c] for c in chosen if c.endswith("0")} != {chosen[c] for c in chosen if c.endswith("1")}
    assert len(set(chosen.values())) == 2
    state = ServerState(round=state.round, phase=PHASE_PERSONALIZE, models=state.models)
    for client_id, shard in federation.items():
        mixture, _ = device.personalize(
            server.broadcast(state, client_id), ClientState(), shard, derive_rng(1, 9, client_id)
        )
        right = (
            learner.predict("predict_mixture", mixture.weights, {"x": shard.x_test}).argmax(axis=1)
            == shard.y_test
        )
        assert right.mean() > 0.8
        assert mixture.diagnostics["best"] == chosen[client_id]


def test_the_laws_hold_when_choosing_on_few_samples(shards):
    learner = SoftmaxLearner(softmax_spec("ifca", inputs=4, features=3, classes=3))
    weights = {
        s.name: np.random.default_rng(7).normal(0, 0.5, s.shape).astype(np.float32)
        for s in learner.spec.weights
    }
    check_algorithm(
        lambda item: make_algorithm("ifca", item, {"num_experts": 3, "selection_samples": 8}),
        learner,
        weights,
        shards,
    )


def test_zero_experts_are_an_error():
    with pytest.raises(ConfigError, match="num_experts is 0"):
        make_algorithm("ifca", None, {"num_experts": 0})

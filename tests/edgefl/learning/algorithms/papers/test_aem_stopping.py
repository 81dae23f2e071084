"""Early stopping of cluster models: by hand, and no training on validation samples."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, ServerState, Shard, Update
from edgefl.learning.algorithms import PHASE_FEDERATE, PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.model_choice import split_validation_rows
from edgefl.learning.algorithms.names import name_expert
from edgefl.learning.algorithms.papers.aem import LowestLosses, list_active_models, track_lowest_losses
from edgefl.learning.client.validation import hold_out_validation
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def start_device(options):
    """Return the learner, a device, and its first broadcast."""
    learner = SoftmaxLearner(softmax_spec("aem", inputs=4, features=3, classes=3, options=options))
    weights = {
        s.name: np.random.default_rng(7).normal(0, 0.5, s.shape).astype(np.float32)
        for s in learner.spec.weights
    }
    device, server = (make_algorithm("aem", item, options) for item in (learner, None))
    return device, server.broadcast(server.init(weights, derive_rng(1, 0, "init")), "a")


def make_validated_update(client_id, expert, loss, n=1):
    zero = {name_expert(expert): {"w": np.zeros(1, np.float32)}}
    return Update(
        client_id=client_id,
        round=1,
        num_samples=n,
        deltas=zero,
        metrics={"loss": 1.0, "expert": float(expert), "validation_loss": loss},
    )


def test_early_stopping_by_hand():
    """With patience 2, model 0 falls to .6 for client a, waits twice and stops. Model 1 stops later.

    A first loss of a client has no vote, and one better loss of two is enough.
    """
    server = make_algorithm("aem", None, {"num_experts": 2, "patience": 2, "validation_share": 0.1})
    state = server.init({"w": np.zeros(1, np.float32)}, derive_rng(1, 0, "init"))
    rounds = [
        [make_validated_update("a", 0, 0.9), make_validated_update("b", 0, 0.5)],
        [make_validated_update("a", 0, 0.6), make_validated_update("b", 0, 1.0)],
        [make_validated_update("a", 0, 0.6), make_validated_update("b", 1, 0.4)],
        # a client that chooses model 1 for the first time has no vote
        [make_validated_update("a", 0, 0.9), make_validated_update("c", 1, 0.6)],
    ]
    for updates in rounds:
        assert sorted(server.broadcast(state, "a").models) == ["expert0", "expert1"]
        state = server.aggregate(state, updates)
    lowest = LowestLosses(by_model={0: {"a": 0.6, "b": 0.5}, 1: {"b": 0.4, "c": 0.6}}, waited={0: 2})
    assert state.read_record(LowestLosses) == lowest
    assert list(server.broadcast(state, "a").models) == ["expert1"]
    assert sorted(server.broadcast(replace(state, phase=PHASE_PERSONALIZE), "a").models) == [
        "expert0",
        "expert1",
        "local",
    ]
    for loss in (0.41, 0.4):
        assert state.phase == PHASE_FEDERATE
        state = server.aggregate(state, [make_validated_update("b", 1, loss)])
    assert (state.phase, state.round) == (PHASE_PERSONALIZE, 7)
    after = server.aggregate(state, [make_validated_update("a", 1, 0.1)])
    assert (after.round, after.models, after.records) == (8, state.models, state.records)


@given(
    st.lists(st.dictionaries(st.integers(0, 3), st.floats(0.1, 9.0), max_size=4), max_size=12),
    st.integers(1, 4),
)
def test_a_stopped_model_stays_stopped(history, patience):
    models = {name_expert(index): {} for index in range(4)}
    state = ServerState(round=1, phase=PHASE_FEDERATE, models=models)
    before = set(range(4))
    for losses in history:
        reported = {j: {"a": loss} for j, loss in losses.items() if j in before}
        state = state.with_record(track_lowest_losses(state.read_record(LowestLosses), reported))
        now = set(list_active_models(state, patience))
        assert now <= before
        before = now
    assert set(list_active_models(state, 0)) == set(range(4))


@pytest.mark.parametrize("lie", [0.0, -1e9, 1e9])
def test_client_with_false_losses_stops_no_model_on_which_another_client_improves(lie):
    """Nine clients improve on three models, and one client reports the same loss of each model in turn."""
    options = {"num_experts": 3, "patience": 3, "validation_share": 0.1}
    server = make_algorithm("aem", None, options)
    state = server.init({"w": np.zeros(1, np.float32)}, derive_rng(1, 0, "init"))
    for number in range(30):
        honest = [make_validated_update(f"c{i}", i % 3, 1.0 / (number + 1)) for i in range(9)]
        liar = make_validated_update("liar", number % 3, lie)
        updates = [replace(update, round=number + 1) for update in (*honest, liar)]
        state = server.aggregate(state, updates)
        assert state.phase == PHASE_FEDERATE
        assert len(list_active_models(state, 3)) == 3


def make_shard(labels, recordings=None):
    """Return a shard whose only value per sample is the row."""
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    return Shard(
        x_train=x,
        y_train=labels,
        x_test=x[:0],
        y_test=labels[:0],
        num_classes=2,
        group_train=recordings,
    )


@given(count=st.integers(2, 300), share=st.floats(0.01, 0.9))
def test_validation_split_is_a_repeatable_partition(count, share):
    shard = make_shard(np.zeros(count, np.int64))
    (fit, held_out), (again, _) = (split_validation_rows(shard, share) for _ in range(2))
    assert sorted([*fit, *held_out]) == list(range(count))
    assert len(fit) and len(held_out)
    np.testing.assert_array_equal(fit, again)


def test_validation_samples_are_whole_recordings():
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    recordings = np.array([7, 7, 8, 8, 9, 9, 5, 5])
    fit, held_out = split_validation_rows(make_shard(labels, recordings), 0.25)
    assert sorted([*fit, *held_out]) == list(range(8)) and len(held_out) == 4
    assert not set(recordings[fit]) & set(recordings[held_out])
    assert set(labels[fit]) == set(labels[held_out]) == {0, 1}


@pytest.mark.parametrize("recordings", [None, np.arange(60) // 3])
def test_rounds_never_train_on_the_samples_of_the_last_choice(recordings):
    """The client holds back 12 of 60 samples to compare models. The rounds hold back 5 of the other 48.

    The last choice has all 60 samples, and must use the same 5.
    """
    shard = make_shard(np.arange(60) % 2, recordings)
    split = hold_out_validation(shard, 0.2, seed=1, client_id="a")
    trained, held_out = (split.train.x_train[rows, 0] for rows in split_validation_rows(split.train, 0.1))
    fit, last_choice = split_validation_rows(replace(shard, unseen_train=split.rows), 0.1)
    assert len(last_choice) and not set(last_choice) & set(trained)
    np.testing.assert_array_equal(last_choice, held_out)
    assert sorted([*fit, *last_choice]) == list(range(60))


def test_client_reports_validation_loss_only_without_exploration():
    """With epsilon 1, all clients explore and no validation loss counts. With epsilon 0, all choose."""
    x = np.ones((4, 4), np.float32)
    y = np.array([0, 1, 2, 0])
    for epsilon, counts in ((1.0, False), (0.0, True)):
        device, broadcast = start_device(
            {"num_experts": 2, "patience": 1, "validation_share": 0.1, "epsilon": epsilon}
        )
        update, _ = device.local_update(
            broadcast,
            ClientState(),
            Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=3),
            "a",
            derive_rng(1, 1, "a"),
        )
        assert ("validation_loss" in update.metrics) == counts


def test_single_sample_is_used_only_for_training():
    device, broadcast = start_device({"num_experts": 2, "patience": 1, "validation_share": 0.1})
    x, y = np.ones((1, 4), np.float32), np.array([1])
    shard = Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=3)
    update, _ = device.local_update(broadcast, ClientState(), shard, "a", derive_rng(1, 1, "a"))
    assert "validation_loss" not in update.metrics
    assert update.num_samples == 1


def test_validation_samples_do_not_affect_training(shards):
    """Other labels on the validation samples give the same update with another validation loss."""
    device, broadcast = start_device(
        {"num_experts": 2, "patience": 3, "validation_share": 0.2, "epsilon": 0.0}
    )
    shard = shards["pi-3"]
    order = derive_rng(0, 0, "validation").permutation(len(shard.y_train))
    y = shard.y_train.copy()
    y[order[: round(0.2 * len(y))]] = (y[order[: round(0.2 * len(y))]] + 1) % 3
    pair = [
        device.local_update(broadcast, ClientState(), item, "a", derive_rng(1, 1, "a"))
        for item in (shard, replace(shard, y_train=y))
    ]
    (first, _), (second, _) = pair
    assert first.num_samples == len(y) - round(0.2 * len(y))
    assert first.metrics["validation_loss"] != second.metrics["validation_loss"]
    for model, deltas in first.deltas.items():
        for name, array in deltas.items():
            np.testing.assert_array_equal(array, second.deltas[model][name])

"""Every algorithm of the registry satisfies the laws, on numpy and compiled. A broken algorithm does not."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import ModelConfig
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import REGISTRY, complete_algorithm_options, make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, fedavg
from edgefl.program.learner.litert import LiteRTLearner
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

FEWER_EPOCHS = {"aem": {"local_epochs": 20}}  # fewer than the default
COMPILED = {"epochs": 1, "learning_rate": 0.1, "batch_size": 8}
NORMALIZED_MODEL = ModelConfig(
    name="autoencoder", input_shape=(8, 8, 1), num_classes=10, options={"hidden": 8, "code": 4, "depth": 1}
)
MODELS = {"fedbn": NORMALIZED_MODEL, "fedrep": NORMALIZED_MODEL}  # with batch norm, unlike the tiny model
SMALL_OPTIONS = {"aem": {"num_experts": 2, "local_epochs": 2, "gate_epochs": 2}}


def prepare_learner(name):
    spec = softmax_spec(name, inputs=4, features=3, classes=3)
    rng = np.random.default_rng(7)
    return SoftmaxLearner(spec), {
        w.name: rng.normal(0, 0.5, w.shape).astype(np.float32) for w in spec.weights
    }


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_laws_hold(name, shards):
    learner, initial = prepare_learner(name)
    check_algorithm(
        lambda any_learner: make_algorithm(name, any_learner, FEWER_EPOCHS.get(name, {})),
        learner,
        initial,
        shards,
    )


# Algorithms whose objectives differ most. The others hold the laws on numpy, and here in `make test-all`. AEM
# and FedMix hold them on LiteRT in their own files.
FAST = ("ditto", "fedavg", "fedbn", "ifca", "pfl-mfe")


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in sorted(REGISTRY)],
)
def test_laws_hold_on_litert(name, tiny_config, digits):
    from edgefl.learning.algorithms.plans import build_plan

    defaults = complete_algorithm_options(name, {})
    chosen_options = COMPILED | SMALL_OPTIONS.get(name, {})
    options = {key: value for key, value in chosen_options.items() if key in defaults}
    model = MODELS.get(name, tiny_config.model)
    plan, initial = build_plan(replace(tiny_config, algorithm=name, options=options, model=model))
    x, y = digits
    shards = {
        f"pi-{i}": Shard(
            x_train=x[i::4][:24],
            y_train=y[i::4][:24],
            x_test=x[i::4][40:50],
            y_test=y[i::4][40:50],
            num_classes=10,
        )
        for i in range(2)
    }
    threes = np.flatnonzero(y == 3)
    train, test = threes[:20], threes[20:30]
    shards["one class"] = Shard(
        x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test], num_classes=10
    )
    resolved = plan.spec.options
    check_algorithm(
        lambda any_learner: make_algorithm(name, any_learner, resolved), LiteRTLearner(plan), initial, shards
    )


def make_algorithm_with_hidden_counter(learner):
    """Make FedAvg that counts calls outside of its state, so that equal calls return different bits."""
    base = fedavg(learner, FedAvgOptions())
    calls = []

    def local_update(*args):
        calls.append(1)
        update, client_state = base.local_update(*args)
        return replace(
            update, deltas={"global": {n: a * len(calls) for n, a in update.deltas["global"].items()}}
        ), client_state

    return replace(base, local_update=local_update)


def make_algorithm_that_sends_samples(learner):
    """Make FedAvg that sends the samples of the client with the update."""
    base = fedavg(learner, FedAvgOptions())

    def local_update(broadcast, state, shard, client_id, rng):
        update, client_state = base.local_update(broadcast, state, shard, client_id, rng)
        return replace(update, deltas={**update.deltas, "samples": {"x": shard.x_train}}), client_state

    return replace(base, local_update=local_update)


def make_algorithm_that_changes_the_broadcast(learner):
    """Make FedAvg that trains in place on the broadcast weights."""
    base = fedavg(learner, FedAvgOptions())

    def local_update(broadcast, *rest):
        update, client_state = base.local_update(broadcast, *rest)
        for array in broadcast.models["global"].values():
            array += 1
        return update, client_state

    return replace(base, local_update=local_update)


def make_algorithm_without_loss(learner):
    """Make FedAvg that reports no loss."""
    base = fedavg(learner, FedAvgOptions())

    def local_update(*args):
        update, client_state = base.local_update(*args)
        return replace(update, metrics={}), client_state

    return replace(base, local_update=local_update)


def make_algorithm_that_sends_nan(learner):
    """Make FedAvg that sends NaN."""
    base = fedavg(learner, FedAvgOptions())

    def local_update(*args):
        update, client_state = base.local_update(*args)
        return replace(
            update, deltas={"global": {n: a * np.float32("nan") for n, a in update.deltas["global"].items()}}
        ), client_state

    return replace(base, local_update=local_update)


def make_algorithm_that_changes_the_state(learner):
    """Make FedAvg that changes an array of the client state in place."""
    base = fedavg(learner, FedAvgOptions())

    def local_update(broadcast, state, *rest):
        update, _ = base.local_update(broadcast, state, *rest)
        changed = dict(state.arrays) or {"count": np.zeros(1, np.float32)}
        changed["count"] += 1
        return update, replace(state, arrays=changed)

    return replace(base, local_update=local_update)


def make_algorithm_that_reads_memory_order(learner):
    """Make FedAvg that depends on the memory order of an array, which saving and loading loses."""
    base = fedavg(learner, FedAvgOptions())
    changed = ClientState({"counts": np.zeros((2, 2), np.float32, order="F")})

    def local_update(broadcast, state, *rest):
        update, _ = base.local_update(broadcast, state, *rest)
        was_loaded = any(array.flags.c_contiguous for array in state.arrays.values())
        scale = np.float32(1.0 if was_loaded else 0.5)
        return replace(
            update, deltas={"global": {n: a * scale for n, a in update.deltas["global"].items()}}
        ), changed

    return replace(base, local_update=local_update)


def make_algorithm_that_divides_by_no_updates(learner):
    """Make FedAvg that computes a mean of no updates."""
    base = fedavg(learner, FedAvgOptions())

    def aggregate(state, updates):
        updates = list(updates)
        after = base.aggregate(state, updates)
        return (
            after
            if updates
            else replace(
                after,
                models={"global": {n: a * np.float32("nan") for n, a in state.models["global"].items()}},
            )
        )

    return replace(base, aggregate=aggregate)


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (make_algorithm_with_hidden_counter, "same seed"),
        (make_algorithm_that_sends_samples, "what was broadcast"),
        (make_algorithm_that_changes_the_broadcast, "in place"),
        (make_algorithm_without_loss, "reports its loss"),
        (make_algorithm_that_sends_nan, "finite float32"),
        (make_algorithm_that_changes_the_state, "in place"),
        (make_algorithm_that_reads_memory_order, "survive a save and a load"),
        (make_algorithm_that_divides_by_no_updates, "without updates passes"),
    ],
)
def test_check_detects_a_broken_algorithm(make, law, shards):
    learner, initial = prepare_learner("fedavg")
    with pytest.raises(AssertionError, match=law):
        check_algorithm(make, learner, initial, shards)

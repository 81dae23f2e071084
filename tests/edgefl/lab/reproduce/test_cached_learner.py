"""Local models that a benchmark trains once for all algorithms."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.base.errors import DataError
from edgefl.base.types import Shard
from edgefl.lab.reproduce.cached_learner import CachedLearner
from edgefl.learning.client.personalization import train_single
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import PREDICT_SINGLE, TRAIN_SINGLE

CONFIG = FederationConfig(
    name="local-models",
    seed=3,
    rounds=1,
    options={"epochs": 1},
    model=ModelConfig(name="softmax", input_shape=(28, 28, 1)),
    data=DataConfig(name="digits", num_train=40, num_test=20),
    partition=PartitionConfig(name="iid", num_clients=2),
)


def build_algorithm_plan(algorithm):
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from edgefl.learning.algorithms.plans import build_plan

    return build_plan(replace(CONFIG, algorithm=algorithm))


@pytest.fixture(scope="module")
def fedavg_plan():
    return build_algorithm_plan("fedavg")


@pytest.fixture
def samples():
    rng = np.random.default_rng(7)
    return rng.random((9, 28, 28, 1), np.float32), np.arange(9) % 3


def fit(learner, initial, samples, **changes):
    """Return the trained weights, the loss and the next draw of the generator."""
    start = {
        tensor.name: initial[tensor.name] for tensor in learner.spec.find_signature(TRAIN_SINGLE).trained
    }
    x, y = samples
    rng = np.random.default_rng(changes.pop("seed", 1))
    weights, loss = learner.fit(TRAIN_SINGLE, start, {"x": x}, y, rng=rng, **({"epochs": 2} | changes))
    return {name: array.tobytes() for name, array in weights.items()}, loss, rng.random()


def test_cached_model_is_trained_once_and_equals_plain_learner_result(fedavg_plan, samples, tmp_path):
    plan, initial = fedavg_plan
    expected = fit(LiteRTLearner(plan), initial, samples)
    first, second = CachedLearner(plan, tmp_path), CachedLearner(plan, tmp_path)
    assert fit(first, initial, samples) == expected
    assert first.saved_s == 0
    assert fit(second, initial, samples) == expected
    assert second.saved_s > 0
    x, _ = samples
    predicted = second.predict(PREDICT_SINGLE, initial, {"x": x})
    assert np.array_equal(predicted, LiteRTLearner(plan).predict(PREDICT_SINGLE, initial, {"x": x}))


def test_local_model_is_shared_between_algorithms(fedavg_plan, samples, tmp_path):
    plan, initial = fedavg_plan
    fit(CachedLearner(plan, tmp_path), initial, samples)
    other = CachedLearner(build_algorithm_plan("ditto")[0], tmp_path)
    fit(other, initial, samples)
    assert other.saved_s > 0


@pytest.mark.parametrize(
    "changes",
    [{"epochs": 3}, {"seed": 2}, {"hyper": {"learning_rate": 0.5}}, {"final_loss": 5.0}, {"least_epochs": 2}],
    ids=lambda changes: next(iter(changes)),
)
def test_changed_training_settings_miss_the_cache(fedavg_plan, samples, tmp_path, changes):
    plan, initial = fedavg_plan
    fit(CachedLearner(plan, tmp_path), initial, samples)
    learner = CachedLearner(plan, tmp_path)
    assert fit(learner, initial, samples, **changes) == fit(LiteRTLearner(plan), initial, samples, **changes)
    assert learner.saved_s == 0


def test_changed_labels_or_samples_miss_the_cache(fedavg_plan, samples, tmp_path):
    plan, initial = fedavg_plan
    learner = CachedLearner(plan, tmp_path)
    fit(learner, initial, samples)
    x, y = samples
    fit(learner, initial, (x, y[::-1].copy()))
    fit(learner, initial, (x + np.float32(0.1), y))
    assert learner.saved_s == 0


def test_local_model_of_a_client_is_cached(fedavg_plan, samples, tmp_path):
    plan, initial = fedavg_plan
    x, y = samples
    shard = Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=10)
    start = {t.name: initial[t.name] for t in plan.spec.find_signature(TRAIN_SINGLE).trained}
    first, second = (CachedLearner(plan, tmp_path) for _ in range(2))
    models = [
        train_single(learner, start, shard, 3, 0.01, np.random.default_rng(1)) for learner in (first, second)
    ]
    assert first.saved_s == 0 < second.saved_s
    assert models[0].loss == models[1].loss
    assert all(np.array_equal(array, models[1].weights[name]) for name, array in models[0].weights.items())


def test_training_that_carries_slots_is_not_cached(fedavg_plan, samples, tmp_path):
    plan, initial = fedavg_plan
    expected_slots, slots = {}, {}
    expected = fit(LiteRTLearner(plan), initial, samples, slots=expected_slots)
    assert fit(CachedLearner(plan, tmp_path), initial, samples, slots=slots) == expected
    assert all(np.array_equal(slots[name], array) for name, array in expected_slots.items())
    assert slots and not list(tmp_path.iterdir())


def test_training_with_augmentation_misses_the_cache_of_plain_training(fedavg_plan, samples, tmp_path):
    plan, initial = fedavg_plan
    fit(CachedLearner(plan, tmp_path), initial, samples)
    augmented = replace(plan, spec=replace(plan.spec, augmentation={"flip": True}))
    learner = CachedLearner(augmented, tmp_path)
    assert fit(learner, initial, samples) == fit(LiteRTLearner(augmented), initial, samples)
    assert learner.saved_s == 0
    fit(learner, initial, samples)
    assert learner.saved_s > 0
    plain = fit(LiteRTLearner(plan), initial, samples)
    assert fit(learner, initial, samples, augment=False) == plain != fit(learner, initial, samples)


def test_failed_training_caches_no_model(fedavg_plan, samples, tmp_path):
    plan, initial = fedavg_plan
    x, y = samples
    with pytest.raises(DataError):
        fit(CachedLearner(plan, tmp_path), initial, (x * np.float32("nan"), y))
    assert not list(tmp_path.iterdir())

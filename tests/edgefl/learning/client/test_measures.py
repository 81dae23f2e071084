"""The figures of models for regressions and anomalies, and the samples that a detector trains on."""

import math
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.rng import derive_rng
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.types import ClientState, Peer, Shard
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.plans import build_plan
from edgefl.learning.client.measures import measure_constant_loss, measure_test_samples, score_samples
from edgefl.learning.client.runner import ClientRunner, WorkItem
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.protocol.server.baseline import with_baseline
from tests.support.numpy_learner.softmax import softmax_spec

ANOMALY = TaskConfig(kind="anomaly")


class Constant:
    """A learner whose model returns the same outputs for every sample."""

    def __init__(self, task: TaskConfig, outputs: list[float]) -> None:
        self.spec = replace(
            softmax_spec("fedavg", inputs=4, features=3, classes=3), task=task.as_plan_entry()
        )
        self.outputs = np.array(outputs, np.float32)

    def predict(self, signature, weights, data):
        return np.tile(self.outputs, (len(data["x"]), 1))


PEER = Peer("predict", {})


def test_anomalies_are_rated_by_their_rank_among_normal_samples() -> None:
    """Losses are 1, 4 and 9 for normal samples, and 4 and 100 for anomalies: AUC (1.5 / 3 + 1) / 2."""
    x = np.array([[1.0], [2.0], [3.0], [2.0], [10.0]], np.float32)
    anomaly = np.array([False, False, False, True, True])
    shard = Shard(x_train=x, y_train=x, x_test=x, y_test=x, num_classes=1, anomaly_test=anomaly)
    ratings, figures = measure_test_samples(Constant(ANOMALY, [0.0]), PEER, shard)
    assert ratings.tolist() == [0.5, 1.0]
    assert figures == {"auc": 0.75, "r2": 0.0}


def test_without_anomalies_the_reconstruction_counts() -> None:
    x = np.array([[1.0], [3.0]], np.float32)
    for anomaly in (None, np.zeros(2, bool)):
        shard = Shard(x_train=x, y_train=x, x_test=x, y_test=x, num_classes=1, anomaly_test=anomaly)
        ratings, figures = measure_test_samples(Constant(ANOMALY, [2.0]), PEER, shard)
        assert ratings.tolist() == [-1.0, -1.0] and figures == {"r2": 0.0}
    empty = Shard(x_train=x, y_train=x, x_test=x[:0], y_test=x[:0], num_classes=1)
    assert math.isnan(measure_test_samples(Constant(ANOMALY, [2.0]), PEER, empty)[1]["r2"])


@pytest.mark.parametrize("anomaly", [None, np.array([True, False])])
def test_an_output_that_is_not_finite_has_the_worst_rating(anomaly: np.ndarray | None) -> None:
    x = np.ones((2, 1), np.float32)
    task = ANOMALY if anomaly is not None else TaskConfig(kind="regression")
    shard = Shard(x_train=x, y_train=x, x_test=x, y_test=x, num_classes=1, anomaly_test=anomaly)
    ratings, _ = measure_test_samples(Constant(task, [math.nan]), PEER, shard)
    assert len(ratings) == (2 if anomaly is None else 1)
    assert np.isneginf(ratings).all()


@pytest.mark.parametrize("loss", ["mse", "mae"])
def test_scores_compare_with_the_best_constant(loss: str) -> None:
    """Targets 0, 1 and 4 have the mean 5 / 3 and the median 1."""
    y = np.array([[0.0], [1.0], [4.0]], np.float32)
    task = TaskConfig(kind="regression", loss=loss)
    measured = measure_constant_loss(task, y)
    assert measured == pytest.approx({"mse": 26 / 9, "mae": 4 / 3}[loss])
    scores = score_samples(Constant(task, [0.0]), PEER, y, y)
    losses = {"mse": y[:, 0] ** 2, "mae": y[:, 0]}[loss]
    assert scores.tolist() == np.rint(1000 / (1 + losses / measured)).astype(int).tolist()
    assert scores[0] == 1000
    assert measure_constant_loss(task, y[:1]) == 1.0


def test_detector_is_never_trained_on_its_validation_samples() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    shard = Shard(
        x_train=x[:100],
        y_train=np.zeros(100, np.int64),
        x_test=x[100:],
        y_test=np.arange(20) % 2,
        num_classes=2,
    )
    trained: list[np.ndarray] = []

    class Recording(LiteRTLearner):
        def fit(self, signature, weights, data, labels, **further):
            trained.append(data["x"])
            return super().fit(signature, weights, data, labels, **further)

    config = FederationConfig(
        task=ANOMALY,
        model=ModelConfig(
            name="autoencoder", input_shape=(4,), num_classes=4, options={"hidden": 4, "code": 2, "depth": 1}
        ),
        rounds=1,
    )
    plan, initial = build_plan(config)
    runner = ClientRunner(plan, Recording(plan), {"pi-1": shard}, 1)
    algorithm = with_baseline(make_algorithm("fedavg", None, plan.spec.options), config, plan.spec)
    state = algorithm.init(initial, derive_rng(1, 0, "init"))
    broadcast = algorithm.broadcast(replace(state, phase=PHASE_PERSONALIZE), "pi-1")
    held_out = runner.split("pi-1").x
    mixture, _, metrics = runner.personalize(
        WorkItem(broadcast=broadcast, state=ClientState(), client_id="pi-1")
    )
    assert len(held_out) == 20 and trained
    for samples in trained:
        assert not (samples[:, None] == held_out[None]).all(axis=2).any()
    assert {"auc_local", "auc_shipped", "r2_shipped"} <= metrics.keys() and mixture.weights

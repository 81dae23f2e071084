"""The end of the training of one device: when all is learned, or with larger steps after all epochs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import DivergedError
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.types import Shard
from edgefl.learning.client.personalization import (
    COMPARED,
    LEARNED,
    find_final_loss,
    find_learned_loss,
    train_single,
    train_to_end,
)
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

SPEC = softmax_spec("fedavg", inputs=4, features=4, classes=3, personalization={"select": True})


def make_start():
    return {
        spec.name: np.eye(*spec.shape, dtype=np.float32) if len(spec.shape) == 2 else np.zeros(3, np.float32)
        for spec in SPEC.weights
    }


def make_shard(*, shuffled=False):
    rng = np.random.default_rng(1)
    y = rng.integers(3, size=40)
    x = np.eye(4)[y].astype(np.float32)
    labels = rng.permutation(y) if shuffled else y
    return Shard(x_train=x, y_train=labels, x_test=x, y_test=labels, num_classes=3)


class Recorder(SoftmaxLearner):
    """A learner that records the rate of each training, and diverges above the largest rate."""

    def __init__(self, largest_rate):
        super().__init__(SPEC)
        self.rates = []
        self.largest_rate = largest_rate

    def fit(self, *arguments, hyper, **more):
        self.rates.append(round(hyper["learning_rate"], 6))
        if hyper["learning_rate"] > self.largest_rate:
            raise DivergedError("the loss is nan")
        return super().fit(*arguments, hyper=hyper, **more)


def train(rate, *, shard=None, largest_rate=math.inf, enough=None):
    """Return the model and the rates of all trainings. `enough` replaces the final loss of the shard."""
    learner = Recorder(largest_rate)
    samples = shard or make_shard()

    def train_once(used_rate):
        return train_single(learner, make_start(), samples, 5, used_rate, np.random.default_rng(2))

    final = find_final_loss(SPEC, samples) if enough is None else enough
    return train_to_end(train_once, rate, final), learner.rates


@pytest.mark.parametrize(
    ("end", "rate", "most", "epochs"),
    [
        (LEARNED, 0.5, 200, 100),
        (LEARNED, 0.5, 70, 70),
        (LEARNED, 0.1, 300, 167),
        (LEARNED, 0.1, 120, 120),
        (COMPARED, 0.5, 200, 40),
        (COMPARED, 0.05, 200, 59),
    ],
)
def test_training_ends_when_the_samples_are_learned(end, rate, most, epochs):
    """A model to ship has learned at a mean loss of .002 ln 3 = .0022. That takes 34 epochs with the largest
    rate, but its training may end only after 500 steps, which are 100 epochs. A model to compare ends at
    .02 ln 3 and after 200 steps.
    """
    start, shard = make_start(), make_shard()
    model = train_single(SoftmaxLearner(SPEC), start, shard, most, rate, np.random.default_rng(2), end)
    least = math.ceil(end.least_steps / 5)
    learned = end.loss_share * math.log(3)

    def fit(count):
        return SoftmaxLearner(SPEC).fit(
            "train_single",
            start,
            {"x": shard.x_train},
            shard.y_train,
            epochs=count,
            rng=np.random.default_rng(2),
            hyper={"learning_rate": rate},
        )

    if epochs > least:
        assert fit(epochs - 1)[1] > learned
    whole, loss = fit(epochs)
    assert loss == model.loss
    if epochs < most:
        assert loss <= learned and epochs >= least
    assert all(np.array_equal(model.weights[name], array) for name, array in whole.items())


def test_a_rare_class_is_learned_before_the_training_ends():
    """One of 400 samples has the second class. A model that ignores it has a loss of 1/400 ln 400 = .015."""
    shard = make_shard()
    x, y = np.repeat(np.eye(4, dtype=np.float32)[:2], [399, 1], axis=0), np.repeat([0, 1], [399, 1])
    rare = replace(shard, x_train=x, y_train=y)
    model = train_single(SoftmaxLearner(SPEC), make_start(), rare, 1000, 0.5, np.random.default_rng(2))
    outputs = SoftmaxLearner(SPEC).predict("predict", model.weights, {"x": x[-1:]})
    assert model.loss <= 0.002 * math.log(3) and outputs.argmax() == 1


@pytest.mark.parametrize("kind", ["regression", "anomaly"])
def test_other_tasks_train_all_epochs(kind):
    spec = replace(SPEC, task={"kind": kind, "outputs": 1})
    assert find_learned_loss(spec, make_shard(), LEARNED) == -math.inf
    one_class = replace(make_shard(), num_classes=1)
    assert find_learned_loss(SPEC, one_class, LEARNED) == pytest.approx(0.002 * math.log(2))


def test_model_that_is_trained_stays():
    model, rates = train(0.5)
    assert model.loss < 0.1 * math.log(3) and rates == [0.5]


def test_model_that_is_short_of_training_takes_larger_steps():
    """The losses with the three rates are .51, .44 and .26. A tenth of the loss of guessing is .11."""
    short, _ = train(0.01, enough=math.inf)
    assert short.loss > 0.1 * math.log(3)
    model, rates = train(0.01)
    assert rates == [0.01, 0.03, 0.09]
    expected, _ = train(0.09, enough=math.inf)
    assert model.loss == expected.loss < 0.6 * short.loss
    assert all(np.array_equal(model.weights[name], expected.weights[name]) for name in model.weights)


def test_labels_that_no_rate_can_learn_keep_the_first_model():
    shard = make_shard(shuffled=True)
    model, rates = train(0.3, shard=shard)
    expected, _ = train(0.3, enough=math.inf, shard=shard)
    assert rates == [0.3, 0.9] and model.loss == expected.loss > 0.1 * math.log(3)


def test_larger_steps_that_diverge_keep_the_first_model():
    model, rates = train(0.01, largest_rate=0.02)
    expected, _ = train(0.01, enough=math.inf)
    assert rates == [0.01, 0.03] and model.loss == expected.loss
    with pytest.raises(DivergedError):
        train(0.03, largest_rate=0.02)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (TaskConfig(kind="regression"), 0.01 * 450.0),
        (TaskConfig(kind="regression", loss="mae"), 0.01 * 15.0),
        (TaskConfig(kind="anomaly"), math.inf),
    ],
)
def test_final_loss_of_a_regression_is_a_share_of_predicting_the_mean(task, expected):
    """The mean of 100, 130, 160 and 130 is 130. The distances from it are 30, 0, 30 and 0."""
    y = np.array([[100.0], [130.0], [160.0], [130.0]], np.float32)
    spec = replace(SPEC, task={"kind": task.kind, "loss": task.loss_name, "outputs": 1})
    x = np.zeros((4, 4), np.float32)
    shard = Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=1)
    assert find_final_loss(spec, shard) == pytest.approx(expected)

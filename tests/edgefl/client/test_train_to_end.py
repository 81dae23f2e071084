"""A model of one device that is short of training after all epochs is trained with larger steps."""

import math

import numpy as np
import pytest

from edgefl.client.personalization import train_single, train_to_end
from edgefl.errors import DivergedError
from edgefl.types import Shard
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
    return Shard(x, labels, x, labels, 3)


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


def train(rate, *, function=train_to_end, shard=None, largest_rate=math.inf):
    learner = Recorder(largest_rate)
    model = function(learner, make_start(), shard or make_shard(), 5, rate, lambda: np.random.default_rng(2))
    return model, learner.rates


def test_model_that_is_trained_stays():
    model, rates = train(0.5)
    assert model.loss < 0.1 * math.log(3) and rates == [0.5]


def test_model_that_is_short_of_training_takes_larger_steps():
    """The losses with the three rates are .51, .44 and .26. A tenth of the loss of guessing is .11."""
    short, _ = train(0.01, function=train_single)
    assert short.loss > 0.1 * math.log(3)
    model, rates = train(0.01)
    assert rates == [0.01, 0.03, 0.09]
    expected, _ = train(0.09, function=train_single)
    assert model.loss == expected.loss < 0.6 * short.loss
    assert all(np.array_equal(model.weights[name], expected.weights[name]) for name in model.weights)


def test_labels_that_no_rate_can_learn_keep_the_first_model():
    shard = make_shard(shuffled=True)
    model, rates = train(0.3, shard=shard)
    expected, _ = train(0.3, function=train_single, shard=shard)
    assert rates == [0.3, 0.9] and model.loss == expected.loss > 0.1 * math.log(3)


def test_larger_steps_that_diverge_keep_the_first_model():
    model, rates = train(0.01, largest_rate=0.02)
    expected, _ = train(0.01, function=train_single)
    assert rates == [0.01, 0.03] and model.loss == expected.loss
    with pytest.raises(DivergedError):
        train(0.03, largest_rate=0.02)

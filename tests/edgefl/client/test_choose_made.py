"""A model whose last training went wrong is not shipped."""

import logging

import numpy as np
import pytest

from edgefl.algorithms.names import FINE_TUNED, LOCAL, MIXED
from edgefl.client.personalization import choose_made
from edgefl.client.selection import PREFERENCE
from edgefl.client.validation import Split
from edgefl.types import Peer, Shard
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

X = np.eye(3, dtype=np.float32).repeat(4, axis=0)
Y = np.arange(3).repeat(4)
SPLIT = Split(Shard(X, Y, X[:0], Y[:0], 3), X, Y)
ORDER = (FINE_TUNED, LOCAL, MIXED)
HIGH = np.full(12, 990)


@pytest.fixture
def learner():
    return SoftmaxLearner(softmax_spec("fedavg", inputs=3, features=3, classes=3))


def model(scale):
    """Return a model that is right about every sample, the surer the larger the scale; 0 guesses."""
    head = scale * np.eye(3, dtype=np.float32)
    weights = {
        "trunk/kernel": np.eye(3, dtype=np.float32),
        "head/kernel": head,
        "head/bias": np.zeros(3, np.float32),
    }
    return Peer("predict", weights)


def test_the_next_model_is_shipped_where_the_first_lost_what_it_knew(learner, caplog):
    sure, lost = model(10.0), model(0.0)
    scores = {FINE_TUNED: HIGH, LOCAL: HIGH}
    with caplog.at_level(logging.WARNING):
        assert choose_made(learner, {FINE_TUNED: sure, LOCAL: sure}, scores, SPLIT, ORDER, "a") == FINE_TUNED
        assert not caplog.text
        assert choose_made(learner, {FINE_TUNED: lost, LOCAL: sure}, scores, SPLIT, ORDER, "a") == LOCAL
    assert "a: the model fine_tuned was better before its last training" in caplog.text


def test_the_last_model_left_is_shipped_whatever_it_knows(learner):
    lost = model(0.0)
    scores = {FINE_TUNED: HIGH, LOCAL: HIGH}
    assert choose_made(learner, {FINE_TUNED: lost, LOCAL: lost}, scores, SPLIT, ORDER, "a") == LOCAL


def test_without_scores_the_first_model_of_the_order_is_shipped(learner):
    models = {MIXED: model(0.0), LOCAL: model(0.0)}
    assert choose_made(learner, models, {}, SPLIT, ORDER, "a") == LOCAL
    assert choose_made(learner, models, {FINE_TUNED: HIGH}, SPLIT, PREFERENCE, "a") == LOCAL

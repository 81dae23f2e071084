"""A model whose last training failed is not shipped."""

import logging

import numpy as np
import pytest

from edgefl.algorithms.names import FINE_TUNED_MODEL, LOCAL_MODEL, MIXTURE_MODEL
from edgefl.client.personalization import choose_shipped_model
from edgefl.client.selection import PREFERRED_ORDER
from edgefl.client.validation import ValidationSplit
from edgefl.types import Peer, Shard
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

X = np.eye(3, dtype=np.float32).repeat(4, axis=0)
Y = np.arange(3).repeat(4)
SPLIT = ValidationSplit(Shard(X, Y, X[:0], Y[:0], 3), X, Y)
ORDER = (FINE_TUNED_MODEL, LOCAL_MODEL, MIXTURE_MODEL)
HIGH = np.full(12, 990)


@pytest.fixture
def learner():
    return SoftmaxLearner(softmax_spec("fedavg", inputs=3, features=3, classes=3))


def model(scale):
    """Return a model that is right about every sample.

    A larger scale gives higher probabilities. A scale of 0 guesses.
    """
    head = scale * np.eye(3, dtype=np.float32)
    weights = {
        "trunk/kernel": np.eye(3, dtype=np.float32),
        "head/kernel": head,
        "head/bias": np.zeros(3, np.float32),
    }
    return Peer("predict", weights)


def test_the_next_model_is_shipped_where_the_first_lost_what_it_knew(learner, caplog):
    sure, lost = model(10.0), model(0.0)
    scores = {FINE_TUNED_MODEL: HIGH, LOCAL_MODEL: HIGH}
    with caplog.at_level(logging.WARNING):
        assert (
            choose_shipped_model(
                learner, {FINE_TUNED_MODEL: sure, LOCAL_MODEL: sure}, scores, SPLIT, ORDER, "a"
            )
            == FINE_TUNED_MODEL
        )
        assert not caplog.text
        assert (
            choose_shipped_model(
                learner, {FINE_TUNED_MODEL: lost, LOCAL_MODEL: sure}, scores, SPLIT, ORDER, "a"
            )
            == LOCAL_MODEL
        )
    assert "a: the model fine_tuned was better before its last training" in caplog.text


def test_the_last_model_left_is_shipped_whatever_it_knows(learner):
    lost = model(0.0)
    scores = {FINE_TUNED_MODEL: HIGH, LOCAL_MODEL: HIGH}
    assert (
        choose_shipped_model(learner, {FINE_TUNED_MODEL: lost, LOCAL_MODEL: lost}, scores, SPLIT, ORDER, "a")
        == LOCAL_MODEL
    )


def test_without_scores_the_first_model_of_the_order_is_shipped(learner):
    models = {MIXTURE_MODEL: model(0.0), LOCAL_MODEL: model(0.0)}
    assert choose_shipped_model(learner, models, {}, SPLIT, ORDER, "a") == LOCAL_MODEL
    assert (
        choose_shipped_model(learner, models, {FINE_TUNED_MODEL: HIGH}, SPLIT, PREFERRED_ORDER, "a")
        == LOCAL_MODEL
    )

"""A model whose last training failed is not shipped."""

import logging

import numpy as np
import pytest

from edgefl.base.types import Peer, Shard
from edgefl.learning.algorithms.names import FINE_TUNED_MODEL, LOCAL_MODEL, MIXTURE_MODEL
from edgefl.learning.client.personalization import choose_shipped_model, drop_failed_models
from edgefl.learning.client.selection import PREFERRED_ORDER
from edgefl.learning.client.validation import ValidationSplit
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

X = np.eye(3, dtype=np.float32).repeat(4, axis=0)
Y = np.arange(3).repeat(4)
SPLIT = ValidationSplit(
    train=Shard(x_train=X, y_train=Y, x_test=X[:0], y_test=Y[:0], num_classes=3), x=X, y=Y
)
ORDER = (FINE_TUNED_MODEL, LOCAL_MODEL, MIXTURE_MODEL)
HIGH = np.full(12, 990)


@pytest.fixture
def learner():
    return SoftmaxLearner(softmax_spec("fedavg", inputs=3, features=3, classes=3))


def make_model(scale):
    """Return a model that classifies every sample correctly.

    A larger scale gives higher probabilities. With a scale of 0, all classes are equally probable.
    """
    head = scale * np.eye(3, dtype=np.float32)
    weights = {
        "trunk/kernel": np.eye(3, dtype=np.float32),
        "head/kernel": head,
        "head/bias": np.zeros(3, np.float32),
    }
    return Peer("predict", weights)


def test_next_model_is_shipped_if_training_degraded_the_first(learner, caplog):
    accurate, degraded = make_model(10.0), make_model(0.0)
    scores = {FINE_TUNED_MODEL: HIGH, LOCAL_MODEL: HIGH}
    with caplog.at_level(logging.WARNING):
        assert (
            choose_shipped_model(
                learner, {FINE_TUNED_MODEL: accurate, LOCAL_MODEL: accurate}, scores, SPLIT, ORDER, "a"
            )
            == FINE_TUNED_MODEL
        )
        assert not caplog.text
        assert (
            choose_shipped_model(
                learner, {FINE_TUNED_MODEL: degraded, LOCAL_MODEL: accurate}, scores, SPLIT, ORDER, "a"
            )
            == LOCAL_MODEL
        )
    assert "a: the model fine_tuned was better before its last training" in caplog.text


def test_best_model_is_shipped_even_if_training_degraded_all(learner):
    """The local model has a probability of .58 left, which is the highest. Its score before was .99."""
    models = {
        FINE_TUNED_MODEL: make_model(0.0),
        LOCAL_MODEL: make_model(1.0),
        MIXTURE_MODEL: make_model(0.5),
    }
    low = np.full(12, 500)
    for scores in (
        {FINE_TUNED_MODEL: HIGH, LOCAL_MODEL: HIGH, MIXTURE_MODEL: HIGH},
        {FINE_TUNED_MODEL: low, LOCAL_MODEL: HIGH, MIXTURE_MODEL: low},
    ):
        assert choose_shipped_model(learner, models, scores, SPLIT, ORDER, "a") == LOCAL_MODEL


def test_first_model_is_shipped_if_training_degraded_all_alike(learner):
    models = dict.fromkeys((LOCAL_MODEL, FINE_TUNED_MODEL), make_model(0.0))
    scores = dict.fromkeys(models, HIGH)
    assert choose_shipped_model(learner, models, scores, SPLIT, ORDER, "a") == FINE_TUNED_MODEL


def test_first_available_model_is_shipped_without_scores(learner):
    models = {MIXTURE_MODEL: make_model(0.0), LOCAL_MODEL: make_model(0.0)}
    assert choose_shipped_model(learner, models, {}, SPLIT, ORDER, "a") == LOCAL_MODEL
    assert (
        choose_shipped_model(learner, models, {FINE_TUNED_MODEL: HIGH}, SPLIT, PREFERRED_ORDER, "a")
        == LOCAL_MODEL
    )


def test_blend_leaves_out_a_model_that_training_degraded(learner, caplog):
    """Its probabilities fell from .99 to 1/3. A fall by a few thousandths is no failure."""
    models = {FINE_TUNED_MODEL: make_model(0.0), LOCAL_MODEL: make_model(4.8), MIXTURE_MODEL: make_model(0.0)}
    scores = {FINE_TUNED_MODEL: HIGH, LOCAL_MODEL: HIGH}
    with caplog.at_level(logging.WARNING):
        kept = drop_failed_models(learner, models, scores, SPLIT, "pi-1")
    assert list(kept) == [LOCAL_MODEL, MIXTURE_MODEL], "nothing shows how good the mixture was"
    assert "pi-1: left out of the blend" in caplog.text
    assert "fine_tuned (mean score 0.33, before 0.99)" in caplog.text and "local" not in caplog.text

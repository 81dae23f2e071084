"""The mean gate of the participants, by hand, and the predictions of a client without labels."""

import numpy as np
import pytest

from edgefl.learning.algorithms.mixtures import marginal_gate
from edgefl.learning.algorithms.mixtures.marginal_gate import (
    ParticipantGate,
    marginalize_gates,
    predict_without_labels,
)
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

HIDDEN = np.array([[[1.0]], [[2.0]]])
"""h_k(x) of two experts and one sample: h = 1 and 2."""
GATES = (
    # h_a = 1, so the logits are (ln 3, 0) and the gate is (3/4, 1/4)
    ParticipantGate(
        kernel=np.array([[np.log(3), 0]], np.float32),
        bias=np.zeros(2, np.float32),
        responsibility=np.array([1.0, 0.0]),
        num_samples=1.0,
    ),
    # h_b = 3/2, so the logits are (-ln 4, 0) and the gate is (1/5, 4/5)
    ParticipantGate(
        kernel=np.array([[-np.log(4), 0]], np.float32),
        bias=np.array([np.log(4) / 2, 0], np.float32),
        responsibility=np.array([0.5, 0.5]),
        num_samples=3.0,
    ),
)


def test_marginal_gate_by_hand():
    """p(z=0|x) = 1/4 * 3/4 + 3/4 * 1/5 = .3375."""
    np.testing.assert_allclose(marginalize_gates(HIDDEN, GATES), [[0.3375, 0.6625]], atol=1e-7)


def make_experts():
    """Return two experts with h = 1 and 2 for x = 1, and p(y=0) = 1/2 and 3/4."""
    learner = SoftmaxLearner(
        softmax_spec("fedmix", inputs=1, features=1, classes=2, options={"num_experts": 2})
    )
    models = {
        k: {
            "trunk/kernel": np.array([[h]], np.float32),
            "head/kernel": np.zeros((1, 2), np.float32),
            "head/bias": np.array([bias, 0], np.float32),
        }
        for k, (h, bias) in enumerate([(1.0, 0.0), (2.0, np.log(3))])
    }
    return learner, models


@pytest.mark.parametrize("chunk", [1, 2, 1024])
def test_predictions_without_labels_by_hand(monkeypatch, chunk):
    """p(y=0|x) = .3375 * 1/2 + .6625 * 3/4 = .665625."""
    monkeypatch.setattr(marginal_gate, "CHUNK_SAMPLES", chunk)
    learner, models = make_experts()
    classes, experts = predict_without_labels(learner, models, GATES, np.ones((3, 1), np.float32))
    np.testing.assert_allclose(classes, [[0.665625, 0.334375]] * 3, atol=1e-6)
    np.testing.assert_allclose(experts, [[0.3375, 0.6625]] * 3, atol=1e-6)


def test_only_the_shares_of_the_samples_count():
    doubled = [
        ParticipantGate(
            kernel=g.kernel, bias=g.bias, responsibility=g.responsibility, num_samples=2 * g.num_samples
        )
        for g in GATES
    ]
    hidden = np.random.default_rng(1).random((2, 5, 1))
    np.testing.assert_allclose(marginalize_gates(hidden, doubled), marginalize_gates(hidden, GATES))
    np.testing.assert_allclose(marginalize_gates(hidden, GATES).sum(axis=1), 1)

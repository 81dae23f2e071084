"""FedMix's gate, by hand: what it sees, and that of a client without labels."""

import numpy as np
from edgefl.algorithms.papers.fedmix.gate import hidden_of
from edgefl.algorithms.papers.fedmix.new_client import ClientGate, marginal_gate

from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def test_hidden_values_by_hand():
    """Oracle 11: q = [.75, .25], h = [1, 0, 2], [3, 4, 0] -> [1.5, 1, 1.5]."""
    learner = SoftmaxLearner(
        softmax_spec("fedmix", inputs=1, features=3, classes=3, options={"num_experts": 2})
    )
    head = {"head/kernel": np.zeros((3, 3), np.float32), "head/bias": np.zeros(3, np.float32)}
    models = {
        k: {"trunk/kernel": np.array([h], np.float32), **head} for k, h in enumerate(([1, 0, 2], [3, 4, 0]))
    }
    hidden = hidden_of(learner, models, np.array([0.75, 0.25]), np.ones((1, 1), np.float32))
    np.testing.assert_allclose(hidden, [[1.5, 1, 1.5]])


def test_the_gate_of_a_client_without_labels_by_hand():
    """Two clients of 1 and 3 samples, gates (1/2, 1/2) and (1/4, 3/4) whatever is seen: (.3125, .6875)."""
    none = np.zeros((1, 2), np.float32)
    q = np.array([0.5, 0.5])
    gates = [
        ClientGate(none, np.zeros(2, np.float32), q, 1),
        ClientGate(none, np.log([1, 3]).astype(np.float32), q, 3),
    ]
    np.testing.assert_allclose(
        marginal_gate(np.ones((2, 1, 1), np.float32), gates), [[0.3125, 0.6875]], atol=1e-6
    )

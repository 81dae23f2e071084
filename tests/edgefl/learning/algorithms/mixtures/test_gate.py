"""The input of the gate of FedMix, by hand."""

import numpy as np

from edgefl.learning.algorithms.mixtures.gate import mix_hidden_features
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def test_mixed_hidden_features_by_hand():
    """Oracle 11: q = [.75, .25], h = [1, 0, 2], [3, 4, 0] -> [1.5, 1, 1.5]."""
    learner = SoftmaxLearner(
        softmax_spec("fedmix", inputs=1, features=3, classes=3, options={"num_experts": 2})
    )
    head = {"head/kernel": np.zeros((3, 3), np.float32), "head/bias": np.zeros(3, np.float32)}
    models = {
        k: {"trunk/kernel": np.array([h], np.float32), **head} for k, h in enumerate(([1, 0, 2], [3, 4, 0]))
    }
    hidden = mix_hidden_features(learner, models, np.array([0.75, 0.25]), np.ones((1, 1), np.float32))
    np.testing.assert_allclose(hidden, [[1.5, 1, 1.5]])

"""PFL-FT: two steps of fine-tuning by hand."""

import numpy as np

from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from tests.support.numpy_learner.recording import RecordingLearner
from tests.support.numpy_learner.softmax import softmax_spec


def test_two_steps_by_hand(one_sample):
    """With rate 1 and momentum .5, the bias is .5, then .5 * .5 + .119203 more.

    The first gradient of the trunk is 0, so the trunk is 1 + .119203.
    """
    options = {
        "adapt_epochs": 2,
        "adapt_learning_rate": 1.0,
        "adapt_momentum": 0.5,
        "adapt_weight_decay": 0.0,
        "least_steps": 0,
    }
    mixture, _ = one_sample.personalize(
        one_sample.make_algorithm("pfl-ft", **options), ClientState(), {"global": one_sample.start}
    )
    np.testing.assert_allclose(mixture.weights["head/bias"], [0.869203, -0.869203], atol=1e-6)
    np.testing.assert_allclose(mixture.weights["trunk/kernel"], [[1.119203]], atol=1e-6)
    assert mixture.peers["federated"].weights is one_sample.start


def test_fine_tuning_has_its_own_rates_and_epochs(one_sample):
    options = {
        "adapt_epochs": 3,
        "adapt_learning_rate": 0.25,
        "adapt_momentum": 0.125,
        "adapt_weight_decay": 0.5,
        "least_steps": 0,
    }
    learner = RecordingLearner(softmax_spec("pfl-ft", inputs=1, features=1, classes=2, options=options))
    sent = Broadcast(round=2, phase=PHASE_PERSONALIZE, models={"global": one_sample.start})
    make_algorithm("pfl-ft", learner, options).personalize(
        sent, ClientState(), one_sample.shard, derive_rng(1, 1, "a")
    )
    (call,) = learner.calls
    hyper = {"learning_rate": 0.25, "momentum": 0.125, "weight_decay": 0.5}
    assert call.options == {"epochs": 3, "hyper": hyper}

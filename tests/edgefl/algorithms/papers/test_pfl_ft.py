"""PFL-FT: two steps of fine-tuning by hand."""

import numpy as np

from edgefl.types import ClientState


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

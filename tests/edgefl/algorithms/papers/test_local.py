"""Local training: no weights are sent, and the mixture equals the same number of epochs alone."""

import math

import numpy as np
import pytest

from edgefl.algorithms import PHASE_PERSONALIZE
from edgefl.rng import derive_rng
from edgefl.types import ClientState, ServerState


def train_and_get_bias(one_sample, rounds, **options):
    algorithm = one_sample.make_algorithm("local", **options)
    state = algorithm.init(one_sample.start, derive_rng(1, 0, "init"))
    for _ in range(rounds):
        sent = algorithm.broadcast(state, "a")
        update, _ = algorithm.local_update(
            sent, ClientState(), one_sample.shard, "a", derive_rng(1, state.round, "a")
        )
        assert not sent.models
        assert not update.deltas
        assert math.isnan(update.metrics["loss"])
        state = algorithm.aggregate(state, [update])
    last = algorithm.broadcast(ServerState(state.round, PHASE_PERSONALIZE, state.models), "a")
    return algorithm.personalize(last, ClientState(), one_sample.shard, derive_rng(1, state.round, "a"))[
        0
    ].weights["head/bias"]


def test_local_training_by_hand(one_sample):
    """After one round the bias is .5. After two, p = .880797 and the bias is .5 + .119203."""
    assert train_and_get_bias(one_sample, 0)[0] == 0.0
    assert train_and_get_bias(one_sample, 1)[0] == pytest.approx(0.5)
    assert train_and_get_bias(one_sample, 2)[0] == pytest.approx(0.619203, abs=1e-6)
    assert train_and_get_bias(one_sample, 5, max_epochs=2)[0] == pytest.approx(0.619203, abs=1e-6)


def test_round_trains_for_the_configured_epochs(one_sample):
    """Two rounds of three epochs are six epochs of training."""
    np.testing.assert_array_equal(
        train_and_get_bias(one_sample, 2, epochs=3), train_and_get_bias(one_sample, 6)
    )

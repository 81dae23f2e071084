"""Local training: no weights are sent, and the mixture equals the same number of epochs alone."""

import math

import numpy as np
import pytest

from edgefl.algorithms import PHASE_PERSONALIZE
from edgefl.rng import derive_rng
from edgefl.types import ClientState, ServerState


def ended(one, rounds, **options):
    algorithm = one.algorithm("local", **options)
    state = algorithm.init(one.start, derive_rng(1, 0, "init"))
    for _ in range(rounds):
        sent = algorithm.broadcast(state, "a")
        update, _ = algorithm.local_update(
            sent, ClientState(), one.shard, "a", derive_rng(1, state.round, "a")
        )
        assert not sent.models
        assert not update.deltas
        assert math.isnan(update.metrics["loss"])
        state = algorithm.aggregate(state, [update])
    last = algorithm.broadcast(ServerState(state.round, PHASE_PERSONALIZE, state.models), "a")
    return algorithm.personalize(last, ClientState(), one.shard, derive_rng(1, state.round, "a"))[0].weights[
        "head/bias"
    ]


def test_by_hand(one):
    """After one round the bias is .5. After two, p = .880797 and the bias is .5 + .119203."""
    assert ended(one, 0)[0] == 0.0
    assert ended(one, 1)[0] == pytest.approx(0.5)
    assert ended(one, 2)[0] == pytest.approx(0.619203, abs=1e-6)
    assert ended(one, 5, max_epochs=2)[0] == pytest.approx(0.619203, abs=1e-6)


def test_a_round_is_as_long_as_fedavgs(one):
    """Two rounds of three epochs are six epochs of training."""
    np.testing.assert_array_equal(ended(one, 2, epochs=3), ended(one, 6))

"""The gradient divergence of deltas that come one at a time is that of all at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.algorithms.diagnostics import Divergence, gradient_divergence


def test_two_clients_by_hand():
    """At right angles with equal weights: 2 * 1/4 * 1/2 = 1/4; weights 1 and 3: 2 * 3/16 * 1/2 = 3/16;
    opposite: twice that.
    """
    east, north, west = (np.array(v, np.float32) for v in ([1, 0], [0, 2], [-3, 0]))
    for second, weights, expected in (
        (north, (1, 1), 1 / 4),
        (north, (1, 3), 3 / 16),
        (west, (1, 3), 3 / 8),
        (east, (1, 3), 0),
    ):
        found = Divergence()
        for delta, weight in zip((east, second), weights, strict=True):
            found.add("global", {"w": delta}, weight)
        assert found.result()["global"] == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 6), st.integers(0, 2**31))
def test_it_is_the_sum_over_all_pairs(clients, seed):
    """Some deltas are zero in a tensor: such a one is like itself alone."""
    rng = np.random.default_rng(seed)
    deltas = [
        {
            "a": rng.normal(size=(3, 2)).astype(np.float32),
            "b": rng.normal(size=4).astype(np.float32) * rng.integers(2),
        }
        for _ in range(clients)
    ]
    shares = rng.uniform(0.1, 1, clients)
    found = Divergence()
    for delta, share in zip(deltas, shares, strict=True):
        found.add("expert0", delta, 50 * share)
    found.add("expert1", deltas[0], 0.0)
    assert found.result() == {"expert0": pytest.approx(gradient_divergence(deltas, shares), abs=1e-5)}

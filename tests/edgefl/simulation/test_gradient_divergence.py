"""The incremental gradient divergence equals the one that is computed from all deltas at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.simulation.gradient_divergence import GradientDivergence


def compute_over_all_pairs(deltas, shares):
    """Return equation 16 of all deltas at once."""
    weights = np.asarray(shares) / np.sum(shares)
    total = 0.0
    for name in deltas[0]:
        rows = np.stack([np.asarray(delta[name], np.float64).ravel() for delta in deltas])
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        directions = rows / np.where(lengths > 0, lengths, 1.0)
        cosines = directions @ directions.T
        np.fill_diagonal(cosines, 1.0)
        total += float(weights @ (0.5 * (1 - cosines)) @ weights)
    return total


def compute_incrementally(deltas, shares):
    incremental = GradientDivergence()
    for delta, share in zip(deltas, shares, strict=True):
        incremental.add("global", delta, share)
    return incremental.compute()["global"]


def test_divergence_of_two_clients_matches_hand_calculation():
    """Deltas at right angles give 2 * 1/4 * 1/2 = 1/4, and with weights 1 and 3 2 * 3/16 * 1/2 = 3/16.

    Opposite deltas give twice as much.
    """
    east, north, west = (np.array(v, np.float32) for v in ([1, 0], [0, 2], [-3, 0]))
    for second, weights, expected in (
        (north, (1, 1), 1 / 4),
        (north, (1, 3), 3 / 16),
        (west, (1, 3), 3 / 8),
        (east, (1, 3), 0),
    ):
        incremental = GradientDivergence()
        for delta, weight in zip((east, second), weights, strict=True):
            incremental.add("global", {"w": delta}, weight)
        assert incremental.compute()["global"] == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 6), st.integers(0, 2**31))
def test_incremental_divergence_equals_the_sum_over_all_pairs(clients, seed):
    """Some deltas have a zero tensor. It is similar only to itself."""
    rng = np.random.default_rng(seed)
    deltas = [
        {
            "a": rng.normal(size=(3, 2)).astype(np.float32),
            "b": rng.normal(size=4).astype(np.float32) * rng.integers(2),
        }
        for _ in range(clients)
    ]
    shares = rng.uniform(0.1, 1, clients)
    incremental = GradientDivergence()
    for delta, share in zip(deltas, shares, strict=True):
        incremental.add("expert0", delta, 50 * share)
    incremental.add("expert1", deltas[0], 0.0)
    assert incremental.compute() == {
        "expert0": pytest.approx(compute_over_all_pairs(deltas, shares), abs=1e-5)
    }


@pytest.mark.parametrize("divergence", [compute_over_all_pairs, compute_incrementally])
def test_both_implementations_match_hand_calculation(divergence):
    """Equation 16 for weights .25 and .75 gives 2 * .25 * .75 * .5 = .1875 for a tensor at right angles.

    Opposite tensors give .375.
    """
    x = np.array([2.0, 0.0], np.float32)
    y = np.array([0.0, 0.5], np.float32)
    assert divergence([{"w": x}, {"w": y}], [100, 300]) == pytest.approx(0.1875)
    assert divergence([{"w": x}, {"w": -x}], [0.25, 0.75]) == pytest.approx(0.375)
    assert divergence([{"w": x, "v": x}, {"w": y, "v": x}], [0.25, 0.75]) == pytest.approx(0.1875)


@pytest.mark.parametrize(
    ("divergence", "within"), [(compute_over_all_pairs, 1e-12), (compute_incrementally, 1e-6)]
)
def test_divergence_of_aligned_or_zero_gradients(divergence, within):
    one = {"w": np.array([[1.0, 2.0]], np.float32)}
    assert divergence([one, {"w": 3 * one["w"]}], [1, 1]) == pytest.approx(0, abs=within)
    assert divergence([one, {"w": 0 * one["w"]}], [1, 1]) == pytest.approx(0.25)
    assert divergence([one], [5]) == pytest.approx(0, abs=within)
    assert compute_over_all_pairs([one], [5]) == 0

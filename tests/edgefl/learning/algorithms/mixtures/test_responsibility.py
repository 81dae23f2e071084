"""Responsibilities of experts: examples worked by hand, then general properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.learning.algorithms.mixtures import responsibility as rs

OF_LABEL = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
LABELS = np.array([[0.5, 0.5, 0], [0, 0.25, 0.75]])


def compute_marginal_entropy(phi, shares):
    """Return H(sum_c p(c) q(.|c)) in nats."""
    marginal = rs.average_responsibilities(rs.normalize_logits(phi), shares)
    return -(marginal * np.log(marginal)).sum()


def test_responsibility_of_a_client_by_hand():
    """Oracle 8."""
    of_client = rs.average_responsibilities(OF_LABEL, LABELS)
    np.testing.assert_allclose(of_client, [[0.55, 0.45], [0.425, 0.575]])


def test_marginal_entropy_and_its_gradient_by_hand():
    """Oracle 9."""
    phi = np.log(OF_LABEL)
    shares = [0.25, 0.25, 0.5]
    assert compute_marginal_entropy(phi, shares) == pytest.approx(0.691897, abs=1e-6)
    gradient = rs.differentiate_marginal_entropy(phi, shares)
    np.testing.assert_allclose(gradient[:, 0], [-0.002252, -0.004003, -0.012510], atol=1e-6)
    np.testing.assert_allclose(gradient[:, 1], -gradient[:, 0])


def test_specialization_by_hand():
    """H(.5, .5) = log 2, H(.75, .25) = .562335 and H(1, 0) = 0.

    The result is 1 - (.693147 + .562335 + 0) / 3 / .693147 = .396241.
    """
    assert rs.measure_specialization([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]) == pytest.approx(
        0.396241, abs=1e-6
    )
    assert rs.measure_specialization([[1.0], [1.0]]) == 0.0


def test_pruning_by_hand():
    """Oracle 10: with K 4 and eta .4, the client keeps two experts and the server three."""
    q = [0.6, 0.25, 0.095, 0.055]
    np.testing.assert_allclose(
        rs.prune_experts(q, rs.filter_experts(q, 0.4 / 4)), [0.705882, 0.294118, 0, 0], atol=1e-6
    )
    assert rs.filter_experts(q, 0.9 * 0.4 / 4) == (0, 1, 2)


def test_pi_in_closed_form_by_hand():
    """Oracle 12."""
    pi = rs.from_joints(np.log([[0.5, 0.1], [0.4, 0.2], [0.8, 0.05]]))
    np.testing.assert_allclose(pi, [0.844451, 0.155549], atol=1e-6)
    np.testing.assert_allclose(rs.damp_responsibility([0.5, 0.5], pi, 0.75), [0.586113, 0.413887], atol=1e-6)


def test_label_shares_by_hand():
    np.testing.assert_allclose(rs.measure_shares(np.array([2, 0, 2, 2]), 4), [0.25, 0, 0.75, 0])


def test_likeliest_expert_stays_when_all_are_below_threshold():
    assert rs.filter_experts([0.2, 0.5, 0.3], 0.6) == (1,)
    np.testing.assert_allclose(rs.prune_experts([0.0, 0.0, 1.0], (0, 1)), [0.5, 0.5, 0])


def test_higher_beta_makes_pi_flatter():
    joints = np.log([[0.5, 0.1], [0.4, 0.2]])
    assert rs.from_joints(joints, beta=4.0)[0] < rs.from_joints(joints)[0]


logits = st.lists(st.lists(st.floats(-8, 8), min_size=3, max_size=3), min_size=2, max_size=5)


@given(phi=logits, seed=st.integers(0, 99))
def test_entropy_gradient_equals_numerical_derivative(phi, seed):
    phi = np.array(phi)
    shares = np.random.default_rng(seed).dirichlet(np.ones(len(phi)))
    step = np.random.default_rng(seed + 1).normal(size=phi.shape)
    ahead, back = (compute_marginal_entropy(phi + sign * 1e-5 * step, shares) for sign in (1, -1))
    assert (rs.differentiate_marginal_entropy(phi, shares) * step).sum() == pytest.approx(
        (ahead - back) / 2e-5, abs=1e-7
    )


@given(phi=logits, seed=st.integers(0, 99))
def test_all_responsibilities_are_distributions(phi, seed):
    of_condition = rs.normalize_logits(phi)
    of_client = rs.average_responsibilities(
        of_condition, np.random.default_rng(seed).dirichlet(np.ones(len(phi)), size=4)
    )
    np.testing.assert_allclose(of_condition.sum(axis=1), 1)
    np.testing.assert_allclose(of_client.sum(axis=1), 1)
    for q in of_client:
        pruned = rs.prune_experts(q, rs.filter_experts(q, 0.3))
        assert pruned.sum() == pytest.approx(1)
        assert (pruned[q < 0.3] == 0).all() or pruned.max() == 1

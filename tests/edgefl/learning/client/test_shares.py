"""The shares of a blend, the fitted bias and the fitted offset, against cases worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.learning.client.shares import compute_error_log_p, fit_output_bias, fit_output_offset, fit_shares


def test_two_steps_of_one_sample_worked_by_hand():
    """The responsibilities are .8 and then .6 * .8 / (.6 * .8 + .4 * .2) = 6/7. Each member has one
    pseudo-count, so the shares are (.8 + 1) / 3 = .6 and (6/7 + 1) / 3 = 13/21.
    """
    log_p = np.log([[0.8, 0.2]])
    np.testing.assert_allclose(fit_shares(log_p, steps=1), [0.6, 0.4])
    np.testing.assert_allclose(fit_shares(log_p, steps=2), [13 / 21, 8 / 21])


def test_windows_of_a_recording_count_as_one_sample():
    """One sample for the first member and one for the second: equal shares. As four samples, the first member
    would have three of them.
    """
    log_p = np.log([[0.9, 0.1]] * 3 + [[0.1, 0.9]])
    np.testing.assert_allclose(fit_shares(log_p, np.array([7, 7, 7, 2])), [0.5, 0.5])
    assert fit_shares(log_p)[0] > 0.6


def test_no_sample_gives_equal_shares():
    np.testing.assert_allclose(fit_shares(np.zeros((0, 3))), [1 / 3] * 3)


def test_a_sample_that_no_member_explains_moves_no_share():
    """The second sample takes part with the shares of the step before: (.8 + .5 + 1) / 4."""
    log_p = np.array([np.log([0.8, 0.2]), [-np.inf, -np.inf]])
    np.testing.assert_allclose(fit_shares(log_p, steps=1), [0.575, 0.425])


@given(st.lists(st.tuples(*[st.floats(-900, 0)] * 3), max_size=20), st.integers(1, 5))
def test_shares_are_a_distribution_in_which_each_member_has_a_part(rows, groups):
    log_p = np.array(rows, np.float64).reshape(-1, 3)
    shares = fit_shares(log_p, np.arange(len(log_p)) % groups)
    assert shares.sum() == pytest.approx(1)
    assert (shares > 0).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(0, 30))
def test_bias_is_the_maximum(seed, classes, count):
    """At the maximum, the number of samples of each class minus its expected number is the bias."""
    rng = np.random.default_rng(seed)
    logits, y = rng.normal(0, 5, (count, classes)), rng.integers(0, classes, count)
    bias = fit_output_bias(logits, y)
    p = np.exp(logits + bias)
    expected = (p / p.sum(axis=1, keepdims=True)).sum(axis=0)
    np.testing.assert_allclose(np.bincount(y, minlength=classes) - expected, bias, atol=1e-6)


def test_bias_of_one_class_that_a_client_has_alone():
    """Four samples of class 0 with equal logits: b = 4 (1 - sigmoid(2 b)), which b = .741 solves."""
    bias = fit_output_bias(np.zeros((4, 2)), np.zeros(4, np.int64))
    assert bias[0] == pytest.approx(4 / (1 + np.exp(2 * bias[0])))
    assert bias[0] == pytest.approx(0.741, abs=0.001)
    assert bias[1] == pytest.approx(-bias[0])


def test_balanced_classes_need_no_bias():
    np.testing.assert_allclose(fit_output_bias(np.zeros((6, 3)), np.arange(6) % 3), 0, atol=1e-12)


def test_densities_of_a_regression_worked_by_hand():
    """The variances of the errors are 1 and 2, so a density is exp(-e^2 / 2 v) / sqrt(2 pi v)."""
    log_p = compute_error_log_p(np.array([[[1.0], [2.0]], [[-1.0], [0.0]]]), "mse")
    expected = [
        [-0.5 - np.log(2 * np.pi) / 2, -1 - np.log(4 * np.pi) / 2],
        [-0.5 - np.log(2 * np.pi) / 2, -np.log(4 * np.pi) / 2],
    ]
    np.testing.assert_allclose(log_p, expected)


def test_densities_of_several_outputs_are_multiplied():
    """The second output has errors ten times as large, and variances of its own."""
    errors = np.array([[[1.0], [2.0]], [[-1.0], [0.0]]])
    both = compute_error_log_p(np.concatenate([errors, 10 * errors], axis=2), "mse")
    np.testing.assert_allclose(both, 2 * compute_error_log_p(errors, "mse") - np.log(10))


def test_windows_of_a_recording_count_as_one_error():
    """Three windows of a recording have errors of 1, the window of another one of 3: (1 + 9) / 2."""
    errors = np.array([1.0, 1.0, 1.0, 3.0]).reshape(4, 1, 1)
    log_p = compute_error_log_p(errors, "mse", np.array([4, 4, 4, 9]))
    np.testing.assert_allclose(log_p[3], -0.9 - np.log(2 * np.pi * 5) / 2)


@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_member_that_predicts_exactly_gets_the_samples(scale, loss):
    errors = scale * np.array([[[0.0], [1.0]]] * 7)
    np.testing.assert_allclose(fit_shares(compute_error_log_p(errors, loss)), [8 / 9, 1 / 9], rtol=1e-6)


@pytest.mark.parametrize("loss", ["mse", "mae"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_member_whose_prediction_is_no_number_gets_no_sample(value, loss):
    errors = np.array([[[0.5], [1.0]]] * 7)
    errors[3, 1, 0] = value
    np.testing.assert_allclose(fit_shares(compute_error_log_p(errors, loss)), [8 / 9, 1 / 9], rtol=1e-6)


def test_absolute_errors_have_a_laplace_distribution():
    """The mean absolute errors are 1 and 2, so a density is exp(-|e| / s) / 2 s."""
    log_p = compute_error_log_p(np.array([[[1.0], [4.0]], [[-1.0], [0.0]]]), "mae")
    np.testing.assert_allclose(log_p, [[-1 - np.log(2), -2 - np.log(4)], [-1 - np.log(2), -np.log(4)]])


@pytest.mark.parametrize(("loss", "expected"), [("mse", 0.068), ("mae", 0.822), ("huber", 0.822)])
def test_one_large_error_decides_only_where_the_loss_says_so(loss, expected):
    """The first member has errors of 1 in 19 samples and of 100 in one. The second one has errors of 5."""
    errors = np.array([[[1.0], [5.0]]] * 19 + [[[100.0], [5.0]]])
    assert fit_shares(compute_error_log_p(errors, loss))[0] == pytest.approx(expected, abs=0.001)


def test_offset_of_squared_errors_is_their_sum_divided_by_one_more():
    """(1 + 2 + 3) / (3 + 1)."""
    np.testing.assert_allclose(fit_output_offset(np.array([[1.0, 0], [2, 0], [3, 0]]), "mse"), [1.5, 0])
    np.testing.assert_allclose(fit_output_offset(np.zeros((0, 2)), "mse"), [0, 0])


@pytest.mark.parametrize("loss", ["mae", "huber"])
def test_offset_of_other_losses_is_the_median_of_the_errors_and_zero(loss):
    """Of 0, 1, 2, 3 and 1,000 the median is 2."""
    np.testing.assert_allclose(fit_output_offset(np.array([[1.0], [2], [3], [1000]]), loss), [2])
    np.testing.assert_allclose(fit_output_offset(np.zeros((0, 2)), loss), [0, 0])

"""When training has diverged: hand-worked cases, curves of real runs, and bounds for honest training."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig, PrivacyConfig
from edgefl.base.types import Shard
from edgefl.learning.algorithms import complete_algorithm_options
from edgefl.program.plan.spec import Plan
from edgefl.protocol.server.divergence import explain_no_progress, find_divergence
from edgefl.protocol.wire.divergence_message import (
    FederationDivergedError,
    explain_divergence,
)
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

# 10 classes: a model that guesses has ln 10 = 2.30, the limit is 5 x 2.30 = 11.5
FLAT = [73.8, 74.1, 73.5, 73.9]
RISING = [2.3, 2.9, 14.0, 40.0, 210.0]


@pytest.mark.parametrize("losses", [FLAT, RISING, [1.2, 0.8, 12.0, 12.0, 12.0], [None, 20.0, 21.0, 22.0]])
def test_persistently_high_loss_is_divergence(losses):
    result = find_divergence(losses, 10)
    assert result is not None
    assert (result.round, result.loss) == (len(losses), losses[-1])
    assert result.guess_loss == pytest.approx(2.302585)
    assert find_divergence(losses[:-1], 10) is None  # three rounds in a row are needed, without the first


@pytest.mark.parametrize(
    "losses",
    [
        [2.3, 1.9, 1.2],
        [73.8],
        [73.8, 74.1, 73.5],  # only two rounds after the first
        [2.3, 40.0, 40.0, 11.0, 40.0, 40.0],  # not in a row
        [2.3, 40.0, 40.0, None, 40.0, 40.0],
        [math.nan] * 9,  # an algorithm that trains nothing in a round, or masked updates
        [2.3, 3.0, 4.0, 6.0, 9.0, 11.5],  # up to five times guessing
        # measured: a linear model, learning_rate 100, accuracy 95%
        [125.147, 125.069, 60.026, 61.479, 33.426, 49.202, 31.395, 32.226],
        # measured: clustered with learning_rate 100, accuracy 97%
        [661.209, 300.5, 27.545, 196.269, 23.3, 26.255, 28.899, 20.518],
        # measured: FedMix on two classes per client, its loss has a term for the gate
        [3.304, 6.176, 3.709, 3.064, 2.915, 2.259, 1.583, 1.156],
    ],
)
def test_falling_recovering_or_moderate_loss_is_no_divergence(losses):
    for count in range(len(losses) + 1):
        assert find_divergence(losses[:count], 10) is None


def test_accuracy_well_above_chance_overrides_a_high_loss():
    # a quarter of the way from .1 to 1
    assert find_divergence(FLAT, 10, accuracy=0.33) is None
    assert find_divergence(FLAT, 10, accuracy=0.32) is not None
    assert find_divergence(FLAT, 10, accuracy=math.nan) is not None
    assert find_divergence(FLAT, 2, accuracy=0.6) is not None


@given(
    losses=st.lists(st.floats(0, 11.5), max_size=30),
    spikes=st.lists(st.tuples(st.integers(0, 29), st.floats(0, 1e30)), max_size=2),
)
def test_two_outlier_rounds_never_stop_a_federation(losses, spikes):
    for index, loss in spikes:
        if index < len(losses):
            losses[index] = loss
    assert find_divergence(losses, 10) is None


@given(first=st.floats(0.01, 1e6), falls=st.lists(st.floats(0.01, 0.899), min_size=1, max_size=30))
def test_loss_below_nine_tenths_of_first_loss_is_no_divergence(first, falls):
    assert find_divergence([first, *(first * fall for fall in falls)], 10) is None


@pytest.mark.parametrize("losses", [[2.3, 40.0], [12.0, 12.1], [2.3, 40.0, 12.0], [73.8, 74.1, 74.0]])
def test_short_federation_diverges_when_all_later_losses_are_higher(losses):
    result = find_divergence(losses, 10, rounds=len(losses))
    assert result is not None
    assert (result.round, result.loss, result.first_loss) == (len(losses), losses[-1], losses[0])
    assert find_divergence(losses, 10, accuracy=0.9, rounds=len(losses)) is None
    for more in (0, len(losses) + 1, 30):  # the federation continues, so the loss may still fall
        assert find_divergence(losses, 10, rounds=more) is None
    assert find_divergence(losses[:-1], 10, rounds=len(losses)) is None


def test_a_flat_loss_of_another_task_may_mean_convergence():
    # measured: an autoencoder without batch norm, which converges in round 1
    warning = explain_no_progress([0.001636, 0.001631, 0.001625, 0.001622], 0)
    assert warning is not None
    assert "guesses" not in warning
    assert "it was 0.001636 in round 1; the models may have converged in round 1" in warning
    rising = explain_no_progress([0.5, 0.6, 0.7, 0.8], 0)
    assert rising is not None
    assert "guesses" not in rising
    assert "in round 1; lower learning_rate" in rising
    divergence = find_divergence([0.5, 9.0, 9.0, 9.0], 0)
    assert divergence is not None
    assert "it was 0.5 in round 1; lower learning_rate" in explain_divergence(divergence)


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [73.8],
        [2.3, 11.5],  # up to five times guessing
        [73.8, 73.5],  # does not rise
        [73.8, 74.1, 73.5],
        [2.3, 40.0, 2.2],
        [2.3, math.nan],
        [3.304, 6.176, 3.709],  # measured: FedMix on two classes a client
        [125.147, 125.069, 60.026],  # measured: a linear model, learning_rate 100, accuracy 95%
    ],
)
def test_short_federation_with_moderate_losses_has_not_diverged(losses):
    assert find_divergence(losses, 10, rounds=len(losses)) is None


def test_long_federation_diverges_after_three_consecutive_high_losses():
    assert find_divergence([2.3, 2.2, 40.0, 41.0], 10, rounds=4) is None
    assert find_divergence([2.3, 40.0, 40.0, 41.0], 10, rounds=4) is not None


NO_EFFECT = [2.3026, 2.3026, 2.3026, 2.3026]


STUCK = [1.59, 2.302, 2.303, 2.303, 2.302, 2.303]
"""Each client learns in round 1, and the mean of the models does not."""


def test_raised_rate_with_five_rounds_at_guessing_counts_as_diverged():
    stuck = find_divergence(STUCK, 10, can_lower_rate=True)
    assert stuck is not None and (stuck.round, stuck.loss, stuck.first_loss) == (6, 2.303, 1.59)
    assert find_divergence(STUCK[:-1], 10, can_lower_rate=True) is None  # five rounds are needed
    assert find_divergence(STUCK, 10) is None
    assert find_divergence(STUCK, 10, 0.32, can_lower_rate=True) is not None
    assert find_divergence(STUCK, 10, 0.33, can_lower_rate=True) is None
    measured = [1.47, 1.49, 1.48, 1.48, 1.48, 1.48]  # CIFAR-10, momentum .9 and a rate of .03
    assert find_divergence(measured, 10, 0.26, can_lower_rate=True) is not None


def test_raised_rate_is_kept_if_one_of_five_rounds_is_better_than_round_1():
    two_classes_each = [0.69] * 6  # each device has learned its share of classes again in each round
    assert find_divergence(two_classes_each, 10, 0.1, can_lower_rate=True) is not None
    assert find_divergence([*two_classes_each[:-1], 0.684], 10, 0.1, can_lower_rate=True) is not None
    assert find_divergence([*two_classes_each[:-1], 0.683], 10, 0.1, can_lower_rate=True) is None
    assert find_divergence(two_classes_each, 10, can_lower_rate=True) is None  # no accuracy, below guessing
    assert find_divergence([math.nan, *STUCK], 10, 0.1, can_lower_rate=True) is None
    assert find_divergence([0.69] * 6, 0, 0.1, can_lower_rate=True) is None  # no classification


@pytest.mark.parametrize(
    ("losses", "remedy"),
    [
        (NO_EFFECT, "check labels and data, change learning_rate"),
        (NO_EFFECT[:2], "check labels and data, change learning_rate"),
        ([3.3, 2.32, 2.303, 2.303, 2.303], "check labels and data, change learning_rate"),
        ([None, 2.3026, math.nan, 2.3026], "check labels and data, change learning_rate"),
        ([2.3, 2.9, 3.4], "lower learning_rate"),
        ([2.1, 1.9, 2.5, 2.6, 2.8], "lower learning_rate"),  # what was learned is lost again
        ([73.8], "lower learning_rate"),
        ([73.8, 74.1, 73.5], "lower learning_rate"),
        ([73.8, 70.0], "lower learning_rate"),
    ],
)
def test_training_without_effect_has_a_warning_with_a_remedy(losses, remedy):
    warning = explain_no_progress(losses, 10)
    assert warning is not None
    assert "a model that guesses has 2.3; " + remedy in warning
    assert find_divergence(losses, 10, rounds=len(losses)) is None
    assert explain_no_progress(losses, 10, accuracy=0.33) is None
    assert explain_no_progress(losses, 10, accuracy=0.1) == warning


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [math.nan] * 4,  # masked updates
        [2.3026],  # one round shows no movement
        [2.3026, 2.27],
        [2.35, 2.33, 2.29],
        [2.3026] * 4 + [2.29, 2.27],
        [2.3026, 2.3026, 2.2, 2.25],  # below guessing
        [73.8, 60.0],  # it falls
        [2.3026, 2.3026, 2.3026, 2.2],  # it has begun to learn
        [3.3, 2.8, 2.4],  # it falls
        [2.3, 1.9, 1.2],
        [3.304, 6.176, 3.709, 3.064, 2.915, 2.259, 1.583, 1.156],  # measured: FedMix
        [125.147, 125.069, 60.026, 61.479, 33.426, 49.202, 31.395, 32.226],  # measured, accuracy 95%
    ],
)
def test_training_with_effect_has_no_warning(losses):
    assert explain_no_progress(losses, 10) is None


def simulate_noise(rounds, *, learning_rate=10.0, can_lower_rate=False, **settings):
    """Simulate two clients whose labels cannot be learnt; return the losses."""
    options = {**complete_algorithm_options("fedavg", {"learning_rate": learning_rate})}
    plan = Plan(
        spec=softmax_spec("fedavg", inputs=2, features=2, classes=3, options=options),
        program=b"",
        template=b"",
    )
    x = np.full((60, 2), 0.1, np.float32)
    shards = {
        f"pi-{i}": Shard(
            x_train=x,
            y_train=np.random.default_rng(i).integers(0, 3, 60),
            x_test=x,
            y_test=np.zeros(60, np.int64),
            num_classes=3,
        )
        for i in range(2)
    }
    zeros = {spec.name: np.zeros(spec.shape, np.float32) for spec in plan.spec.weights}
    losses = []
    config = FederationConfig(rounds=rounds, options=options, **settings)
    simulate(
        plan,
        {**zeros, "trunk/kernel": np.eye(2, dtype=np.float32)},
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(plan.spec),
        progress=lambda state, record: losses.append(record.loss),
        can_lower_rate=can_lower_rate,
    )
    return losses


def test_the_simulator_stops_a_federation_that_diverged():
    with pytest.raises(FederationDivergedError, match="the median loss is"):
        simulate_noise(30)
    with pytest.raises(FederationDivergedError, match="diverged in round 2: the median loss is"):
        simulate_noise(2)


def test_the_simulator_stops_training_without_effect_only_if_the_rate_can_be_lowered():
    assert len(simulate_noise(8, learning_rate=0.1)) == 8
    with pytest.raises(FederationDivergedError, match="no effect until round 6: the median"):
        simulate_noise(8, learning_rate=0.1, can_lower_rate=True)


def test_simulator_warns_once_about_a_model_that_learns_nothing(caplog):
    losses = simulate_noise(3, learning_rate=1e-9)
    assert losses == pytest.approx([math.log(3)] * 3, rel=1e-3)
    assert caplog.messages == [explain_no_progress(losses, 3)]


def test_loss_neither_stops_nor_warns_with_privacy(caplog):
    private = PrivacyConfig(clip=1000.0, noise_multiplier=1e-6, population=2, delta=0.1)
    losses = simulate_noise(8, privacy=private)
    assert explain_no_progress(losses, 3) is not None
    assert caplog.messages == []
    assert find_divergence(losses, 3) is not None  # without privacy the federation would have been stopped

"""APFL: a step of both models and a step of alpha by hand, and the range of alpha."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError
from edgefl.base.types import ClientState
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.papers.apfl import PersonalShare, interpolate_models


def with_share(personal, alpha):
    """Return the state of a client with a personal model and its share."""
    return ClientState(personal).with_record(PersonalShare(alpha))


def train_client(one_sample, state, **options):
    return one_sample.train(one_sample.make_algorithm("apfl", **options), state, one_sample.start)


def test_a_step_of_both_models_by_hand(one_sample):
    """With alpha .5 and v = w, the copy moves by .5 and v by alpha times that. Each loss is log 2."""
    update, state = train_client(one_sample, ClientState())
    np.testing.assert_allclose(update.deltas["global"]["head/bias"], [0.5, -0.5], atol=1e-6)
    np.testing.assert_allclose(state.arrays["head/bias"], [0.25, -0.25], atol=1e-6)
    assert state.read_record(PersonalShare).alpha == 0.5
    assert update.metrics["loss"] == pytest.approx(np.log(2), abs=1e-6)


@pytest.mark.parametrize(("rate", "expected"), [(0.1, 0.5537883), (1.0, 1.0), (0.0, 0.5)])
def test_step_of_alpha_by_hand(one_sample, rate, expected):
    """The bias of v is (1, -1) and the bias of w is 0, so the mixture's p is .731059.

    Then <v - w, gradient> = -.537883, and alpha 1.0379 is cut to 1.
    """
    personal = {**one_sample.start, "head/bias": np.array([1.0, -1.0], np.float32)}
    _, state = train_client(one_sample, with_share(personal, 0.5), alpha_learning_rate=rate)
    assert state.read_record(PersonalShare).alpha == pytest.approx(expected, abs=1e-6)


def test_alpha_is_constant_when_not_adaptive(one_sample):
    personal = {**one_sample.start, "head/bias": np.array([1.0, -1.0], np.float32)}
    _, state = train_client(one_sample, with_share(personal, 0.25), adaptive=False)
    assert state.read_record(PersonalShare).alpha == 0.25


def test_the_mixture_mixes_weights_but_not_statistics():
    model = {
        "w": np.array([0.0], np.float32),
        "bn/moving_mean": np.array([8.0], np.float32),
        "frozen": np.array([3.0], np.float32),
    }
    personal = {"w": np.array([4.0], np.float32), "bn/moving_mean": np.array([2.0], np.float32)}
    mixed = interpolate_models(model, personal, 0.25)
    assert {name: float(array[0]) for name, array in mixed.items()} == {
        "w": 1.0,
        "bn/moving_mean": 2.0,
        "frozen": 3.0,
    }


def test_personalization_trains_once_more_and_interpolates(one_sample):
    """v and w are as after one step, so the result is .5 * .25 + .5 * .5."""
    mixture, state = one_sample.personalize(
        one_sample.make_algorithm("apfl"), ClientState(), {"global": one_sample.start}
    )
    np.testing.assert_allclose(mixture.weights["head/bias"], [0.375, -0.375], atol=1e-6)
    np.testing.assert_array_equal(mixture.peers["federated"].weights["head/bias"], [0, 0])
    assert mixture.diagnostics == {"alpha": 0.5}
    assert state.read_record(PersonalShare).alpha == 0.5


@settings(max_examples=25, deadline=None)
@given(bias=st.floats(-50, 50, width=32), alpha=st.floats(0, 1), rate=st.floats(0, 10))
def test_alpha_stays_between_zero_and_one(one_sample, bias, alpha, rate):
    personal = {**one_sample.start, "head/bias": np.array([bias, -bias], np.float32)}
    _, state = train_client(one_sample, with_share(personal, alpha), alpha_learning_rate=rate)
    assert 0 <= state.read_record(PersonalShare).alpha <= 1


def test_personal_model_and_alpha_stay_on_the_device(one_sample):
    """Another v or alpha changes nothing in the update, except for the loss, a mean of both models."""
    updates = []
    for value, alpha in ((0.0, 0.5), (3.0, 0.25)):
        personal = {**one_sample.start, "head/bias": np.array([value, -value], np.float32)}
        update, _ = train_client(one_sample, with_share(personal, alpha))
        assert set(update.deltas) == {"global"} and set(update.deltas["global"]) == set(one_sample.start)
        assert update.metrics.keys() == {"loss"}
        updates.append(update)
    for name, delta in updates[0].deltas["global"].items():
        np.testing.assert_array_equal(delta, updates[1].deltas["global"][name])


def test_an_alpha_above_one_is_an_error():
    with pytest.raises(ConfigError, match="from 0 to 1"):
        make_algorithm("apfl", None, {"alpha": 1.5})

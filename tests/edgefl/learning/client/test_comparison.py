"""The client's part of the comparison of models: its scores, the order of all clients, and its choice."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms.names import FEDERATED_MODEL, FINE_TUNED_MODEL, LOCAL_MODEL, MIXTURE_MODEL
from edgefl.learning.algorithms.papers.apfl import PersonalShare
from edgefl.learning.client.comparison import (
    average_scores,
    read_blend_shares,
    read_model_order,
    split_scores,
    with_scores,
)
from edgefl.learning.client.selection import PREFERRED_ORDER, choose_within_noise
from edgefl.learning.client.validation import ValidationSplit

X, Y = np.array([[1.0], [2.0]], np.float32), np.array([0, 1])
SAMPLES = ValidationSplit(train=Shard(x_train=X, y_train=Y, x_test=X, y_test=Y, num_classes=2), x=X, y=Y)
BEFORE = ClientState({"head/kernel": np.ones((2, 2), np.float32)}).with_record(PersonalShare(alpha=0.5))


@given(
    st.dictionaries(st.sampled_from(PREFERRED_ORDER), st.lists(st.integers(0, 1000), min_size=1, max_size=9))
)
def test_scores_do_not_change_the_algorithms_state(by_name):
    scores = {name: np.array(values, np.int64) for name, values in by_name.items()}
    state, restored = split_scores(with_scores(BEFORE, scores, SAMPLES), SAMPLES)
    assert state.arrays.keys() == BEFORE.arrays.keys() and state.records == BEFORE.records
    assert restored.keys() == scores.keys()
    for name, values in scores.items():
        assert restored[name].dtype == np.int64
        np.testing.assert_array_equal(restored[name], values)


@pytest.mark.parametrize(
    "changed",
    [
        {"x": np.array([[1.0], [2.0], [3.0]], np.float32), "y": np.array([0, 1, 1])},
        {"x": np.array([[1.0], [2.5]], np.float32)},
        {"y": np.array([1, 1])},
        {"group": np.array([4, 5])},
    ],
)
def test_scores_of_other_samples_are_dropped(changed):
    """A device can restart with further recordings between the last round and the personalization."""
    state = with_scores(BEFORE, {LOCAL_MODEL: np.array([900, 800])}, SAMPLES)
    restored, scores = split_scores(state, replace(SAMPLES, **changed))
    assert scores == {}
    assert restored.arrays.keys() == BEFORE.arrays.keys()


def test_average_scores_gives_one_number_per_model():
    scores = {LOCAL_MODEL: np.array([1000, 500, 0]), MIXTURE_MODEL: np.array([1000, 1000, 250])}
    assert average_scores(scores) == {LOCAL_MODEL: 0.5, MIXTURE_MODEL: 0.75}


def test_model_order_follows_the_ranks_in_the_broadcast():
    assert read_model_order({}) == PREFERRED_ORDER
    ranks = {"rank_mixture": 0.0, "rank_fine_tuned": 1.0, "rank_local": 2.0, "rank_federated": 3.0}
    assert read_model_order(ranks) == (MIXTURE_MODEL, FINE_TUNED_MODEL, LOCAL_MODEL, FEDERATED_MODEL)
    assert read_model_order({"rank_mixture": 0.0}) == (
        MIXTURE_MODEL,
        LOCAL_MODEL,
        FINE_TUNED_MODEL,
        FEDERATED_MODEL,
    )


def test_shares_of_a_broadcast_are_from_0_to_1():
    scalars = {
        "blend_local": 1e308,
        "blend_federated": 0.25,
        "blend_mixture": float("nan"),
        "blend_other": 1.0,
    }
    assert read_blend_shares({**scalars, "blend_fine_tuned": -1.0}) == {"local": 1.0, "federated": 0.25}
    assert read_blend_shares({"rank_local": 0.0}) == {}


def test_client_deviates_from_the_order_beyond_the_noise():
    order = read_model_order({"rank_mixture": 0.0, "rank_local": 1.0})
    close = {LOCAL_MODEL: np.array([900, 700, 700]), MIXTURE_MODEL: np.array([700, 800, 800])}
    assert choose_within_noise(close, order) == MIXTURE_MODEL
    # the differences are 300, 200 and 200: (700)^2 is more than 170,000
    clear = {LOCAL_MODEL: np.array([900, 900, 900]), MIXTURE_MODEL: np.array([600, 700, 700])}
    assert choose_within_noise(clear, order) == LOCAL_MODEL

"""The client's part of the comparison of models: its scores, the order of all clients, and what it ships."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgefl.algorithms.names import FEDERATED, FINE_TUNED, LOCAL, MIXED
from edgefl.client.comparison import mean_scores, shared_order, split_scores, with_scores
from edgefl.client.selection import PREFERENCE, choose
from edgefl.types import ClientState

BEFORE = ClientState({"head/kernel": np.ones((2, 2), np.float32)}, {"alpha": 0.5})


@given(st.dictionaries(st.sampled_from(PREFERENCE), st.lists(st.integers(0, 1000), min_size=1, max_size=9)))
def test_scores_are_kept_beside_the_algorithms_state(found):
    scores = {name: np.array(each, np.int64) for name, each in found.items()}
    state, kept = split_scores(with_scores(BEFORE, scores))
    assert state.arrays.keys() == BEFORE.arrays.keys() and state.scalars == BEFORE.scalars
    assert kept.keys() == scores.keys()
    for name, each in scores.items():
        assert kept[name].dtype == np.int64
        np.testing.assert_array_equal(kept[name], each)


def test_an_update_reports_one_number_for_each_model():
    scores = {LOCAL: np.array([1000, 500, 0]), MIXED: np.array([1000, 1000, 250])}
    assert mean_scores(scores) == {LOCAL: 0.5, MIXED: 0.75}


def test_the_order_follows_the_ranks_of_the_last_broadcast():
    assert shared_order({}) == PREFERENCE
    ranks = {"rank_mixture": 0.0, "rank_fine_tuned": 1.0, "rank_local": 2.0, "rank_federated": 3.0}
    assert shared_order(ranks) == (MIXED, FINE_TUNED, LOCAL, FEDERATED)
    assert shared_order({"rank_mixture": 0.0}) == (MIXED, LOCAL, FINE_TUNED, FEDERATED)


def test_a_client_leaves_the_order_where_its_own_samples_show_more_than_noise():
    order = shared_order({"rank_mixture": 0.0, "rank_local": 1.0})
    close = {LOCAL: np.array([900, 700, 700]), MIXED: np.array([700, 800, 800])}
    assert choose(close, order) == MIXED
    # the differences are 300, 200 and 200: (700)^2 is more than 170,000
    clear = {LOCAL: np.array([900, 900, 900]), MIXED: np.array([600, 700, 700])}
    assert choose(clear, order) == LOCAL

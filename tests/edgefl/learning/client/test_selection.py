import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.learning.client.selection import PREFERRED_ORDER, choose_within_noise, is_worse

ONES = np.ones(16, np.int64)


def mark_wrong(*rows: int) -> np.ndarray:
    flags = ONES.copy()
    flags[list(rows)] = 0
    return flags


def test_the_preferred_model_wins_within_one_standard_error():
    """One sample: the best is ahead by 1, and the standard error is sqrt(1)."""
    first, second = PREFERRED_ORDER[:2]
    assert choose_within_noise({first: mark_wrong(3), second: ONES}) == first


def test_the_better_model_wins_beyond_one_standard_error():
    """Two samples: the best is ahead by 2, and the standard error is sqrt(2)."""
    first, second = PREFERRED_ORDER[:2]
    assert choose_within_noise({first: mark_wrong(3, 4), second: ONES}) == second


def test_mistakes_on_different_samples_are_noise():
    """Six mistakes against four others: the best is ahead by 2, and the standard error is sqrt(10)."""
    first, second = PREFERRED_ORDER[:2]
    simple = mark_wrong(0, 1, 2, 3, 4, 5)
    better = mark_wrong(6, 7, 8, 9)
    assert choose_within_noise({first: simple, second: better}) == first


@pytest.mark.parametrize(("ahead", "chosen"), [(0, 0), (600, 1)])
def test_score_differences_are_weighed_by_their_size(ahead, chosen):
    """Ahead by 500 and 300, behind by 400: 400 in total, with a standard error of 707.

    With 600 more on a fourth sample it is 1,000, with a standard error of 927.
    """
    first, second = PREFERRED_ORDER[:2]
    simple = np.array([100, 200, 900, 0])
    better = simple + np.array([500, 300, -400, ahead])
    assert choose_within_noise({first: simple, second: better}) == PREFERRED_ORDER[chosen]


def test_first_model_within_the_noise_of_the_best_wins():
    one, two, three, four = PREFERRED_ORDER
    scores = {four: ONES, three: mark_wrong(1), two: mark_wrong(1), one: mark_wrong(*range(8))}
    assert choose_within_noise(scores) == two


def test_models_outside_the_order_are_not_chosen():
    assert (
        choose_within_noise({"ensemble": ONES, PREFERRED_ORDER[3]: mark_wrong(0, 1, 2)}) == PREFERRED_ORDER[3]
    )
    with pytest.raises(ValueError, match="no model of"):
        choose_within_noise({"ensemble": ONES})


SCORES = st.lists(st.integers(0, 1000), min_size=5, max_size=5)


@given(st.lists(SCORES, min_size=1, max_size=4))
def test_the_choice_is_never_worse_than_the_best_beyond_the_noise(rows):
    scores = dict(zip(PREFERRED_ORDER, (np.array(row) for row in rows), strict=False))
    chosen = scores[choose_within_noise(scores)]
    best = max(scores.values(), key=lambda model_scores: model_scores.sum())
    ahead = int(best.sum()) - int(chosen.sum())
    assert ahead**2 <= ((best - chosen) ** 2).sum()


def test_without_validation_samples_the_preferred_model_wins():
    empty = np.zeros(0, np.int64)
    assert choose_within_noise(dict.fromkeys(PREFERRED_ORDER, empty)) == PREFERRED_ORDER[0]


def test_windows_of_a_recording_count_as_one_sample():
    """Differences of 100 in four windows: 400^2 is above 4 * 100^2, but a single recording shows nothing."""
    first, second = PREFERRED_ORDER[:2]
    scores = {first: np.full(4, 800), second: np.full(4, 900)}
    assert choose_within_noise(scores) == second
    assert choose_within_noise(scores, group=np.array([7, 7, 7, 7])) == first
    assert choose_within_noise(scores, group=np.array([7, 9, 9, 9])) == second  # both recordings say the same
    assert choose_within_noise(scores, group=np.array([1, 2, 3, 4])) == second


def test_a_single_recording_decides_only_by_a_large_difference():
    """A mean of .7 is not above its standard deviation of at most sqrt(1 - .49) = .714, but .71 is (.704)."""
    first, second = PREFERRED_ORDER[:2]
    recording = np.array([3, 3])
    for better, chosen in [([700, 700], first), ([710, 710], second), ([990, 990], second)]:
        scores = {first: np.zeros(2, np.int64), second: np.array(better)}
        assert choose_within_noise(scores, group=recording) == chosen
    assert is_worse(np.array([0, 0]), np.array([990, 990]), recording)
    assert not is_worse(np.array([300, 300]), np.array([990, 990]), recording)


def test_recordings_that_disagree_are_noise():
    """The sums over the recordings are 300 and -200: 100^2 is at most 300^2 + 200^2."""
    first, second = PREFERRED_ORDER[:2]
    scores = {first: np.array([800, 800, 800, 900, 900]), second: np.array([900, 900, 900, 800, 800])}
    assert choose_within_noise(scores, group=np.array([0, 0, 0, 1, 1])) == first


def test_is_worse_needs_a_difference_beyond_the_noise():
    before = np.array([900, 800, 900])
    assert not is_worse(before, before)
    assert is_worse(np.array([500, 400, 500]), before)
    assert not is_worse(before, np.array([500, 400, 500]))
    assert not is_worse(np.array([500, 900, 900]), before)  # 300^2 is at most 400^2 + 100^2
    assert not is_worse(np.array([500, 400, 500]), np.array([900, 900, 400]), np.array([0, 0, 1]))

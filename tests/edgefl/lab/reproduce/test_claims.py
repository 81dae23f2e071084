"""Verdicts on the papers' claims: intervals over seeds, and what decides them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.lab.reproduce.claims import (
    NO_RUN,
    NOT_REPRODUCED,
    REPRODUCED,
    UNDECIDED,
    describe_claim,
    estimate_interval,
    judge_claim,
)
from edgefl.lab.reproduce.experiment import PaperClaim

GAIN = PaperClaim(text="A is above B", row="A", than="B", at_least=0.0, paper="+12")


def make_rows(differences):
    """Return one seed per difference A - B. B differs much between seeds, so that only pairs show it."""
    return [{"A": 20.0 * i + difference, "B": 20.0 * i} for i, difference in enumerate(differences)]


@pytest.mark.parametrize(
    ("differences", "outcome"),
    [
        ([1, 2, 3, 2, 1], REPRODUCED),
        ([-1, -2, -3, -2, -1], NOT_REPRODUCED),
        ([5, -4, 6, -5, 1], UNDECIDED),
        ([1, 2, 3, 2], UNDECIDED),
        ([], NO_RUN),
    ],
)
def test_outcome_needs_five_seeds_whose_interval_is_on_one_side(differences, outcome):
    verdict = judge_claim(GAIN, make_rows(differences))
    assert verdict.outcome == outcome
    assert (verdict.line, verdict.paper) == ("A is above B", "+12")


def test_measured_text_has_the_mean_and_the_interval_or_the_number_of_seeds():
    assert judge_claim(GAIN, make_rows([2, 2, 2, 2, 2])).measured == "+2.00 (+2.00 to +2.00)"
    assert judge_claim(GAIN, make_rows([2, 4])).measured == "+3.00 (2 seeds, 5 needed)"
    assert judge_claim(GAIN, make_rows([2])).measured == "+2.00 (1 seed, 5 needed)"
    assert judge_claim(GAIN, []).measured == ""
    alone = PaperClaim(text="A is 1", row="A", at_least=1.0)
    assert judge_claim(alone, [{"A": 1.0}] * 5).measured == "1.00 (1.00 to 1.00)"
    assert judge_claim(alone, [{"A": 1.0}] * 5).outcome == REPRODUCED
    assert judge_claim(alone, [{"A": 0.5}] * 5).outcome == NOT_REPRODUCED
    assert judge_claim(alone, [{"A": 1.0}] * 4 + [{"A": 0.5}]).outcome == UNDECIDED


def test_claim_that_was_added_later_says_so():
    claim = PaperClaim(text="more", row="A", at_least=2, added_later=True)
    assert describe_claim(claim) == "more (at least 2, added later)"
    assert describe_claim(replace(claim, at_least=0)) == "more (added later)"
    assert judge_claim(claim, []).line == "more (at least 2, added later)"


def test_equal_rows_decide_nothing():
    assert judge_claim(GAIN, make_rows([0, 0, 0, 0, 0])).outcome == UNDECIDED
    assert judge_claim(GAIN, make_rows([1, 1, 1, 1, 1])).outcome == REPRODUCED
    assert judge_claim(GAIN, make_rows([-1, -1, -1, -1, -1])).outcome == NOT_REPRODUCED


def test_seed_without_a_finite_figure_leaves_a_claim_undecided():
    rows = [*make_rows([1, 2, 3, 2, 1]), {"A": None, "B": 1.0}]
    verdict = judge_claim(GAIN, rows)
    assert (verdict.outcome, verdict.measured) == (UNDECIDED, "1 of 6 seeds without a finite figure")


def test_line_of_a_claim_has_its_limits():
    assert judge_claim(GAIN, []).line == "A is above B"
    far = PaperClaim(text="A is far below B", row="A", than="B", at_most=-4.0)
    assert judge_claim(far, []).line == "A is far below B (at most -4)"
    like = PaperClaim(text="alike", row="A", than="B", at_least=-0.5, at_most=0.5)
    assert judge_claim(like, []).line == "alike (at least -0.5, at most 0.5)"


def test_two_limits_ask_for_equality():
    same = PaperClaim(text="A and B are alike", row="A", than="B", at_least=-3.0, at_most=3.0)
    assert judge_claim(same, make_rows([1, -1, 2, -2, 0])).outcome == REPRODUCED
    assert judge_claim(same, make_rows([8, 9, 7, 8, 9])).outcome == NOT_REPRODUCED
    assert judge_claim(same, make_rows([2, 3, 4, 3, 3])).outcome == UNDECIDED


def test_seeds_without_the_rows_are_left_out():
    rows = [*make_rows([2, 2, 2, 2, 2]), {"A": 1.0}, {"B": 100.0}, {}]
    assert judge_claim(GAIN, rows).outcome == REPRODUCED
    assert judge_claim(GAIN, [{"A": 1.0}] * 9).outcome == NO_RUN


def test_interval_has_the_quantile_of_students_t():
    """The quantile .975 is 12.706 with one degree of freedom, and 2.776 with four."""
    assert estimate_interval([0.0, 1.0]) == pytest.approx((0.5 - 12.706 * 0.5, 0.5 + 12.706 * 0.5), abs=1e-3)
    half = 2.776 * (2.5 / 5) ** 0.5
    assert estimate_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3 - half, 3 + half), abs=1e-3)


@given(st.lists(st.floats(-100, 100), min_size=5, max_size=12), st.floats(-50, 50))
def test_interval_is_symmetric_about_the_mean_and_moves_with_the_values(values, shift):
    low, high = estimate_interval(values)
    assert low <= high
    assert (low + high) / 2 == pytest.approx(np.mean(values), abs=1e-6)
    shifted = estimate_interval([value + shift for value in values])
    assert shifted == pytest.approx((low + shift, high + shift), abs=1e-6)

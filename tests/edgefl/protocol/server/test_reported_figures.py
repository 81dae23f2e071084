"""The ranges of the figures that clients report."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.protocol.server.reported_figures import MAX_LOSS, limit_figures


def limit(**metrics):
    return limit_figures(metrics, 100)


def test_figures_of_honest_clients_do_not_change():
    metrics = {
        "loss": 2.3,
        "validation_loss": 0.1,
        "accuracy": 0.5,
        "accuracy_shipped_int8": 1.0,
        "r2": 0.0,
        "score_local": 0.25,
        "expert": 3.0,
        "q/0": 0.5,
        "blend_local": 0.25,
        "shipped": 4.0,
        "test_gained": 3.0,
        "test_lost": 1.0,
        "n_test": 4.0,
        "n_train": 100.0,
        "seconds": 1.5,
        "bytes_up": 1e9,
        "distance": 0.01,
    }
    assert limit_figures(metrics, 100) == metrics


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", -24999930.0),
        ("accuracy", 1.0001),
        ("r2", -5.0),
        ("auc_shipped", 2.0),
        ("score_mixture", 1e300),
        ("blend_local", 1.5),
        ("share_local", -0.5),
        ("shipped", 5.0),
        ("test_lost", 2.0**53),
        ("test_gained", -1.0),
        ("n_test", 3.5),
        ("seconds", 1e300),
        ("accuracy", math.inf),
        ("loss", math.inf),
        ("loss", -math.inf),
        *((name, math.nan) for name in ("loss", "accuracy", "n_test", "test_gained", "shipped", "seconds")),
        ("n_test", math.inf),
    ],
)
def test_figure_out_of_its_range_is_no_number(name, value):
    figures = limit(**{name: value, "other": 1.0})
    assert math.isnan(figures[name]) and figures["other"] == 1.0


def test_finite_loss_is_limited():
    assert limit(loss=1e300, validation_loss=-1e300) == {"loss": MAX_LOSS, "validation_loss": -MAX_LOSS}


def test_more_differing_samples_than_test_samples_are_no_numbers():
    figures = limit(test_gained=3.0, test_lost=2.0, n_test=4.0)
    assert math.isnan(figures["test_gained"]) and math.isnan(figures["test_lost"]) and figures["n_test"] == 4
    assert math.isnan(limit(test_gained=0.0, n_test=-1.0)["test_gained"])


def test_unusual_names_are_left_out():
    assert limit_figures({"": 1.0, "\u202e": 1.0, "a b": 1.0, "x" * 81: 1.0, "9": 1.0, "a\n": 1.0}, 9) == {}


NAMES = st.one_of(st.text(max_size=9), st.sampled_from(["loss", "n_test", "test_gained", "shipped", "r2"]))


@given(st.dictionaries(NAMES, st.floats(width=64)), st.integers(0, 2**31))
def test_any_figures_are_numbers_of_limited_size(metrics, max_count):
    for value in limit_figures(metrics, max_count).values():
        assert math.isnan(value) or abs(value) <= 1e15 < sys.float_info.max

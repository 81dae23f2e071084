"""Watchers read the values that were measured before round 1 from the settings of a state."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.program.plan.measured_values import (
    MAX_CHANNELS,
    describe_measured_values,
    encode_measured_values,
    list_measured_values,
)
from tests.support.numpy_learner.softmax import softmax_spec

SPEC = softmax_spec("fedavg", inputs=4, features=4, classes=3, options={"learning_rate": 0.03})
NORMALIZED = replace(SPEC, model_options={"mean": [0.5, -2.0], "std": [1.0, 0.25]})


@pytest.mark.parametrize(
    ("spec", "range_test", "values", "text"),
    [
        (SPEC, False, {}, ""),
        (SPEC, True, {"learning_rate": 0.03}, "learning_rate 0.03"),
        (
            NORMALIZED,
            True,
            {"normalization": {"mean": [0.5, -2.0], "std": [1.0, 0.25]}, "learning_rate": 0.03},
            "learning_rate 0.03, mean 0.5 -2, std 1 0.25",
        ),
        (replace(SPEC, options={}), True, {}, ""),
    ],
)
def test_values_of_a_plan(spec, range_test, values, text):
    assert list_measured_values(spec, range_test) == values
    assert describe_measured_values(encode_measured_values(spec, range_test)) == text


def test_only_the_first_channels_are_published():
    spec = replace(SPEC, model_options={"mean": [1.0] * 40, "std": [1.0] * 40})
    assert len(encode_measured_values(spec, False)) == 2 * MAX_CHANNELS


@given(st.dictionaries(st.sampled_from(["learning_rate", "mean_0", "std_3", "mean_99"]), st.floats()))
def test_any_numbers_of_the_network_are_text(settings):
    assert "nan" not in describe_measured_values(settings)

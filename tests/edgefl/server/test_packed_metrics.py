"""Metrics in little memory are the same metrics."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.server.packed_metrics import PackedMetrics


@given(st.dictionaries(st.text(max_size=20), st.floats(), max_size=12))
def test_they_hold_what_they_were_made_of_to_the_bit_and_in_order(metrics):
    figures = PackedMetrics(metrics)
    assert [(name, value.hex()) for name, value in figures.items()] == [
        (name, value.hex()) for name, value in metrics.items()
    ]
    assert len(figures) == len(metrics) and {**figures}.keys() == metrics.keys()
    if not any(math.isnan(value) for value in metrics.values()):
        assert figures == metrics and metrics == figures and json.dumps({**figures}) == json.dumps(metrics)


def test_a_name_that_is_not_there_is_missing_as_in_a_dict():
    figures = PackedMetrics({"loss": 0.5})
    assert figures.get("accuracy") is None and "accuracy" not in figures
    with pytest.raises(KeyError, match="accuracy"):
        figures["accuracy"]

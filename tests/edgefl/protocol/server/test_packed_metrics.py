"""Packed metrics use little memory and equal the plain metrics."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.protocol.server.packed_metrics import PackedMetrics


@given(st.dictionaries(st.text(max_size=20), st.floats(), max_size=12))
def test_packed_metrics_preserve_values_and_order_exactly(metrics):
    figures = PackedMetrics(metrics)
    assert [(name, value.hex()) for name, value in figures.items()] == [
        (name, value.hex()) for name, value in metrics.items()
    ]
    assert len(figures) == len(metrics) and {**figures}.keys() == metrics.keys()
    if not any(math.isnan(value) for value in metrics.values()):
        assert figures == metrics and metrics == figures and json.dumps({**figures}) == json.dumps(metrics)


def test_missing_name_behaves_as_in_a_dict():
    figures = PackedMetrics({"loss": 0.5})
    assert figures.get("accuracy") is None and "accuracy" not in figures
    with pytest.raises(KeyError, match="accuracy"):
        figures["accuracy"]

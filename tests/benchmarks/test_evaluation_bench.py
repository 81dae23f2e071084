"""The cost of each round's accuracy, measured with few samples."""

import pytest


def test_update_time_is_measured_with_and_without_evaluation():
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from tests.benchmarks.simulate.evaluation import measure

    figures = measure("fedavg", 30, 1)
    assert figures.keys() == {"update_ms", "added_ms", "share"}
    assert figures["update_ms"] > 0

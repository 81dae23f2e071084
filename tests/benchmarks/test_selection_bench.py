"""The cost of choosing a model, measured with few samples and rounds."""

import pytest


@pytest.mark.slow
def test_time_of_each_personalization_part_is_measured():
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from tests.benchmarks.simulate.selection import measure

    figures = measure("fedavg", 30, 1)
    total = figures["first_s"] + figures["comparison_s"] + figures["finishing_s"]
    assert figures["first_share"] == pytest.approx(figures["first_s"] / total, abs=0.05)
    assert min(figures["first_s"], figures["comparison_s"], figures["finishing_s"]) > 0

"""What the choice of a model costs, with few samples and rounds."""

import pytest


def test_the_parts_of_a_personalization_are_measured():
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from tests.benchmarks.simulate.selection import measure

    found = measure("fedavg", 30, 1)
    total = found["first_s"] + found["comparison_s"] + found["finishing_s"]
    assert found["first_share"] == pytest.approx(found["first_s"] / total, abs=0.05)
    # the second time there are more samples, and a comparison is a forward pass of six of them
    assert 0 < found["comparison_s"] < found["first_s"]
    assert 0.2 < found["first_share"] < 0.8

"""What the accuracy of each round costs, with few samples."""

import pytest


def test_the_update_of_a_client_is_measured_with_and_without_the_accuracy():
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from tests.benchmarks.simulate.evaluation import measure

    found = measure("fedavg", 30, 1)
    assert found.keys() == {"update_ms", "added_ms", "share"}
    assert found["update_ms"] > 0

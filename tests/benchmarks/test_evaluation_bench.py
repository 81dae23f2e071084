"""The cost of each round's accuracy, measured with few samples."""

import pytest


@pytest.mark.slow
def test_update_time_is_measured_with_and_without_evaluation():
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from tests.benchmarks.simulate.evaluation import render, run_evaluation_bench

    result = run_evaluation_bench(30, 1, ["fedavg"])
    figures = result["algorithms"]["fedavg"]
    assert figures.keys() == {"update_ms", "added_ms", "share"}
    assert figures["update_ms"] > 0
    assert render(result).splitlines()[-1].split()[:2] == ["fedavg", f"{figures['update_ms']:.0f}"]

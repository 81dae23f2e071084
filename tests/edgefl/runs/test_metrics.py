"""Evaluation over clients and classes, worked by hand."""

import numpy as np
import pytest

from edgefl.config import FederationConfig
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.runs.metrics import (
    compute_cdf,
    estimate_global_accuracy,
    estimate_local_accuracy,
    summarize_figure,
)
from edgefl.runs.summary import summarize_run
from edgefl.simulation.clients import ClientResult
from edgefl.simulation.simulate import Simulation
from edgefl.types import Mixture, ServerState


def test_local_test_by_hand():
    """Accuracy by class .9, .5, .8 for clients with p(y|s) = (.5, .5, 0) and (0, .25, .75): .7 and .725;
    weighted 40:80 .716667.
    """
    values = [estimate_local_accuracy([0.9, 0.5, 0.8], share) for share in ([0.5, 0.5, 0], [0, 0.25, 0.75])]
    assert values == pytest.approx([0.7, 0.725])
    assert summarize_figure(values, [40, 80]).weighted == pytest.approx(0.716667, abs=1e-6)
    assert summarize_figure(values, [40, 80]).mean == pytest.approx(0.7125)


def test_the_weighted_mean_over_clients_is_the_pooled_accuracy():
    right = np.array([3, 9, 40])
    count = np.array([10, 10, 50])
    assert summarize_figure(right / count, count).weighted == pytest.approx(right.sum() / count.sum())


def test_spread_by_hand():
    found = summarize_figure([0.5, 1.0, float("nan")], [1, 3, 100])
    assert (found.mean, found.weighted, found.std, found.p10, found.count) == pytest.approx(
        (0.75, 0.875, 0.25, 0.55, 2)
    )
    assert np.isnan(summarize_figure([], []).mean)


def test_a_class_without_samples_is_left_out():
    by_class = [0.8, float("nan"), 0.4]
    assert estimate_local_accuracy(by_class, [0.5, 0.5, 0]) == pytest.approx(0.8)
    assert np.isnan(estimate_local_accuracy(by_class, [0, 1, 0]))
    assert estimate_global_accuracy(by_class, [30, 0, 10]) == pytest.approx(0.7)


def test_cdf_by_hand():
    values, share = compute_cdf([0.9, 0.5, float("nan"), 0.7])
    assert values.tolist() == [0.5, 0.7, 0.9]
    assert share == pytest.approx([1 / 3, 2 / 3, 1])


def rand_index(truths: list[int], clusters: list[int]) -> float:
    """Return the summary's adjusted Rand index of clients with these true and found clusters."""
    results = {
        f"client-{i}": ClientResult(
            Mixture({}, diagnostics={"assignment": cluster}), {"n_train": 1}, np.ones(1)
        )
        for i, cluster in enumerate(clusters)
    }
    none = np.zeros(0, np.int64)
    allotments = {f"client-{i}": ClientPartition(none, none, truth=truth) for i, truth in enumerate(truths)}
    simulation = Simulation(ServerState(1, "done", {}), results)
    summary = summarize_run(FederationConfig(), simulation, [], allotments, np.ones(1))
    return float(summary["adjusted_rand_index"])


def test_adjusted_rand_index_by_hand():
    """0 0 1 1 against 0 0 1 2: pairs together in both 1, in the first 2, in the second 1, of 6: (1 - 1/3) /
    (1.5 - 1/3) = 4/7.
    """
    pytest.importorskip("sklearn.metrics", reason="the aggregator extra is not installed")
    assert rand_index([0, 0, 1, 1], [0, 0, 1, 2]) == pytest.approx(4 / 7)
    assert rand_index([0, 0, 1, 1], [5, 5, 2, 2]) == 1
    assert rand_index([0, 1, 2], [0, 0, 0]) == 0
    assert rand_index([0, 0], [3, 3]) == 1

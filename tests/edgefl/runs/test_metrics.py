"""Evaluation over clients and classes, against values computed by hand."""

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


def test_local_accuracy_matches_hand_calculation():
    """Accuracies by class .9, .5, .8 give .7 for p(y|s) = (.5, .5, 0) and .725 for (0, .25, .75).

    The mean with weights 40 and 80 is .716667.
    """
    values = [estimate_local_accuracy([0.9, 0.5, 0.8], share) for share in ([0.5, 0.5, 0], [0, 0.25, 0.75])]
    assert values == pytest.approx([0.7, 0.725])
    assert summarize_figure(values, [40, 80]).weighted == pytest.approx(0.716667, abs=1e-6)
    assert summarize_figure(values, [40, 80]).mean == pytest.approx(0.7125)


def test_weighted_mean_over_clients_equals_pooled_accuracy():
    right = np.array([3, 9, 40])
    count = np.array([10, 10, 50])
    assert summarize_figure(right / count, count).weighted == pytest.approx(right.sum() / count.sum())


def test_summary_statistics_match_hand_calculation():
    figure = summarize_figure([0.5, 1.0, float("nan")], [1, 3, 100])
    assert (figure.mean, figure.weighted, figure.std, figure.p10, figure.count) == pytest.approx(
        (0.75, 0.875, 0.25, 0.55, 2)
    )
    assert np.isnan(summarize_figure([], []).mean)


def test_a_class_without_samples_is_left_out():
    by_class = [0.8, float("nan"), 0.4]
    assert estimate_local_accuracy(by_class, [0.5, 0.5, 0]) == pytest.approx(0.8)
    assert np.isnan(estimate_local_accuracy(by_class, [0, 1, 0]))
    assert estimate_global_accuracy(by_class, [30, 0, 10]) == pytest.approx(0.7)


def test_cdf_matches_hand_calculation():
    values, share = compute_cdf([0.9, 0.5, float("nan"), 0.7])
    assert values.tolist() == [0.5, 0.7, 0.9]
    assert share == pytest.approx([1 / 3, 2 / 3, 1])


def compute_rand_index(truths: list[int], clusters: list[int]) -> float:
    """Return the summary's adjusted Rand index of clients with these true and found clusters."""
    results = {
        f"client-{i}": ClientResult(
            Mixture({}, diagnostics={"assignment": cluster}), {"n_train": 1}, np.ones(1)
        )
        for i, cluster in enumerate(clusters)
    }
    empty = np.zeros(0, np.int64)
    partitions = {f"client-{i}": ClientPartition(empty, empty, truth=truth) for i, truth in enumerate(truths)}
    simulation = Simulation(ServerState(1, "done", {}), results)
    summary = summarize_run(FederationConfig(), simulation, [], partitions, np.ones(1))
    return float(summary["adjusted_rand_index"])


def test_adjusted_rand_index_matches_hand_calculation():
    """Of 6 pairs, 0 0 1 1 joins 2, 0 0 1 2 joins 1, and both join 1: (1 - 1/3) / (1.5 - 1/3) = 4/7."""
    pytest.importorskip("sklearn.metrics", reason="the aggregator extra is not installed")
    assert compute_rand_index([0, 0, 1, 1], [0, 0, 1, 2]) == pytest.approx(4 / 7)
    assert compute_rand_index([0, 0, 1, 1], [5, 5, 2, 2]) == 1
    assert compute_rand_index([0, 1, 2], [0, 0, 0]) == 0
    assert compute_rand_index([0, 0], [3, 3]) == 1

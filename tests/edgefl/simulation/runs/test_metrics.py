"""Evaluation over clients and classes, against values computed by hand."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefl.base.config import FederationConfig
from edgefl.base.types import Mixture, ServerState
from edgefl.data.dataset import Dataset
from edgefl.data.mapped_shards import map_dataset
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.simulation.clients import ClientResult, measure_macro_precision
from edgefl.simulation.runs.metrics import (
    compute_cdf,
    estimate_global_accuracy,
    estimate_local_accuracy,
    summarize_figure,
)
from edgefl.simulation.runs.pipeline import PartitionedDataset
from edgefl.simulation.runs.summary import summarize_run
from edgefl.simulation.simulate import Simulation


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


def summarize(truths: list[int], diagnostics: list[dict[str, float]]) -> dict[str, Any]:
    """Return the summary of clients with these true clusters and diagnostics."""
    results = {
        f"client-{i}": ClientResult(
            mixture=Mixture(weights={}, diagnostics=values), metrics={"n_train": 1}, class_share=np.ones(1)
        )
        for i, values in enumerate(diagnostics)
    }
    empty = np.zeros(0, np.int64)
    partitions = {
        f"client-{i}": ClientPartition(train=empty, test=empty, truth=truth) for i, truth in enumerate(truths)
    }
    simulation = Simulation(state=ServerState(round=1, phase="done", models={}), results=results)
    dataset = Dataset(x_train=empty, y_train=empty, x_test=empty, y_test=np.zeros(1, np.int64), num_classes=1)
    with tempfile.TemporaryDirectory() as directory:
        partitioned = PartitionedDataset(map_dataset(dataset, partitions, Path(directory)), partitions)
        return summarize_run(FederationConfig(), simulation, [], partitioned, {})


def compute_rand_index(truths: list[int], clusters: list[int]) -> float:
    """Return the summary's adjusted Rand index of clients with these true and found clusters."""
    summary = summarize(truths, [{"assignment": cluster} for cluster in clusters])
    assert "adjusted_rand_index_experts" not in summary
    return float(summary["adjusted_rand_index"])


def test_dominant_experts_are_compared_with_the_truth():
    """The local expert does not count, and equal weights give the first expert."""
    pytest.importorskip("sklearn.metrics", reason="the aggregator extra is not installed")
    adaptive = [
        {"gate/expert0": 0.2, "gate/expert1": 0.1, "gate/local": 0.7, "best": 1.0},
        {"gate/expert0": 0.3, "gate/expert1": 0.3, "gate/local": 0.4, "best": 0.0},
        {"gate/expert0": 0.0, "gate/expert1": 0.5, "gate/local": 0.5, "best": 0.0},
    ]
    summary = summarize([4, 4, 7], adaptive)
    assert [row["expert"] for row in summary["clients"]] == [0, 0, 1]
    assert summary["adjusted_rand_index_experts"] == 1 and "adjusted_rand_index" not in summary
    mixed = summarize([0, 0, 1], [{"gate/0": 0.2, "gate/1": 0.8}, {"gate/0": 0.9, "gate/1": 0.1}, {}])
    assert [row.get("expert") for row in mixed["clients"]] == [1, 0, None]
    chosen = summarize([0, 1, 1], [{"best": 2.0}, {"best": 0.0}, {"best": 0.0}])
    assert chosen["adjusted_rand_index_experts"] == 1
    assert "adjusted_rand_index_experts" not in summarize([-1, -1], [{"best": 2.0}, {"best": 0.0}])


def test_macro_precision_matches_hand_calculation_and_scikit_learn():
    """Class 0: 2 of 3 predictions are right. Class 1: 1 of 1. Class 2 is never predicted."""
    true, predicted = np.array([0, 0, 1, 1, 2]), np.array([0, 0, 0, 1, 3])
    assert measure_macro_precision(true, predicted) == pytest.approx((2 / 3 + 1 + 0 + 0) / 4)
    assert np.isnan(measure_macro_precision(true[:0], predicted[:0]))
    metrics = pytest.importorskip("sklearn.metrics", reason="the aggregator extra is not installed")
    rng = np.random.default_rng(0)
    for _ in range(20):
        true, predicted = rng.integers(0, 6, (2, 15))
        expected = metrics.precision_score(true, predicted, average="macro", zero_division=0)
        assert measure_macro_precision(true, predicted) == pytest.approx(expected)


def test_adjusted_rand_index_matches_hand_calculation():
    """Of 6 pairs, 0 0 1 1 joins 2, 0 0 1 2 joins 1, and both join 1: (1 - 1/3) / (1.5 - 1/3) = 4/7."""
    pytest.importorskip("sklearn.metrics", reason="the aggregator extra is not installed")
    assert compute_rand_index([0, 0, 1, 1], [0, 0, 1, 2]) == pytest.approx(4 / 7)
    assert compute_rand_index([0, 0, 1, 1], [5, 5, 2, 2]) == 1
    assert compute_rand_index([0, 1, 2], [0, 0, 0]) == 0
    assert compute_rand_index([0, 0], [3, 3]) == 1

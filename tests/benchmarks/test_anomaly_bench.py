"""The benchmark of anomalies: its arithmetic by hand, the held-out activities, and a small run."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from edgefl.base.config import DataConfig, PartitionConfig
from edgefl.base.types import Shard
from tests.benchmarks.anomaly import comparison
from tests.benchmarks.anomaly.comparison import (
    COLUMNS,
    FEDERATIONS,
    FEW,
    HAR,
    MANY,
    compute_gains,
    list_held_out,
    make_benchmark_config,
    measure_mean_sample,
    render,
    run_federation,
)
from tests.benchmarks.anomaly.over_mqtt import count_equal_devices


def make_row(federation, seed, held_out=None, **auc):
    figures = {**dict.fromkeys(COLUMNS, 0.5), **auc}
    return {"federation": federation, "seed": seed, "held_out": held_out, "auc": figures, "clients": {}}


ROWS = [
    make_row(MANY, 1, shipped=0.8, federated=0.75, local=0.8),
    make_row(MANY, 2, shipped=0.7, federated=0.67, local=0.72),
    make_row(FEW, 1, shipped=0.7, federated=0.7, local=0.6),
    make_row(FEW, 2, shipped=0.7, federated=0.6, local=0.6),
    make_row(HAR, 1, 0, shipped=0.9, local=0.9),
    make_row(HAR, 1, 1, shipped=0.7, local=0.5),
]


def test_gains_are_paired_by_seed():
    gains = {gain.name: gain for gain in compute_gains(ROWS)}
    # differences .05 and .03: mean .04, standard deviation .02 / sqrt(2), standard error .01
    common = gains[f"{MANY}: personal against common"]
    assert (common.mean, common.standard_error) == (pytest.approx(0.04), pytest.approx(0.01))
    assert common.least == 0.03
    # 400 windows against 40 windows alone: .2 and .1
    few = gains[f"{MANY}: personal against local of {FEW}"]
    assert (few.mean, few.standard_error) == (pytest.approx(0.15), pytest.approx(0.05))
    # the mean over activities comes first, and one seed has no standard error
    har = gains[f"{HAR}: personal against local"]
    assert har.mean == pytest.approx(0.1)
    assert math.isnan(har.standard_error)
    assert math.isnan(har.least)


def test_report_states_whether_a_target_is_met():
    result = {
        "command": "python -m tests.benchmarks anomaly",
        "machine": "m",
        "versions": {"numpy": "2"},
        "rows": ROWS,
        "gains": [vars(gain) for gain in compute_gains(ROWS)],
    }
    text = render(result)
    assert f"{MANY}: personal against common: +0.040, standard error 0.010; target +0.03: met" in text
    assert f"{MANY}: personal against local: -0.010, standard error 0.010\n" in text
    assert f"{FEW}: personal against local: +0.100, standard error 0.000; target +0.00: met" in text
    mean = next(line.split() for line in text.splitlines() if line.split()[:2] == [MANY, "mean"])
    assert mean == [MANY, "mean", "0.500", "0.760", "0.710", "0.500", "0.500", "0.750"]


def test_mean_sample_scores_the_distance_from_the_training_mean():
    train = np.array([[0.0, 0.0], [2.0, 0.0]], np.float32)
    test = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 3.0], [1.0, 0.5]], np.float32)
    shard = Shard(
        x_train=train,
        y_train=train,
        x_test=test,
        y_test=test,
        num_classes=2,
        anomaly_test=np.array([False, False, True, True]),
    )  # squared distances 0, 1, 9 and .25
    assert measure_mean_sample(shard) == 0.75


def test_each_activity_is_held_out_once_in_three_seeds():
    assert [list_held_out(HAR, seed) for seed in (1, 2, 3, 4)] == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert list_held_out(MANY, 2) == (None,)


def test_devices_are_equal_only_with_the_same_bits_and_figures():
    def make_mixture(value):
        return SimpleNamespace(weights={"w": np.array([value], np.float32)})

    simulation = SimpleNamespace(
        mixtures={"a": make_mixture(1.0), "b": make_mixture(2.0)},
        metrics={"a": {"auc_local": 0.5}, "b": {"auc_local": 0.5}},
    )
    rows = {"a": {"auc_local": 0.5}, "b": {"auc_local": 0.75}}
    weights = {"a": make_mixture(1.0).weights, "b": {"w": np.nextafter(make_mixture(2.0).weights["w"], 3)}}
    assert count_equal_devices(simulation, rows, weights) == {
        "devices": 2,
        "same_weights": 1,
        "same_figures": 1,
        "auc": {"local": 0.625},
    }


@pytest.mark.slow
def test_a_small_run_measures_every_model(monkeypatch):
    small = replace(FEDERATIONS[FEW], rounds=1, epochs=1)
    monkeypatch.setattr(comparison, "FEDERATIONS", {FEW: small})
    config = make_benchmark_config(FEW, 1)
    config = replace(
        config,
        min_clients=2,
        data=DataConfig(name="machines", options={"machines": 2, "windows": 20, "test_windows": 20}),
        partition=PartitionConfig(name="group", num_clients=2),
    )
    clients = run_federation(config)
    assert len(clients) == 2
    for figures in clients.values():
        assert figures.keys() == set(COLUMNS)
        assert all(0 <= figure <= 1 for figure in figures.values())

"""The regression benchmark: its targets by hand, the central training, and the report."""

import math
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.types import Shard
from tests.benchmarks.regression.comparison import (
    COLUMNS,
    make_benchmark_config,
    make_regression_shard,
    measure_gyroscope,
    render,
    train_centrally,
)


def make_windows(count):
    return np.random.default_rng(4).normal(size=(count, 128, 9)).astype(np.float32)


def test_targets_are_the_strength_of_the_gyroscope():
    windows = np.zeros((2, 128, 9), np.float32)
    windows[0, :, 3] = -3.0
    assert measure_gyroscope(windows)[:, 0] == pytest.approx([math.log(3.01), math.log(0.01)], rel=1e-5)
    shard = make_regression_shard(
        Shard(x_train=windows, y_train=np.zeros(2), x_test=windows, y_test=np.zeros(2), num_classes=6)
    )
    assert shard.x_train.shape == shard.x_test.shape == (2, 32, 3)
    assert shard.target_train.dtype == np.float32


def test_central_training_measures_every_client(monkeypatch):
    monkeypatch.setattr("tests.benchmarks.regression.comparison.CENTRAL_EPOCHS", 1)
    windows = make_windows(20)
    shard = make_regression_shard(
        Shard(x_train=windows, y_train=np.zeros(20), x_test=windows, y_test=np.zeros(20), num_classes=6)
    )
    config = make_benchmark_config(1)
    config = replace(config, model=replace(config.model, options={"units": 2}))
    figures = train_centrally(config, {"a": shard, "b": shard})
    assert figures["a"] == figures["b"]
    assert 0 <= figures["a"] <= 1


def test_report_has_the_mean_and_its_standard_error():
    rows = [{"seed": seed, "r2": dict.fromkeys(COLUMNS, r2)} for seed, r2 in ((1, 0.5), (2, 0.7))]
    text = render({"command": "c", "machine": "m", "versions": {"numpy": "2"}, "rows": rows})
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["mean", *["0.600"] * len(COLUMNS)],
        ["s.e.", *["0.100"] * len(COLUMNS)],
    ]

"""The form of a shard for each kind of task."""

import numpy as np
import pytest

from edgefl.base.errors import DataError
from edgefl.base.tasks.config import CLASSIFICATION_TASK, TaskConfig
from edgefl.base.types import Shard
from edgefl.data.forms import split_targets
from edgefl.data.npz import load_shard, make_samples, save_shard
from edgefl.data.task_form import TaskShards, to_task_form

RNG = np.random.default_rng(1)
X = RNG.normal(size=(6, 2, 3)).astype(np.float32)
LABELS = np.array([0, 2, 0, 1, 0, 0])
REGRESSION = TaskConfig(kind="regression")
ANOMALY = TaskConfig(kind="anomaly")


def make_shard(labels: np.ndarray, **values: object) -> Shard:
    return Shard(
        x_train=X[:4],
        y_train=labels[:4],
        x_test=X[4:],
        y_test=labels[4:],
        num_classes=3,
        group_train=np.arange(4),
        **values,
    )


def test_classification_keeps_the_shard() -> None:
    shard = make_shard(LABELS)
    assert to_task_form(shard, CLASSIFICATION_TASK) is shard


def test_anomalies_move_to_the_test_samples() -> None:
    formed = to_task_form(make_shard(LABELS), ANOMALY)
    np.testing.assert_array_equal(formed.x_train, X[[0, 2]])
    np.testing.assert_array_equal(formed.y_train, X[[0, 2]].reshape(2, 6))
    np.testing.assert_array_equal(formed.x_test, X[[4, 5, 1, 3]])
    np.testing.assert_array_equal(formed.y_test, X[[4, 5, 1, 3]].reshape(4, 6))
    assert formed.anomaly_test is not None
    assert formed.anomaly_test.tolist() == [False, False, True, True]
    assert formed.group_train is not None and formed.group_train.tolist() == [0, 2]
    assert formed.num_classes == 6


def test_listed_labels_are_the_anomalies() -> None:
    formed = to_task_form(make_shard(LABELS), TaskConfig(kind="anomaly", anomalies=(2,)))
    assert len(formed.x_train) == 3 and formed.anomaly_test is not None
    assert formed.anomaly_test.tolist() == [False, False, True]


def test_samples_without_labels_are_normal() -> None:
    shard = make_samples({"x": np.concatenate([X, X + 9])}, "x.npz", any_task=True).shard
    formed = to_task_form(shard, ANOMALY)
    assert len(formed.x_train) + len(formed.x_test) == 12
    assert formed.anomaly_test is not None and not formed.anomaly_test.any()
    for task, expected in ((CLASSIFICATION_TASK, "class numbers"), (REGRESSION, "numbers to predict")):
        with pytest.raises(DataError, match=f"no labels y, expected {expected}; add y"):
            to_task_form(shard, task)


def test_numbers_become_targets_and_survive_a_file(tmp_path) -> None:
    y = np.array([0.5, -1, 2, 3, 4, 5], np.float64)
    shard = make_samples({"x": X, "y": y}, "x.npz", any_task=True).shard
    formed = to_task_form(shard, REGRESSION)
    assert formed.y_train.dtype == np.float32 and formed.y_train.shape[1:] == (1,)
    assert sorted([*formed.y_train[:, 0], *formed.y_test[:, 0]]) == sorted(y)
    save_shard(tmp_path / "s.npz", shard)
    with np.load(tmp_path / "s.npz") as file:
        again = make_samples(dict(file), "s.npz", any_task=True).shard
    np.testing.assert_array_equal(to_task_form(again, REGRESSION).y_train, formed.y_train)
    with pytest.raises(DataError, match=r"y is float32\[\d, 1\]"):
        load_shard(tmp_path / "s.npz")
    with pytest.raises(DataError, match=r"hold .*, which is not a class.*kind = 'regression'"):
        to_task_form(shard, CLASSIFICATION_TASK)
    with pytest.raises(DataError, match="expected 0 for a normal sample"):
        to_task_form(shard, ANOMALY)


def test_whole_numbers_are_targets_of_a_regression_too() -> None:
    formed = to_task_form(make_shard(LABELS), REGRESSION)
    assert formed.y_train.tolist() == [[0], [2], [0], [1]] and formed.num_classes == 1
    with pytest.raises(DataError, match="1 values per sample, expected 2; set outputs"):
        to_task_form(make_shard(LABELS), TaskConfig(kind="regression", outputs=2))


def test_only_numbers_that_are_no_classes_are_separated() -> None:
    def is_separated(y: object) -> bool:
        return "target" in split_targets({"x": X, "y": np.asarray(y)})

    assert is_separated([0.5, 1, 2, 3, 4, 5]) and is_separated([-1, 0, 1, 2, 3, 4])
    assert is_separated(np.ones((6, 2))) and is_separated([np.nan, 0, 1, 2, 3, 4])
    assert (
        not is_separated([0.0, 1, 2, 3, 4, 5]) and not is_separated(np.eye(6)) and not is_separated(["a"] * 6)
    )


def test_shard_of_anomalies_only_is_refused() -> None:
    with pytest.raises(DataError, match="all 4 training samples are anomalies, expected normal ones"):
        to_task_form(make_shard(np.ones(6, np.int64)), ANOMALY)


def test_target_that_is_not_finite_is_refused() -> None:
    y = np.array([0.5, np.nan, 2, 3, 4, 5])
    with pytest.raises(DataError, match=r"NaN or infinite values in 1 of 6 samples, first at 1; clean"):
        make_samples({"x": X, "y": y}, "x.npz", any_task=True)


def test_shards_are_converted_on_access() -> None:
    shards = TaskShards({"a": make_shard(LABELS)}, ANOMALY)
    assert list(shards) == ["a"] and len(shards) == 1
    assert shards["a"].num_classes == 6
    with pytest.raises(KeyError):
        shards["b"]


def test_numbers_without_labels_of_the_test_part_are_refused() -> None:
    y = np.array([0.5, 1, 2, 3, 4, 5])
    with pytest.raises(DataError, match="there is no array y_test"):
        make_samples({"x": X, "y": y, "x_test": X}, "x.npz", any_task=True)

"""Converts the samples of a client to the form that its task trains on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.tasks.config import ANOMALY, REGRESSION, TaskConfig
from edgefl.base.types import Array, Labels, Shard


def to_task_form(shard: Shard, task: TaskConfig) -> Shard:
    """Return a shard whose labels are what the model learns to predict.

    - Classification: the shard itself.
    - Regression: the values of each sample, shape (n, outputs), float32.
    - Anomaly: the values of the sample itself, shape (n, values), float32. Anomalies among the training
      samples become test samples.

    Args:
        shard: the samples of a client, with classes or values as they are stored.

    Raises:
        DataError: the labels do not fit the task, or no normal sample is left to train on.
    """
    if task.kind == ANOMALY:
        return _separate_anomalies(shard, task)
    if not shard.has_labels:
        raise DataError(
            f"the samples have no labels y, expected {_describe_labels(task)}; add y (for "
            "CSV --label or --target), or set kind = 'anomaly' in [task]"
        )
    if task.kind == REGRESSION:
        train, test = (
            _choose_targets(values, labels, task)
            for values, labels in (
                (shard.target_train, shard.y_train),
                (shard.target_test, shard.y_test),
            )
        )
        return replace(
            shard, y_train=train, y_test=test, num_classes=task.outputs, target_train=None, target_test=None
        )
    if shard.target_train is not None:
        raise DataError(
            f"the labels y hold {_find_first_number(shard.target_train):g}, which is not a class, expected "
            "whole numbers from 0; number the classes, or set kind = 'regression' in [task]"
        )
    return shard


@dataclass(frozen=True)
class TaskShards(Mapping[str, Shard]):
    """Maps client ids to shards in the form of a task, see `to_task_form`.

    Attributes:
        shards: the shards as they are stored.
        task: the task.
    """

    shards: Mapping[str, Shard]
    task: TaskConfig

    def __getitem__(self, client_id: str) -> Shard:
        """Return the shard of a client.

        Raises:
            KeyError: the client is unknown.
            DataError: its labels do not fit the task.
        """
        return to_task_form(self.shards[client_id], self.task)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the client ids."""
        return iter(self.shards)

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.shards)


def _describe_labels(task: TaskConfig) -> str:
    return "numbers to predict" if task.kind == REGRESSION else "class numbers"


def _find_first_number(values: Array) -> float:
    flat = values.ravel()
    broken = (flat != np.round(flat)) | (flat < 0)
    return float(flat[broken][0] if broken.any() else flat[0])


def _choose_targets(values: Array | None, labels: Labels, task: TaskConfig) -> Array:
    targets = labels.astype(np.float32)[:, None] if values is None else values
    if targets.shape[1] != task.outputs:
        raise DataError(
            f"the labels y have {targets.shape[1]} values per sample, expected {task.outputs}; set "
            "outputs in [task], or store other labels"
        )
    return targets


def find_anomalies(labels: Labels, task: TaskConfig) -> NDArray[np.bool_]:
    """Return whether each label means an anomaly.

    Args:
        labels: labels, shape (n,), int64.
        task: the task, which lists the labels of anomalies. An empty list means every label but 0.
    """
    return np.isin(labels, task.anomalies) if task.anomalies else labels != 0


def check_anomaly_labels(*targets: Array | None) -> None:
    """Check that the labels of samples say which samples are anomalies.

    Args:
        targets: labels that are numbers but no classes, see `edgefl.data.forms.split_targets`. None for other
            samples.

    Raises:
        DataError: there are such labels.
    """
    numbers = [values.ravel() for values in targets if values is not None]
    if numbers:
        raise DataError(
            f"the labels y hold {_find_first_number(np.concatenate(numbers)):g}, expected 0 for a normal "
            "sample and whole numbers above for anomalies; store such labels, or leave y out"
        )


def _separate_anomalies(shard: Shard, task: TaskConfig) -> Shard:
    check_anomaly_labels(shard.target_train, shard.target_test)
    is_anomaly = find_anomalies(shard.y_train, task)
    normal = np.flatnonzero(~is_anomaly)
    if not len(normal):
        raise DataError(
            f"all {len(is_anomaly)} training samples are anomalies, expected normal ones; change "
            "anomalies of [task], or the labels"
        )
    x_train, x_test = shard.x_train, shard.x_test
    anomaly_test = find_anomalies(shard.y_test, task)
    side, group = shard.side_train, shard.group_train
    if is_anomaly.any():
        x_test = np.concatenate([x_test, x_train[is_anomaly]])
        anomaly_test = np.concatenate([anomaly_test, np.ones(int(is_anomaly.sum()), np.bool_)])
        x_train = x_train[normal]
        side, group = (None if values is None else values[normal] for values in (side, group))
    return replace(
        shard,
        x_train=x_train,
        y_train=x_train.reshape(len(x_train), -1),
        x_test=x_test,
        y_test=x_test.reshape(len(x_test), -1),
        num_classes=int(np.prod(x_train.shape[1:])),
        side_train=side,
        group_train=group,
        anomaly_test=anomaly_test,
    )

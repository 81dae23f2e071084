"""The part of a data set that one client gets: sample indices, and changes to the samples."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.types import Array, Labels, Shard
from edgefl.data.dataset import Dataset, as_float
from edgefl.program.learner.image_rotation import rotate_by_turns


@dataclass(frozen=True)
class ClientPartition:
    """The part of a data set that one client gets.

    Attributes:
        train: indices into the training part, sorted, int64.
        test: indices into the test part, sorted, int64.
        turns_train: number of rotation steps of each training sample, shape (len(train),), int64. None leaves
            the samples unrotated.
        turns_test: number of rotation steps of each test sample, like `turns_train`.
        turn_degrees: size of a rotation step in degrees, counter-clockwise.
        relabel: replaces the label y by `relabel[y]`. Empty leaves the labels unchanged.
        truth: the true cluster of the client, -1 if there is none.
    """

    train: Labels
    test: Labels
    turns_train: Labels | None = None
    turns_test: Labels | None = None
    turn_degrees: float = 45.0
    relabel: tuple[int, ...] = ()
    truth: int = -1


def pool_clients(client_partitions: Mapping[str, ClientPartition]) -> dict[str, ClientPartition]:
    """Return one client with the samples of all clients.

    Args:
        client_partitions: client partitions by client id.

    Raises:
        DataError: clients rotate or relabel their samples, so that one client cannot have them all.
    """
    for client_id, part in client_partitions.items():
        if part.turns_train is not None or part.relabel:
            raise DataError(
                f"{client_id} rotates or relabels its samples, expected plain samples; use another partition "
                "for training without a federation"
            )
    parts = client_partitions.values()
    train, test = (
        np.sort(np.concatenate([getattr(part, name) for part in parts])) for name in ("train", "test")
    )
    return {min(client_partitions): ClientPartition(train=train, test=test)}


def copy_shard(dataset: Dataset, client_partition: ClientPartition) -> Shard:
    """Copy the samples of one client out of a data set.

    The arrays of the data set may be memory-mapped. Only the samples of the client are read. They become
    float32, divided by the scale of the data set. In the shard, the number of rotation steps of a sample is
    its side information, and its recording is its group.

    Args:
        client_partition: the part to copy.

    Raises:
        DataError: an index exceeds the data set, or samples to rotate are not pictures.
    """
    x_train, y_train = _copy_part(
        dataset.x_train,
        dataset.y_train,
        client_partition.train,
        client_partition.turns_train,
        client_partition,
        dataset.scale,
    )
    x_test, y_test = _copy_part(
        dataset.x_test,
        dataset.y_test,
        client_partition.test,
        client_partition.turns_test,
        client_partition,
        dataset.scale,
    )
    train, test = client_partition.train, client_partition.test
    recording = dataset.recording_train
    return Shard(
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        num_classes=dataset.num_classes,
        side_train=client_partition.turns_train,
        group_train=None if recording is None else recording[train],
        target_train=None if dataset.target_train is None else dataset.target_train[train],
        target_test=None if dataset.target_test is None else dataset.target_test[test],
        has_labels=dataset.has_labels,
    )


def _copy_part(
    x: Array,
    y: Labels,
    indices: Labels,
    turns: Labels | None,
    client_partition: ClientPartition,
    scale: float,
) -> tuple[Array, Labels]:
    if len(indices) and int(indices[-1]) >= len(y):
        raise DataError(
            f"the client partition refers to sample {indices[-1]} of {len(y)}; it was made for another data "
            "set or subsample"
        )
    samples = as_float(np.asarray(x[indices]), scale)
    labels = np.asarray(y[indices])
    if turns is not None:
        samples = rotate_by_turns(samples, turns, client_partition.turn_degrees)
    if client_partition.relabel:
        labels = np.asarray(client_partition.relabel, np.int64)[labels]
    return samples, labels


def make_client_ids(count: int) -> list[str]:
    """Return `client-000`, `client-001` and so on, with enough digits that the ids sort in order."""
    digits = max(3, len(str(count - 1)))
    return [f"client-{i:0{digits}d}" for i in range(count)]

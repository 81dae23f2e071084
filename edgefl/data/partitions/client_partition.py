"""What one client is given of a data set: indices, and how its samples differ from the data set's.

Samples are copied by `take`.
"""

from dataclasses import dataclass

import numpy as np

from edgefl.data.dataset import Dataset, as_float
from edgefl.data.image_rotation import rotate_by_turns
from edgefl.errors import DataError
from edgefl.types import Array, Labels, Shard


@dataclass(frozen=True)
class ClientPartition:
    """One client's part of a data set.

    train, test: sorted indices into the data set's training and test part.
    turns_train, turns_test: int64[n], how many steps of `turn_degrees` each sample is turned
    counter-clockwise; None: not at all. relabel: the label y becomes relabel[y]; empty: labels stay.
    truth: the cluster that the client truly belongs to, -1 where there is none.
    """

    train: Labels
    test: Labels
    turns_train: Labels | None = None
    turns_test: Labels | None = None
    turn_degrees: float = 45.0
    relabel: tuple[int, ...] = ()
    truth: int = -1


def copy_shard(dataset: Dataset, client_partition: ClientPartition) -> Shard:
    """Copy one client's samples out of a data set, whose arrays may be memory-mapped; nothing else is read.

    The side information of a sample is its turn, its group is its recording. uint8 pictures become float32 in
    [0, 1].
    Raises DataError for indices beyond the data set, and turns of what is no picture.
    """
    x_train, y_train = _copy_part(
        dataset.x_train,
        dataset.y_train,
        client_partition.train,
        client_partition.turns_train,
        client_partition,
    )
    x_test, y_test = _copy_part(
        dataset.x_test, dataset.y_test, client_partition.test, client_partition.turns_test, client_partition
    )
    recording = dataset.recording_train
    return Shard(
        x_train,
        y_train,
        x_test,
        y_test,
        dataset.num_classes,
        client_partition.turns_train,
        None if recording is None else recording[client_partition.train],
    )


def _copy_part(
    x: Array, y: Labels, indices: Labels, turns: Labels | None, client_partition: ClientPartition
) -> tuple[Array, Labels]:
    if len(indices) and int(indices[-1]) >= len(y):
        raise DataError(
            f"the allotment asks for sample {indices[-1]} of {len(y)}; it was made for another data set or "
            "subsample"
        )
    samples = as_float(np.asarray(x[indices]))
    labels = np.asarray(y[indices])
    if turns is not None:
        samples = rotate_by_turns(samples, turns, client_partition.turn_degrees)
    if client_partition.relabel:
        labels = np.asarray(client_partition.relabel, np.int64)[labels]
    return samples, labels


def make_client_ids(count: int) -> list[str]:
    """Return `client-000`, `client-001`, ...: with as many digits as it takes that they sort."""
    digits = max(3, len(str(count - 1)))
    return [f"client-{i:0{digits}d}" for i in range(count)]

"""Holds out training samples of each client, on which a search measures. It uses no test sample."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config import FederationConfig, PartitionConfig
from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Labels
from edgefl.data.dataset import Dataset
from edgefl.data.holdout import hold_out
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.data.resident_shards import ResidentShards

VALIDATION_SHARE = 0.2
"""Share of a client's training samples that is held out."""


def make_iid_partition(partition: PartitionConfig, num_classes: int) -> PartitionConfig:
    """Return the IID partition in which the paper tunes.

    A `p-majority` partition keeps its name and gets p = 2 / num_classes, with which it is IID.

    Args:
        partition: the table `[partition]`.
    """
    if partition.name == "p-majority":
        return replace(partition, options={**partition.options, "p": 2 / num_classes})
    return PartitionConfig(name="iid", num_clients=partition.num_clients, client_ids=partition.client_ids)


def hold_back(client_partition: ClientPartition, held_out: NDArray[np.bool_]) -> ClientPartition:
    """Return a client partition whose test samples are held out from its training samples.

    Args:
        held_out: whether each of its training samples is held out, shape (n,), bool.

    Returns:
        The client partition. Its test indices also refer to the data set's training part.
    """
    train = client_partition.train
    turns = client_partition.turns_train
    return replace(
        client_partition,
        train=train[~held_out],
        test=train[held_out],
        turns_train=None if turns is None else turns[~held_out],
        turns_test=None if turns is None else turns[held_out],
    )


def make_validation_shards(
    dataset: Dataset,
    client_partitions: Mapping[str, ClientPartition],
    seed: int,
    share: float = VALIDATION_SHARE,
) -> ResidentShards:
    """Return shards whose test samples are held out from the training samples.

    They do not contain samples of the data set's test part. At least one sample of a client is held out, and
    at least one remains for training. A recording is never divided.

    The windows of one recording can belong to several clients. So a recording is held out at all clients or
    at none, because a model could otherwise recognise its windows. A client that would have no sample to
    train on or to measure on divides its own recordings instead.

    Args:
        client_partitions: client partitions by client id.
        share: share of the training samples to hold out, above 0 and below 1.

    Raises:
        DataError: a client has fewer than two training samples or recordings, or the share is out of range.
    """
    labels = dataset.y_train
    recordings = dataset.recording_train

    def draw_held_out(rows: Labels, purpose: str) -> NDArray[np.bool_]:
        groups = None if recordings is None else recordings[rows]
        _, test = hold_out(labels[rows], groups, share, derive_rng(seed, 0, purpose))
        return np.isin(np.arange(len(rows)), test)

    shared = None if recordings is None else draw_held_out(np.arange(len(labels)), "tune")

    def divide(client_id: str, client_partition: ClientPartition) -> ClientPartition:
        rows = client_partition.train
        if shared is None or shared[rows].all() or not shared[rows].any():
            held_out = draw_held_out(rows, f"tune:{client_id}")
        else:
            held_out = shared[rows]
        if not held_out.any():
            what = (
                f"{len(rows)} samples" if recordings is None else f"samples of {min(1, len(rows))} recordings"
            )
            raise DataError(
                f"{client_id} has {what}, expected 2 or more, for training and measuring; lower num_clients, "
                "or use data with more samples or recordings"
            )
        return hold_back(client_partition, held_out)

    trained = replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train, group_test=dataset.group_train)
    return ResidentShards(trained, {name: divide(name, item) for name, item in client_partitions.items()})


def with_iid_partition(config: FederationConfig) -> FederationConfig:
    """Return the configuration with an IID partition, see `make_iid_partition`."""
    return replace(config, partition=make_iid_partition(config.partition, config.model.num_classes))

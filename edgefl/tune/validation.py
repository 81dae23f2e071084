"""Holds out training samples of each client, on which a search measures. It uses no test sample."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgefl.config import FederationConfig, PartitionConfig
from edgefl.data.dataset import Dataset
from edgefl.data.holdout import hold_out
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.data.resident_shards import ResidentShards
from edgefl.errors import DataError
from edgefl.rng import derive_rng
from edgefl.types import Labels

VALIDATION_SHARE = 0.2
"""Share of a client's training samples that is held out."""


def make_iid_partition(partition: PartitionConfig, num_classes: int) -> PartitionConfig:
    """Return the IID partition in which the paper tunes.

    A `p-majority` partition keeps its name and gets p = 2 / num_classes, with which it is IID.

    Args:
        partition: the table `[partition]`.
        num_classes: number of classes.
    """
    if partition.name == "p-majority":
        return replace(partition, options={**partition.options, "p": 2 / num_classes})
    return PartitionConfig("iid", partition.num_clients)


def hold_back(
    client_partition: ClientPartition,
    client_id: str,
    share: float,
    seed: int,
    labels: Labels,
    held_out: NDArray[np.bool_] | None = None,
) -> ClientPartition:
    """Return a client partition whose test samples are held out from its training samples.

    At least one sample is held out, and at least one remains for training.

    Args:
        client_partition: the client partition.
        client_id: the client. The random draw depends on it.
        share: share of the training samples to hold out, above 0 and below 1.
        seed: random seed.
        labels: labels of the data set's training part, shape (n,), int64.
        held_out: whether each sample of the data set's training part is held out, shape (n,), bool. None
            draws the samples of the client.

    Returns:
        The client partition. Its test indices also refer to the data set's training part.

    Raises:
        DataError: the client has no sample to train on or none that is held out, or the share is out of
            range.
    """
    train = client_partition.train
    if held_out is None:
        fit, test = hold_out(labels[train], None, share, derive_rng(seed, 0, f"tune:{client_id}"))
    else:
        fit, test = np.flatnonzero(~held_out[train]), np.flatnonzero(held_out[train])
    if not (len(fit) and len(test)):
        raise DataError(
            f"{client_id} has {len(fit)} samples to train on and {len(test)} held-out samples, expected 1 or "
            "more of each; lower num_clients"
        )
    turns = client_partition.turns_train
    return replace(
        client_partition,
        train=client_partition.train[fit],
        test=client_partition.train[test],
        turns_train=None if turns is None else turns[fit],
        turns_test=None if turns is None else turns[test],
    )


def make_validation_shards(
    dataset: Dataset,
    client_partitions: Mapping[str, ClientPartition],
    seed: int,
    share: float = VALIDATION_SHARE,
) -> ResidentShards:
    """Return shards whose test samples are held out from the training samples.

    They do not contain samples of the data set's test part. The windows of one recording can belong to
    several clients, so a recording is held out at all clients or at none. Otherwise a model could recognise
    its windows.

    Args:
        dataset: the data set.
        client_partitions: client partitions by client id.
        seed: random seed.
        share: share of the training samples to hold out, above 0 and below 1.

    Raises:
        DataError: a client has no sample to train on or none that is held out, or the share is out of range.
    """
    held_out = None
    if dataset.recording_train is not None:
        _, rows = hold_out(dataset.y_train, dataset.recording_train, share, derive_rng(seed, 0, "tune"))
        held_out = np.isin(np.arange(len(dataset.y_train)), rows)
    trained = replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train, group_test=dataset.group_train)
    return ResidentShards(
        trained,
        {
            client_id: hold_back(client_partition, client_id, share, seed, dataset.y_train, held_out)
            for client_id, client_partition in client_partitions.items()
        },
    )


def with_iid_partition(config: FederationConfig) -> FederationConfig:
    """Return the configuration with an IID partition, see `make_iid_partition`.

    Args:
        config: the configuration.
    """
    return replace(config, partition=make_iid_partition(config.partition, config.model.num_classes))

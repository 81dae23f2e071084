"""What a search measures on: training samples held back from each client. No test sample is read."""

from collections.abc import Mapping
from dataclasses import replace

from edgefl.config import FederationConfig, PartitionConfig
from edgefl.data.dataset import Dataset
from edgefl.data.holdout import hold_out
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.data.resident_shards import ResidentShards
from edgefl.errors import DataError
from edgefl.rng import derive_rng
from edgefl.types import Labels

VALIDATION_SHARE = 0.2


def make_iid_partition(partition: PartitionConfig, num_classes: int) -> PartitionConfig:
    """Return the partition that the paper tunes in: IID, that is p = 2 / num_classes where two classes make
    the fraction p.
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
    recordings: Labels | None = None,
) -> ClientPartition:
    """Return an allotment whose test part is a share of the training samples, at least one.

    The rest is left to train on. A recording is never divided.

    Args:
        client_partition: the client's part of the data set.
        client_id: names the draw.
        share: share of the training samples to hold out.
        seed: seeds the draw.
        labels: int64[n], labels of the data set's training part.
        recordings: int64[n], recordings of the data set's training part, where they are known.

    Returns:
        The allotment. Its test indices are into the training part.

    Raises:
        DataError: the client has fewer than two samples, or one recording only.
    """
    train = client_partition.train
    fit, test = hold_out(
        labels[train],
        None if recordings is None else recordings[train],
        share,
        derive_rng(seed, 0, f"tune:{client_id}"),
    )
    if not len(test):
        what = (
            f"{len(train)} samples" if recordings is None else f"samples of {min(1, len(train))} recordings"
        )
        raise DataError(
            f"{client_id} has {what}, expected 2 or more: one to train on and one to be measured on"
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
    """Return shards whose held-out split is taken from the training samples.

    The data set's own test part is not in them.
    """
    trained = replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train, group_test=dataset.group_train)
    return ResidentShards(
        trained,
        {
            client_id: hold_back(
                client_partition, client_id, share, seed, dataset.y_train, dataset.recording_train
            )
            for client_id, client_partition in client_partitions.items()
        },
    )


def with_iid_partition(config: FederationConfig) -> FederationConfig:
    """Return the configuration in the IID setting."""
    return replace(config, partition=make_iid_partition(config.partition, config.model.num_classes))

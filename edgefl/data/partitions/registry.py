"""Partitions by name, with their options and sources, and functions that apply a partition to a data set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgefl.base.config import PartitionConfig
from edgefl.base.errors import ConfigError, DataError
from edgefl.base.names import is_client_id
from edgefl.base.options import complete_options, read_defaults, suggest_nearest
from edgefl.base.rng import derive_rng
from edgefl.base.system.natural_order import make_natural_key
from edgefl.base.types import Shard
from edgefl.data.dataset import Dataset, LabelView, make_label_view
from edgefl.data.partitions.client_mixes import client_dirichlet
from edgefl.data.partitions.client_partition import ClientPartition, copy_shard, make_client_ids
from edgefl.data.partitions.natural import group
from edgefl.data.partitions.p_majority import p_majority
from edgefl.data.partitions.pachinko import pachinko
from edgefl.data.partitions.packages import packages
from edgefl.data.partitions.permutation import permutation
from edgefl.data.partitions.quantity import quantity
from edgefl.data.partitions.rotated import rotation
from edgefl.data.partitions.shares import dirichlet, iid
from edgefl.data.partitions.sorted_shards import shards
from edgefl.data.partitions.task_clusters import tasks
from edgefl.data.train_test import merge_scattered_labels


@dataclass(frozen=True)
class Partition:
    """An entry of the registry.

    Attributes:
        divide: `divide(label_view, num_clients, rng, **options)` returns one `ClientPartition` per client.
        source: description and source in one line.
        needs_classes: whether it divides the samples by their classes. Otherwise it also works for numbers to
            predict and for samples without labels.
    """

    divide: Callable[..., tuple[ClientPartition, ...]]
    source: str
    needs_classes: bool = True

    @property
    def defaults(self) -> dict[str, Any]:
        """The options with their defaults."""
        return read_defaults(self.divide)


PARTITIONS: Mapping[str, Partition] = {
    "iid": Partition(iid, "equal shares of each class", needs_classes=False),
    "dirichlet": Partition(
        dirichlet, "class shares over clients from Dir(alpha): Hsu et al., arXiv:1909.06335"
    ),
    "client-dirichlet": Partition(
        client_dirichlet,
        "equal sizes, class mix of each client from Dir(alpha): Reisser et al., arXiv:2107.06724",
    ),
    "p-majority": Partition(
        p_majority, "two majority classes make the fraction p: Listo Zec et al., arXiv:2010.02056"
    ),
    "shards": Partition(shards, "sorted by label, two shards per client: McMahan et al., AISTATS 2017"),
    "quantity": Partition(
        quantity, "IID labels, uneven sizes: Li et al., arXiv:2102.02079", needs_classes=False
    ),
    "group": Partition(
        group,
        "one client per writer or wearer, as in LEAF: Caldas et al., arXiv:1812.01097",
        needs_classes=False,
    ),
    "pachinko": Partition(
        pachinko, "superclasses from Dir(alpha), classes from Dir(beta): Reddi et al., arXiv:2003.00295"
    ),
    "rotation": Partition(
        rotation, "angles from Dir(alpha), or one per client: Reisser et al., arXiv:2107.06724"
    ),
    "permutation": Partition(permutation, "IID samples, permuted labels: Sattler et al., arXiv:1910.01991"),
    "packages": Partition(packages, "two packages of 35 per client: Yeganeh et al., arXiv:2207.03448"),
    "tasks": Partition(
        tasks, "clusters of clients with the same few classes: Filippakopoulos et al., tinyML"
    ),
}


def find_partition(name: str) -> Partition:
    """Return the registry entry of a partition.

    Raises:
        ConfigError: there is no such partition. The message suggests the nearest name.
    """
    if name not in PARTITIONS:
        raise ConfigError(f"unknown partition {name!r}; {suggest_nearest(name, list(PARTITIONS))}")
    return PARTITIONS[name]


def make_client_partitions(
    dataset: Dataset, config: PartitionConfig, seed: int
) -> dict[str, ClientPartition]:
    """Divide a data set among clients.

    The same arguments give the same client partitions. Each client gets at least one training sample and one
    test sample.

    Args:
        config: the table `[partition]`.

    Returns:
        The client partition of each client id, in the order of the partition.

    Raises:
        ConfigError: the partition or an option is unknown, or an option has a value of the wrong type.
        DataError: the data set cannot be divided this way.
    """
    entry = find_partition(config.name)
    _check_classes(dataset, config.name)
    options = complete_options(f"[partition] {config.name}", entry.defaults, config.options)
    view = make_label_view(dataset)
    if not entry.needs_classes:
        view = _merge_numbers(view)
    parts = entry.divide(view, config.num_clients, derive_rng(seed, 0, "partition"), **options)
    client_ids = _list_client_ids(dataset, config, parts)
    client_partitions = dict(zip(client_ids, parts, strict=True))
    for client_id, client_partition in client_partitions.items():
        for part, indices in (
            ("training", client_partition.train),
            ("test", client_partition.test),
        ):
            if not len(indices):
                raise DataError(
                    f"{client_id} would have no {part} samples; use fewer clients, or other options of "
                    f"{config.name!r}"
                )
    return client_partitions


def _list_client_ids(
    dataset: Dataset, config: PartitionConfig, parts: Sequence[ClientPartition]
) -> Sequence[str]:
    """Return the id of each part. A group that has the name of a client belongs to this client.

    Raises:
        ConfigError: some of the groups have the name of a client, and others have not.
    """
    client_ids = config.client_ids or make_client_ids(config.num_clients)
    if config.name != "group" or dataset.group_train is None:
        return client_ids
    if not dataset.group_names or not all(map(is_client_id, dataset.group_names)):
        return client_ids
    names = [dataset.group_names[dataset.group_train[part.train[0]]] for part in parts]
    if not config.client_ids or set(names) == set(client_ids):
        return names
    if common := sorted(set(names) & set(client_ids), key=make_natural_key):
        raise ConfigError(
            f"the samples have the clients {', '.join(names[:20])}, and client_ids of [partition] has "
            f"{', '.join(client_ids[:20])}, expected the same names, or none in common such as {common[0]}; "
            "correct client_ids"
        )
    return client_ids


def _merge_numbers(view: LabelView) -> LabelView:
    """Return one class in place of whole numbers to predict. As classes they may need all memory."""
    if merge_scattered_labels(view.train) is view.train:
        return view
    return replace(
        view, train=np.zeros_like(view.train), test=np.zeros_like(view.test), num_classes=1, coarse=None
    )


def _check_classes(dataset: Dataset, name: str) -> None:
    if dataset.has_classes or not PARTITIONS[name].needs_classes:
        return
    labels = "numbers to predict and no classes" if dataset.has_labels else "no labels"
    fitting = ", ".join(other for other, entry in PARTITIONS.items() if not entry.needs_classes)
    raise DataError(
        f"the partition {name!r} divides samples by class, but the data set has {labels}, expected one of "
        f"{fitting}; change the name in [partition], or pass --partition"
    )


def make_shards(dataset: Dataset, config: PartitionConfig, seed: int) -> dict[str, Shard]:
    """Copy the samples of each client out of a data set.

    Args:
        config: the table `[partition]`.

    Returns:
        The shard of each client id, in the order of the partition.

    Raises:
        ConfigError: the partition or an option is unknown, or an option has a value of the wrong type.
        DataError: the data set cannot be divided this way.
    """
    client_partitions = make_client_partitions(dataset, config, seed)
    return {
        client_id: copy_shard(dataset, client_partition)
        for client_id, client_partition in client_partitions.items()
    }

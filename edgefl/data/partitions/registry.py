"""Partitions by name, with their options and sources, and the functions that apply one to a data set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.config import PartitionConfig, suggest_nearest
from edgefl.data.dataset import Dataset, make_label_view
from edgefl.data.options import fill_defaults, read_defaults
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
from edgefl.errors import ConfigError, DataError
from edgefl.rng import derive_rng
from edgefl.types import Shard


@dataclass(frozen=True)
class Partition:
    """`divide(label_view, num_clients, rng, **options)` gives one `Allotment` a client; its source."""

    divide: Callable[..., tuple[ClientPartition, ...]]
    source: str

    @property
    def defaults(self) -> dict[str, Any]:
        """The options with their defaults."""
        return read_defaults(self.divide)


PARTITIONS: Mapping[str, Partition] = {
    "iid": Partition(iid, "equal shares of each class"),
    "dirichlet": Partition(
        dirichlet, "class shares over clients from Dir(alpha): Hsu et al., arXiv:1909.06335"
    ),
    "p-majority": Partition(
        p_majority, "two majority classes make the fraction p: Listo Zec et al., arXiv:2010.02056"
    ),
    "shards": Partition(shards, "sorted by label, two shards a client: McMahan et al., AISTATS 2017"),
    "quantity": Partition(quantity, "IID labels, uneven sizes: Li et al., arXiv:2102.02079"),
    "group": Partition(group, "one client a writer or wearer, as in LEAF: Caldas et al., arXiv:1812.01097"),
    "pachinko": Partition(
        pachinko, "superclasses from Dir(alpha), classes from Dir(beta): Reddi et al., arXiv:2003.00295"
    ),
    "rotation": Partition(
        rotation, "angles from Dir(alpha), or one a client: Reisser et al., arXiv:2107.06724"
    ),
    "permutation": Partition(permutation, "IID samples, permuted labels: Sattler et al., arXiv:1910.01991"),
    "packages": Partition(packages, "two packages of 35 a client: Yeganeh et al., arXiv:2207.03448"),
    "tasks": Partition(
        tasks, "clusters of clients with the same few classes: Filippakopoulos et al., tinyML"
    ),
}


def find_partition(name: str) -> Partition:
    """Return the registry's entry; ConfigError names the nearest known partition."""
    if name not in PARTITIONS:
        raise ConfigError(f"unknown partition {name!r}; {suggest_nearest(name, list(PARTITIONS))}")
    return PARTITIONS[name]


def make_client_partitions(
    dataset: Dataset, config: PartitionConfig, seed: int
) -> dict[str, ClientPartition]:
    """Share a data set out: one allotment for each client id, ids in order.

    The same arguments give the same allotments.

    Raises ConfigError for an unknown partition or option, DataError when the data set cannot be shared out
    so: no client is ever without a sample to train on or to be measured on.
    """
    entry = find_partition(config.name)
    options = fill_defaults(f"[partition] {config.name}", entry.defaults, config.options)
    parts = entry.divide(
        make_label_view(dataset), config.num_clients, derive_rng(seed, 0, "partition"), **options
    )
    client_partitions = dict(zip(make_client_ids(config.num_clients), parts, strict=True))
    for client_id, client_partition in client_partitions.items():
        for part, indices in (
            ("train on", client_partition.train),
            ("be measured on", client_partition.test),
        ):
            if not len(indices):
                raise DataError(
                    f"{client_id} would have no samples to {part}; take fewer clients, or other options of "
                    f"{config.name!r}"
                )
    return client_partitions


def make_shards(dataset: Dataset, config: PartitionConfig, seed: int) -> dict[str, Shard]:
    """Copy each client's samples out of a data set, by client id in order.

    Raises:
        ConfigError: unknown partition or option.
        DataError: the data set cannot be partitioned this way.
    """
    client_partitions = make_client_partitions(dataset, config, seed)
    return {
        client_id: copy_shard(dataset, client_partition)
        for client_id, client_partition in client_partitions.items()
    }

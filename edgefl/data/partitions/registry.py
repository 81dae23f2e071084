"""Partitions by name, with their options and sources, and the functions that apply one to a data set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.config import PartitionConfig, nearest
from edgefl.data.dataset import Dataset, label_view
from edgefl.data.options import defaults_of, full_options
from edgefl.data.partitions.client_partition import Allotment, client_ids, take
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
from edgefl.rng import rng_for
from edgefl.types import Shard


@dataclass(frozen=True)
class Partition:
    """`divide(label_view, num_clients, rng, **options)` gives one `Allotment` a client; its source."""

    divide: Callable[..., tuple[Allotment, ...]]
    source: str

    @property
    def defaults(self) -> dict[str, Any]:
        """The options with their defaults."""
        return defaults_of(self.divide)


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


def partition_entry(name: str) -> Partition:
    """Return the registry's entry; ConfigError names the nearest known partition."""
    if name not in PARTITIONS:
        raise ConfigError(f"unknown partition {name!r}; {nearest(name, list(PARTITIONS))}")
    return PARTITIONS[name]


def make_allotments(dataset: Dataset, config: PartitionConfig, seed: int) -> dict[str, Allotment]:
    """Share a data set out: one allotment for each client id, ids in order.

    The same arguments give the same allotments.

    Raises ConfigError for an unknown partition or option, DataError when the data set cannot be shared out
    so: no client is ever without a sample to train on or to be measured on.
    """
    entry = partition_entry(config.name)
    options = full_options(f"[partition] {config.name}", entry.defaults, config.options)
    made = entry.divide(label_view(dataset), config.num_clients, rng_for(seed, 0, "partition"), **options)
    allotments = dict(zip(client_ids(config.num_clients), made, strict=True))
    for client_id, own in allotments.items():
        for part, indices in (("train on", own.train), ("be measured on", own.test)):
            if not len(indices):
                raise DataError(
                    f"{client_id} would have no samples to {part}; take fewer clients, or other options of "
                    f"{config.name!r}"
                )
    return allotments


def make_shards(dataset: Dataset, config: PartitionConfig, seed: int) -> dict[str, Shard]:
    """Copy each client's samples out of a data set, by client id in order.

    Raises:
        ConfigError: unknown partition or option.
        DataError: the data set cannot be partitioned this way.
    """
    allotments = make_allotments(dataset, config, seed)
    return {client_id: take(dataset, allotment) for client_id, allotment in allotments.items()}

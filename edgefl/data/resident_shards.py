"""Shards over a data set in memory: what is sent to other hosts, where the files of `MappedShards` are
not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgefl.data.dataset import Dataset
from edgefl.data.partitions.client_partition import ClientPartition, copy_shard
from edgefl.types import Shard


@dataclass(frozen=True)
class ResidentShards(Mapping[str, Shard]):
    """Client id -> shard.

    A client's samples are copied when they are asked for, so that pictures stay uint8 till then.
    """

    dataset: Dataset
    client_partitions: Mapping[str, ClientPartition]

    def __getitem__(self, client_id: str) -> Shard:
        """Copy one client's samples."""
        return copy_shard(self.dataset, self.client_partitions[client_id])

    def __iter__(self) -> Iterator[str]:
        """Client ids."""
        return iter(self.client_partitions)

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.client_partitions)

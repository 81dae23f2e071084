"""Client shards over a data set in memory, for other hosts, which cannot read the files of `MappedShards`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgefl.base.types import Shard
from edgefl.data.dataset import Dataset
from edgefl.data.partitions.client_partition import ClientPartition, copy_shard


@dataclass(frozen=True)
class ResidentShards(Mapping[str, Shard]):
    """Maps client ids to shards of a data set in memory.

    The samples of a client are copied on access, so pictures stay uint8 until then.

    Attributes:
        dataset: the data set.
        client_partitions: the client partition of each client id.
    """

    dataset: Dataset
    client_partitions: Mapping[str, ClientPartition]

    def __getitem__(self, client_id: str) -> Shard:
        """Copy the samples of one client.

        Raises:
            KeyError: the client is unknown.
            DataError: the client partition does not fit the data set.
        """
        return copy_shard(self.dataset, self.client_partitions[client_id])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the client ids."""
        return iter(self.client_partitions)

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.client_partitions)

"""Client shards over one copy of the data set on disk.

Worker processes map its pages into memory. The samples of a client are copied when the client trains.
"""

import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.system.files import choose_write_remedy
from edgefl.base.types import Shard
from edgefl.data.dataset import Dataset
from edgefl.data.partitions.client_partition import ClientPartition, copy_shard
from edgefl.data.resident_shards import ResidentShards

_SAMPLES = ("x_train", "x_test")


class MappedShards(Mapping[str, Shard]):
    """Maps client ids to shards, over a directory that `map_dataset` has filled.

    It is cheap to send to another process.

    Args:
        directory: the directory with the samples as `.npy` files.
        dataset: the data set. Only its labels and groups are used.
    """

    def __init__(
        self, directory: Path, dataset: Dataset, client_partitions: Mapping[str, ClientPartition]
    ) -> None:
        self._directory = directory
        self._client_partitions = client_partitions
        empty = np.zeros(0, np.float32)
        self._labels = replace(dataset, x_train=empty, x_test=empty)
        self._dataset: Dataset | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the memory maps: the other process opens new ones."""
        return {**self.__dict__, "_dataset": None}

    @property
    def dataset(self) -> Dataset:
        """The data set with memory-mapped samples."""
        if self._dataset is None:
            maps = {name: np.load(self._directory / f"{name}.npy", mmap_mode="r") for name in _SAMPLES}
            self._dataset = replace(self._labels, **maps)
        return self._dataset

    def to_resident(self) -> ResidentShards:
        """Return the same shards with arrays instead of maps.

        Use it for processes that cannot read the directory.
        """
        samples = (np.asarray(self.dataset.x_train), np.asarray(self.dataset.x_test))
        return ResidentShards(
            replace(self.dataset, x_train=samples[0], x_test=samples[1]), self._client_partitions
        )

    def select_clients(self, client_ids: Iterable[str]) -> "MappedShards":
        """Return the shards of these clients only, over the same directory."""
        return MappedShards(
            self._directory,
            self._labels,
            {client_id: self._client_partitions[client_id] for client_id in client_ids},
        )

    def __getitem__(self, client_id: str) -> Shard:
        """Copy the samples of one client.

        The mapped pages are released afterwards. Otherwise a process would gradually hold the whole data set.

        Raises:
            KeyError: the client is unknown.
            DataError: the client partition does not fit the data set.
        """
        dataset = self.dataset
        shard = copy_shard(dataset, self._client_partitions[client_id])
        for samples in (dataset.x_train, dataset.x_test):
            mapped = getattr(samples, "_mmap", None)
            if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)
        return shard

    def __iter__(self) -> Iterator[str]:
        """Iterate over the client ids."""
        return iter(self._client_partitions)

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._client_partitions)


def map_dataset(
    dataset: Dataset, client_partitions: Mapping[str, ClientPartition], directory: Path
) -> MappedShards:
    """Write the samples to a directory as `.npy` files and return the shards over them.

    Args:
        directory: target directory, created if it is missing.

    Raises:
        DataError: a file cannot be written, for example because the disk is full.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in _SAMPLES:
        path = directory / f"{name}.npy"
        samples = getattr(dataset, name)
        try:
            np.save(path, samples)
        except OSError as error:
            remedy = choose_write_remedy(error, "free some space, or set TMPDIR")
            raise DataError(f"cannot write {samples.nbytes} bytes to {path}: {error}; {remedy}") from error
    return MappedShards(directory, dataset, client_partitions)

"""Data sets by name, one file a source; partitions share them out to clients."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from edgefl.config import DataConfig, nearest
from edgefl.data.allotment import Allotment, take
from edgefl.data.dataset import Dataset, subsample
from edgefl.data.registry import PARTITIONS, make_allotments
from edgefl.errors import DataError

__all__ = ["PARTITIONS", "Allotment", "Dataset", "load_data", "load_dataset", "make_allotments", "take"]

SOURCES = {"digits": "edgefl.data.digits", "fashion-mnist": "edgefl.data.fashion_mnist"}


def load_dataset(name: str, options: Mapping[str, Any] = {}) -> Dataset:
    """Return the data set of that name; DataError for an unknown name or missing files."""
    if name not in SOURCES:
        raise DataError(f"no data set {name!r}; {nearest(name, list(SOURCES))}")
    dataset: Dataset = import_module(SOURCES[name]).load()
    return dataset


def load_data(config: DataConfig, seed: int) -> Dataset:
    """Return the configured data set, or so many samples of it as are configured: drawn without replacement, by the seed."""
    dataset = load_dataset(config.name, config.options)
    if config.num_train or config.num_test:
        return subsample(dataset, config.num_train or len(dataset.y_train), config.num_test or len(dataset.y_test), seed)
    return dataset

"""Data sets, the partitions that deal them to clients, and the sources that a device reads."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from edgefl.config import DataConfig
from edgefl.data.dataset import Dataset, pick_classes, scale_dataset, subsample
from edgefl.data.datasets.catalog import (
    DATASETS,
    NPZ_PREFIX,
    find_dataset,
    import_loader,
    list_dataset_options,
    list_datasets,
)
from edgefl.data.forms import to_input_shape
from edgefl.data.options import fill_defaults
from edgefl.data.partitions.client_partition import ClientPartition, copy_shard
from edgefl.data.partitions.registry import PARTITIONS, make_client_partitions, make_shards

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "ClientPartition",
    "Dataset",
    "copy_shard",
    "list_datasets",
    "load_data",
    "load_dataset",
    "make_client_partitions",
    "make_shards",
]

DATA_KEYS = tuple(field.name for field in fields(DataConfig) if field.name != "options")
"""The keys of `[data]` that every data set has."""


def load_dataset(name: str, options: Mapping[str, Any] | None = None, seed: int = 1) -> Dataset:
    """Return the data set of that name (`edgefl datasets` lists them; `npz:PATH` is your own), its samples
    float32.

    seed: decides which samples of your own are held out, as the federation's seed does on a device.
    Raises DataError for an unknown name or files that are missing or damaged, ConfigError for an unknown
    option.
    """
    return scale_dataset(_load(name, options or {}, seed))


def load_data(
    config: DataConfig, seed: int, *, scale: bool = True, input_shape: tuple[int, ...] | None = None
) -> Dataset:
    """Return the configured data set, or so many samples of it as are configured: drawn without replacement,
    by the seed.

    scale: with False, pictures stay uint8, a quarter of the memory; `take` scales them then.
    input_shape: of the model; samples that lack the axis of their one channel, or have their channels first,
    get this shape.
    """
    dataset = _load(config.name, config.options, seed)
    if config.num_train or config.num_test:
        dataset = subsample(
            dataset, config.num_train or len(dataset.y_train), config.num_test or len(dataset.y_test), seed
        )
    if input_shape is not None:
        x_train, x_test = (to_input_shape(x, input_shape) for x in (dataset.x_train, dataset.x_test))
        dataset = replace(dataset, x_train=x_train, x_test=x_test)
    return scale_dataset(dataset) if scale else dataset


def _load(name: str, options: Mapping[str, Any], seed: int) -> Dataset:
    entry = find_dataset(name)
    full = fill_defaults(f"[data] {name}", list_dataset_options(entry), options, DATA_KEYS)
    classes = full.pop("classes")
    arguments = (name.removeprefix(NPZ_PREFIX), seed) if name.startswith(NPZ_PREFIX) else ()
    dataset: Dataset = import_loader(entry).load(*arguments, **full)
    return pick_classes(dataset, classes) if classes else dataset

"""Data sets, their partitions among clients, and the sample sources of devices."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from edgefl.base.config import DataConfig, SamplesConfig
from edgefl.base.errors import DataError
from edgefl.base.options import complete_options
from edgefl.data.dataset import Dataset, pick_classes, resize_pictures, scale_dataset, subsample
from edgefl.data.datasets.catalog import (
    DATASETS,
    NPZ_PREFIX,
    find_dataset,
    import_loader,
    list_dataset_options,
    list_datasets,
)
from edgefl.data.forms import to_input_shape
from edgefl.data.partitions.client_partition import ClientPartition, copy_shard
from edgefl.data.partitions.registry import PARTITIONS, make_client_partitions, make_shards
from edgefl.data.unit import check_unit

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
    """Load a data set by name.

    Args:
        name: a name that `edgefl datasets` lists, or `npz:PATH` for your own file.
        options: options of the data set. Missing options keep their defaults.
        seed: selects the held-out samples of an `npz:` data set, as the federation's seed does on a device.

    Returns:
        The data set. Its samples are float32.

    Raises:
        DataError: the name is unknown, or a file is missing or damaged.
        ConfigError: an option is unknown or has a value of the wrong type.
    """
    return scale_dataset(_load(name, options or {}, seed, None))


def load_data(
    config: DataConfig,
    seed: int,
    *,
    scale: bool = True,
    input_shape: tuple[int, ...] | None = None,
    samples: SamplesConfig | None = None,
) -> Dataset:
    """Load the configured data set, or a random subsample of it.

    Args:
        config: the table `[data]`. `num_train` and `num_test` above 0 draw that many samples without
            replacement.
        seed: random seed of the subsample and of the held-out samples of an `npz:` data set.
        scale: divide uint8 pictures, to float32. With False they stay uint8, which needs a quarter of the
            memory, and `copy_shard` divides them later.
        input_shape: input shape of the model, without the batch axis. Samples that lack a channel axis, or
            that have their channels first, are converted to this shape.
        samples: unit and layout of the federation, None without a federation.

    Raises:
        DataError: the name is unknown, a file is missing or damaged, or the samples do not fit the
            federation.
        ConfigError: an option is unknown or has a value of the wrong type.
    """
    dataset = _load(config.name, config.options, seed, samples)
    if config.num_train or config.num_test:
        dataset = subsample(
            dataset, config.num_train or len(dataset.y_train), config.num_test or len(dataset.y_test), seed
        )
    if input_shape is not None:
        x_train, x_test = (to_input_shape(x, input_shape) for x in (dataset.x_train, dataset.x_test))
        dataset = replace(dataset, x_train=x_train, x_test=x_test)
    return scale_dataset(dataset) if scale else dataset


def _load(name: str, options: Mapping[str, Any], seed: int, samples: SamplesConfig | None) -> Dataset:
    entry = find_dataset(name)
    full = complete_options(f"[data] {name}", list_dataset_options(entry), options, further_keys=DATA_KEYS)
    classes = full.pop("classes")
    resize = full.pop("resize")
    if resize and len(resize) != 2:
        raise DataError(f"resize is {list(resize)}, expected rows and columns such as [32, 32]")
    if classes and name.startswith(NPZ_PREFIX) and samples is not None and samples.classes:
        raise DataError(
            f"classes = {list(classes)} of [data] would number the classes again, which [samples] names "
            f"{', '.join(samples.classes[:20])}; remove one of the two, or write files of these classes with "
            f"`edgefl data split {name} -d classes={','.join(map(str, classes))}`"
        )
    arguments = (name.removeprefix(NPZ_PREFIX), seed, samples) if name.startswith(NPZ_PREFIX) else ()
    dataset: Dataset = import_loader(entry).load(*arguments, **full)
    dataset = pick_classes(dataset, classes) if classes else dataset
    if samples is not None and not name.startswith(NPZ_PREFIX):
        dataset = _choose_unit(name, dataset, samples)
    if not resize:
        return dataset
    x_train, x_test = (resize_pictures(x, *resize) for x in (dataset.x_train, dataset.x_test))
    return replace(dataset, x_train=x_train, x_test=x_test)


def _choose_unit(name: str, dataset: Dataset, samples: SamplesConfig) -> Dataset:
    """Return a data set of the catalog with the scale of a federation. Its floats are divided already."""
    is_divided = dataset.x_train.dtype != np.uint8
    dataset = replace(dataset, scale=1.0 if is_divided else float(samples.scale))
    arrays = {"x": dataset.x_train, "x_test": dataset.x_test}
    try:
        check_unit(arrays | ({"scale": np.asarray(1.0)} if is_divided else {}), samples)
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    return dataset

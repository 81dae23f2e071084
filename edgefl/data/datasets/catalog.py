"""The catalog of data sets: description, licence and origin of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from edgefl.config import suggest_nearest
from edgefl.data.datasets.fetch import find_file
from edgefl.data.options import read_defaults
from edgefl.errors import DataError

NPZ_PREFIX = "npz:"
"""Prefix of a data set name that is the path of your own file."""


@dataclass(frozen=True)
class DatasetEntry:
    """An entry of the catalog.

    Attributes:
        module: name of the module in `edgefl.data.datasets` that contains `load(*, options) -> Dataset`.
        about: description in one line.
        licence: licence of the data.
        home: where the data come from, and how to get them.
        files: files or folders to look for in `EDGEFL_DATA` and in the cache. One of them is enough.
    """

    module: str
    about: str
    licence: str
    home: str
    files: tuple[str, ...] = ()


DATASETS: Mapping[str, DatasetEntry] = {
    "digits": DatasetEntry(
        "digits",
        "UCI digits, 1,797 grey 8x8 enlarged to 28x28, 10 classes",
        "CC BY 4.0",
        "comes with scikit-learn",
    ),
    "fashion-mnist": DatasetEntry(
        "fashion_mnist",
        "Fashion-MNIST, 70,000 grey 28x28, 10 classes",
        "MIT",
        "apt-get install dataset-fashion-mnist, or fetched from github.com/zalandoresearch/fashion-mnist",
        (
            "fashion-mnist/train-images-idx3-ubyte.gz",
            "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz",
        ),
    ),
    "mnist-writers": DatasetEntry(
        "mnist_writers",
        "MNIST by writer, 60,000 grey 28x28, 10 classes",
        "QMNIST labels BSD, MNIST CC BY-SA 3.0",
        "fetched from github.com/facebookresearch/qmnist",
        ("mnist_writers.npz", "qmnist/qmnist-train-labels-idx2-int.gz"),
    ),
    "cifar10": DatasetEntry(
        "cifar10",
        "CIFAR-10, 60,000 colour 32x32, 10 classes",
        "not stated; for research",
        "fetched from www.cs.toronto.edu/~kriz (binary version)",
        ("cifar10.npz", "cifar-10-binary.tar.gz"),
    ),
    "cifar100": DatasetEntry(
        "cifar100",
        "CIFAR-100, 60,000 colour 32x32, 100 classes in 20 superclasses",
        "not stated; for research",
        "fetched from www.cs.toronto.edu/~kriz (binary version)",
        ("cifar-100-binary.tar.gz", "cifar100_20.npz"),
    ),
    "uci-har": DatasetEntry(
        "uci_har",
        "UCI HAR, 10,299 windows of 128 samples of 9 motion channels, 6 activities, by wearer",
        "CC BY 4.0",
        "fetched from archive.ics.uci.edu/dataset/240",
        ("uci_har.npz", "uci_har.zip"),
    ),
    "dermamnist": DatasetEntry(
        "dermamnist",
        "DermaMNIST (HAM10000), 10,015 colour 28x28, 7 skin lesions",
        "CC BY-NC 4.0",
        "fetched from zenodo.org/records/10519652",
        ("dermamnist.npz",),
    ),
    "femnist": DatasetEntry(
        "femnist",
        "FEMNIST, 805,263 grey 28x28, 62 digits and letters, by writer",
        "BSD 2-Clause (LEAF)",
        "made by LEAF's preprocess.sh; copy its data folder to $EDGEFL_DATA/femnist",
        ("femnist",),
    ),
    "npz:PATH": DatasetEntry(
        "npz_file",
        "your own .npz: x, y, optionally client, group, x_test, y_test, client_test",
        "yours",
        "numpy.savez(PATH, x=..., y=...)",
    ),
}


def find_dataset(name: str) -> DatasetEntry:
    """Return the catalog entry of a data set.

    Args:
        name: name of the data set, or `npz:PATH`.

    Raises:
        DataError: there is no such data set. The message suggests the nearest name.
    """
    key = "npz:PATH" if name.startswith(NPZ_PREFIX) else name
    if key not in DATASETS:
        raise DataError(f"no data set {name!r}; {suggest_nearest(name, list(DATASETS))}")
    return DATASETS[key]


def import_loader(entry: DatasetEntry) -> ModuleType:
    """Import the module that loads the data set."""
    return import_module(f"edgefl.data.datasets.{entry.module}")


def list_dataset_options(entry: DatasetEntry) -> dict[str, Any]:
    """Return the options of a data set with their defaults.

    Every data set has the option `classes`: the classes to keep, in their new order. An empty list keeps all
    classes.
    """
    return {**read_defaults(import_loader(entry).load), "classes": ()}


def list_datasets() -> list[dict[str, Any]]:
    """Return a row for each data set.

    Returns:
        Rows with `name`, `about`, `licence`, `home`, `options`, and `here`: whether the files are on this
        machine.
    """
    return [
        {
            "name": name,
            "about": entry.about,
            "licence": entry.licence,
            "home": entry.home,
            "options": list_dataset_options(entry),
            "here": not entry.files or any(find_file(file) for file in entry.files),
        }
        for name, entry in DATASETS.items()
    ]

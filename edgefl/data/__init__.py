"""Data sets by name; one file a source."""

from importlib import import_module

from edgefl.config import nearest
from edgefl.data.dataset import Dataset
from edgefl.errors import DataError

SOURCES = {"digits": "edgefl.data.digits", "fashion-mnist": "edgefl.data.fashion_mnist"}


def load_dataset(name: str) -> Dataset:
    """Return the data set of that name; DataError for an unknown name or missing files."""
    if name not in SOURCES:
        raise DataError(f"no data set {name!r}; {nearest(name, list(SOURCES))}")
    dataset: Dataset = import_module(SOURCES[name]).load()
    return dataset

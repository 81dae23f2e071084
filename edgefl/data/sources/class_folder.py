"""Reads a folder of classes, `DIR/CLASS/FILE`, or of samples without labels, `DIR/FILE`.

A file is one sample, and all samples have one shape. Files are `.npy`, `.png`, `.jpg` or `.wav`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.system.natural_order import make_natural_key
from edgefl.data.sources import CSV_REMEDY, DataSource, is_csv
from edgefl.data.sources.classes import number_classes, pack_class_names
from edgefl.data.sources.sample_files import PICTURE_SUFFIXES, SUFFIXES, Sample, read_sample

EXPECTED_LAYOUT = (
    f"expected DIR/CLASS/FILE, or DIR/FILE for samples without labels, with FILE one of {', '.join(SUFFIXES)}"
)


def read_class_folder(source: DataSource) -> dict[str, NDArray[Any]]:
    """Read the samples of a folder of classes, or of a folder of samples without labels.

    Files are read in natural order of their names, img9 before img10, and classes in alphabetical order.
    Names that begin with a dot are ignored. An empty class folder still counts as a class. In a folder
    without class folders, files of other kinds are ignored.

    Returns:
        `x`, and for a folder of classes `y`. If classes are numbered by name, also `class_names`: see
        `number_classes`. For sounds, `channels`, whose names contain their rate.

    Raises:
        DataError: there are no samples, samples lie beside class folders, a file cannot be read or has
            another shape, or class names are ambiguous.
    """
    folder = Path(source.data)
    visible = [path for path in _list_naturally(folder) if not path.name.startswith(".")]
    classes = sorted(path for path in visible if path.is_dir())
    if not classes and any(map(is_csv, visible)):
        raise DataError(f"{folder} holds CSV files; {CSV_REMEDY}")
    samples = [path for path in visible if path.suffix.lower() in SUFFIXES and not path.is_dir()]
    if samples and not classes:
        return _read_files(samples, source.resize)
    if samples:
        raise DataError(
            f"{folder} holds samples such as {samples[0].name} beside class folders such as "
            f"{classes[0].name}, expected one of them; move each sample into the folder of its class, or "
            "move the class folders away for samples without labels"
        )
    numbers, names = number_classes([path.name for path in classes], folder)
    files = [
        (path, numbers[class_folder.name])
        for class_folder in classes
        for path in _list_naturally(class_folder)
        if not path.name.startswith(".")
    ]
    if not files:
        raise DataError(f"{folder} holds no samples; {EXPECTED_LAYOUT}")
    return {
        **_read_files([path for path, _ in files], source.resize),
        "y": np.array([number for _, number in files]),
        **pack_class_names(names),
    }


def _list_naturally(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda path: make_natural_key(path.name))


def _read_files(files: Sequence[Path], size: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    first = read_sample(files[0], size)
    x = np.empty((len(files), *first.values.shape), first.values.dtype)
    for index, path in enumerate(files):
        sample = read_sample(path, size)
        if (sample.kind, sample.values.shape) != (first.kind, first.values.shape):
            raise DataError(
                f"{path} is {sample.kind} of shape {sample.values.shape}, expected {first.kind} of shape "
                f"{first.values.shape} like {files[0]}; {_suggest_remedy(path, sample, first)}"
            )
        x[index] = sample.values
    return {"x": x, **({"channels": np.array(first.channels)} if first.channels else {})}


def _suggest_remedy(path: Path, sample: Sample, first: Sample) -> str:
    if sample.kind != first.kind:
        return "a folder needs samples of one kind: convert them"
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        return "all samples need the same shape: cut or pad them"
    if sample.values.shape[2] != first.values.shape[2]:
        return "all pictures need the same channels: convert all of them to grey, or all of them to RGB"
    return "all samples need the same shape, resize them with --resize HxW"

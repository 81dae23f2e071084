"""Reads a folder of classes: `DIR/CLASS/FILE`, one sample per file, all of one shape.

Files are `.npy`, `.png`, `.jpg` or `.wav`.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.data.sources import DataSource
from edgefl.data.sources.classes import number_classes, pack_class_names
from edgefl.data.sources.sample_files import SUFFIXES, read_sample
from edgefl.errors import DataError

EXPECTED_LAYOUT = f"expected DIR/CLASS/FILE with FILE one of {', '.join(SUFFIXES)}"


def read_class_folder(source: DataSource) -> dict[str, NDArray[Any]]:
    """Read the samples of a folder of classes.

    Classes and files are read in order of their names. Names that begin with a dot are ignored. An empty
    class folder still counts as a class.

    Returns:
        `x`, `y` and, if classes are numbered by name, `class_names`: see `number_classes`.

    Raises:
        DataError: there are no samples, a file cannot be read or has another shape, or class names are
            ambiguous.
    """
    folder = Path(source.data)
    visible = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    classes = [path for path in visible if path.is_dir()]
    if not classes and any(path.suffix == ".csv" for path in visible):
        raise DataError(f"{folder} holds CSV files; add --window ROWS and --label COLUMN")
    numbers, names = number_classes([path.name for path in classes], folder)
    files = [
        (path, numbers[class_folder.name])
        for class_folder in classes
        for path in sorted(class_folder.iterdir())
        if not path.name.startswith(".")
    ]
    if not files:
        raise DataError(f"{folder} holds no samples; {EXPECTED_LAYOUT}")
    first = read_sample(files[0][0])
    x = np.empty((len(files), *first.values.shape), first.values.dtype)
    for index, (path, _) in enumerate(files):
        sample = read_sample(path)
        if (sample.kind, sample.values.shape) != (first.kind, first.values.shape):
            raise DataError(
                f"{path} is {sample.kind} of shape {sample.values.shape}, expected {first.kind} of shape "
                f"{first.values.shape} like {files[0][0]}; all samples need the same shape"
            )
        x[index] = sample.values
    return {"x": x, "y": np.array([number for _, number in files]), **pack_class_names(names)}

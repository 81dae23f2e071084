"""Arrays out of an `.npz` file; nothing is unpickled."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import DataError
from edgefl.types import Labels


def read_arrays(
    path: Path, names: tuple[str, ...], *, some: bool = False, remedy: str = "copy it again"
) -> dict[str, NDArray[Any]]:
    """Return the named arrays in the order of the names; `some`: those of them that are there.

    Raises DataError when the file cannot be read, holds objects, or lacks an array.
    """
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise DataError(
                f"{path} holds one bare array, expected an .npz with {' and '.join(names[:2])}; {remedy}"
            )
        with content as file:
            missing = [name for name in names if name not in file.files]
            if missing and not some:
                raise DataError(
                    f"{path} has no array {missing[0]}, received {', '.join(file.files) or 'none'}; {remedy}"
                )
            arrays = {name: file[name] for name in names if name not in missing}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):  # a member without the header of .npy comes as bytes
                raise ValueError(f"{name} is no array")
            if array.dtype.kind == "U":
                array.tolist()  # fails here, and not at first use, for code points that do not exist
        return arrays
    except DataError:
        raise
    except Exception as error:  # numpy, zipfile and zlib raise a dozen types for damaged archives
        raise DataError(f"{path} cannot be read as .npz: {explain_read_error(error)}; {remedy}") from error


def explain_read_error(error: Exception) -> str:
    """Return what NumPy's error means.

    NumPy advises to unpickle a file that it does not know, which would run code of that file.
    """
    if "Object arrays" in str(error):
        return "it holds Python objects, expected numbers"
    if "pickle" in str(error):
        return "it is no file of NumPy"
    return str(error)


def read_parts(path: Path) -> tuple[NDArray[Any], Labels, NDArray[Any], Labels]:
    """Return x_train, y_train, x_test, y_test."""
    x_train, y_train, x_test, y_test = read_arrays(path, ("x_train", "y_train", "x_test", "y_test")).values()
    return x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64)

"""Reads arrays from `.npz` files, without unpickling."""

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.system.host import read_total_memory_mb
from edgefl.base.types import Labels

HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(
    path: Path, names: tuple[str, ...], *, some: bool = False, remedy: str = "copy it again"
) -> dict[str, NDArray[Any]]:
    """Read named arrays from an `.npz` file.

    Args:
        names: names of the arrays to read.
        some: accept a file that lacks some of the arrays.
        remedy: last part of each error message.

    Returns:
        The arrays by name, in the order of `names`. With `some`, missing arrays are left out.

    Raises:
        DataError: the file cannot be read, contains Python objects, or lacks an array.
    """
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise DataError(
                f"{path} contains one bare array, expected an .npz with {' and '.join(names[:2])}; {remedy}"
            )
        with content as file:
            _check_sizes(path, [f"{name}.npy" for name in names if name in file.files])
            missing = [name for name in names if name not in file.files]
            if missing and not some:
                raise DataError(
                    f"{path} has no array {missing[0]}, received {', '.join(file.files) or 'none'}; {remedy}"
                )
            arrays = {name: file[name] for name in names if name not in missing}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):  # NumPy returns bytes for a member without an .npy header
                raise ValueError(f"{name} is not an array")
            if array.dtype.kind == "U":
                array.tolist()  # invalid code points fail here rather than at first use
        return arrays
    except DataError:
        raise
    except Exception as error:  # numpy, zipfile and zlib raise many types for damaged archives
        raise DataError(f"{path} cannot be read as .npz: {explain_read_error(error)}; {remedy}") from error


def _check_sizes(path: Path, members: list[str]) -> None:
    """Check that the arrays have the sizes that their headers name, and fit into the memory of this machine.

    NumPy asks for the memory that a header names before it reads the first value. A small file may also
    contain many gigabytes of zeros.

    Raises:
        ValueError: a header names another size than the array has, or the arrays need too much memory.
    """
    total = 0
    with zipfile.ZipFile(path) as archive:
        for info in (archive.getinfo(name) for name in members):
            with archive.open(info) as file:
                version = np.lib.format.read_magic(file)
                if version not in HEADER_READERS:
                    raise ValueError(
                        f"{info.filename} has version {version} of the format, expected 1.0 or 2.0"
                    )
                shape, _, dtype = HEADER_READERS[version](file)
                stated = math.prod(shape) * dtype.itemsize
                stored = info.file_size - file.seek(0, io.SEEK_CUR)
            if not dtype.hasobject and stated != stored:
                raise ValueError(f"the header of {info.filename} names {stated} bytes, it has {stored}")
            total += info.file_size
    memory = 1e6 * read_total_memory_mb()
    if total > memory:
        raise ValueError(f"its arrays have {total:.3g} bytes, this machine has {memory:.3g} bytes of memory")


def list_arrays(path: Path) -> list[str]:
    """Return the names of all arrays in an `.npz` file that `read_arrays` can read."""
    with np.load(path, allow_pickle=False) as file:
        return list(file.files)


def explain_read_error(error: Exception) -> str:
    """Return an explanation of an error that NumPy raised while it read a file.

    NumPy suggests unpickling an unknown file. That would run code from the file, so the suggestion is
    replaced.
    """
    if "Object arrays" in str(error):
        return "it contains Python objects, expected numbers, or texts such as y.astype(str)"
    if "pickle" in str(error):
        return "it is not a NumPy file"
    return str(error)


def read_parts(path: Path) -> tuple[NDArray[Any], Labels, NDArray[Any], Labels]:
    """Read `x_train`, `y_train`, `x_test` and `y_test` from an `.npz` file.

    Returns:
        Training samples, training labels, test samples and test labels. Samples keep their dtype, labels are
        int64.

    Raises:
        DataError: the file cannot be read or lacks an array.
    """
    x_train, y_train, x_test, y_test = read_arrays(path, ("x_train", "y_train", "x_test", "y_test")).values()
    return x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64)

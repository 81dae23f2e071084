"""Class numbers for classes that have names."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgefl.config import suggest_nearest
from edgefl.errors import DataError

CLASS_LIST_FILE = "classes.txt"


def read_class_list(path: Path) -> tuple[str, ...]:
    """Read a list of class names, one per line. The first name is class 0.

    Raises:
        DataError: the file cannot be read, is empty, or contains a name twice.
    """
    try:
        names = tuple(name for line in path.read_text("utf-8-sig").splitlines() if (name := line.strip()))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file: {error}; write one class name per line") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; write one class name per line") from error
    double = next((name for name in names if names.count(name) > 1), None)
    if double or not names:
        raise DataError(
            f"{path} {f'names {double!r} twice' if double else 'is empty'}; write each class name once, one "
            "per line"
        )
    return names


def number_classes(labels: Iterable[str], folder: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """Assign a class number to each class name.

    `classes.txt` in the folder defines the order. Without this file, names that are all whole numbers keep
    these numbers, and the list of names is empty. Other names are numbered in alphabetical order, so a board
    without samples of some class needs the file.

    Args:
        labels: class names, in any order and with repetitions.
        folder: the folder that may contain `classes.txt`.

    Returns:
        The number of each name, and the names of all classes in order.

    Raises:
        DataError: a name is not in the file, or two names are the same number.
    """
    names = sorted(set(labels))
    if (folder / CLASS_LIST_FILE).is_file():
        listed = read_class_list(folder / CLASS_LIST_FILE)
        if unknown := [name for name in names if name not in listed]:
            raise DataError(
                f"the class {unknown[0]!r} is not in {folder / CLASS_LIST_FILE}; "
                f"{suggest_nearest(unknown[0], list(listed))}"
            )
        return {name: listed.index(name) for name in names}, listed
    if all(name.isascii() and name.isdecimal() and len(name) < 10 for name in names):
        numbers = {name: int(name) for name in names}
        if len(set(numbers.values())) < len(numbers):
            raise DataError(
                f"the classes {', '.join(names)} contain the same number twice; write each number in one way"
            )
        return numbers, ()
    return {name: number for number, name in enumerate(names)}, tuple(names)


def pack_class_names(names: tuple[str, ...]) -> Mapping[str, NDArray[np.str_]]:
    """Return the class names as an array of a shard, or no array if there are no names."""
    return {"class_names": np.array(names)} if names else {}

"""Numbers for classes that have names."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgefl.config import suggest_nearest
from edgefl.errors import DataError

CLASS_LIST_FILE = "classes.txt"


def read_class_list(path: Path) -> tuple[str, ...]:
    """Return the names in a list, one a line, the first is class 0.

    DataError for a name that stands there twice, or none.
    """
    try:
        names = tuple(name for line in path.read_text("utf-8-sig").splitlines() if (name := line.strip()))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text: {error}; write one class name a line") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; write one class name a line") from error
    double = next((name for name in names if names.count(name) > 1), None)
    if double or not names:
        raise DataError(
            f"{path} {f'names {double!r} twice' if double else 'is empty'}; write each class name once, one "
            "a line"
        )
    return names


def number_classes(labels: Iterable[str], folder: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return each name's class number, and the names of all classes in order.

    `classes.txt` in the folder fixes the order. Without it, names that are all whole numbers are these
    numbers, and there is no list of names; other names are numbered in alphabetical order, so a board that
    lacks a class must have the list. DataError for a name that is not in the list, and for two names of one
    number.
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
            raise DataError(f"the classes {', '.join(names)} name a number twice; write each number one way")
        return numbers, ()
    return {name: number for number, name in enumerate(names)}, tuple(names)


def pack_class_names(names: tuple[str, ...]) -> Mapping[str, NDArray[np.str_]]:
    """Return the names as a shard's array, nothing when there are none."""
    return {"class_names": np.array(names)} if names else {}

"""Class numbers for classes that have names."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.options import suggest_nearest

CLASS_LIST_FILE = "classes.txt"
NUMBER = re.compile(r"[+-]?\d{1,20}([.,]\d{0,20})?([eE][+-]?\d{1,2})?", re.ASCII)
SEPARATED_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+", re.ASCII)
"""Labels such as 1,000, whose comma may separate thousands or a fraction, are names."""
WRITTEN_AS_FLOAT = re.compile("[.,eE]")
MISSING_LABELS = ("", "nan", "n/a", "#n/a", "<na>")
"""What programs write in place of a label."""
MAX_CLASS_NUMBER = 1e9
"""A label above is a name, such as a serial number."""


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
    these numbers, and the list of names is empty. 3.0 is the number 3, because spreadsheets write it so.
    Other names are numbered in alphabetical order.

    Args:
        labels: class names, in any order and with repetitions.
        folder: the folder that may contain `classes.txt`.

    Returns:
        The number of each name, and the names of all classes in order.

    Raises:
        DataError: a name is not in the file, two names are the same number, a number has a fraction, or a
            label is missing.
    """
    names = sorted(set(labels))
    values = {name: parse_number(name) for name in names}
    whole = {
        name: name if value is None or value != round(value) else f"{value:.0f}"
        for name, value in values.items()
    }
    if (folder / CLASS_LIST_FILE).is_file():
        listed = read_class_list(folder / CLASS_LIST_FILE)
        chosen = {
            name: whole[name] if name not in listed and WRITTEN_AS_FLOAT.search(name) else name
            for name in names
        }
        if unknown := [name for name in names if chosen[name] not in listed]:
            raise DataError(
                f"the class {unknown[0]!r} is not in {folder / CLASS_LIST_FILE}; "
                f"{suggest_nearest(unknown[0], list(listed))}"
            )
        return {name: listed.index(chosen[name]) for name in names}, listed
    if missing := next((name for name in names if name.strip().lower() in MISSING_LABELS), None):
        raise DataError(
            f"the label {missing!r} is no class; label these samples or remove them, or list it in "
            f"{folder / CLASS_LIST_FILE}"
        )
    if names and all(value is not None for value in values.values()):
        if fractions := [name for name in names if not whole[name].lstrip("-").isdecimal()]:
            raise DataError(
                f"the label {fractions[0]!r} is a number, but no class, expected whole numbers or names; "
                f"number the classes from 0, list them in {folder / CLASS_LIST_FILE}, or read them with "
                "--target as numbers to predict"
            )
        numbers = {name: int(whole[name]) for name in names}
        written = {whole[name] if WRITTEN_AS_FLOAT.search(name) else name for name in names}
        if len(set(numbers.values())) < len(written):
            raise DataError(
                f"the classes {', '.join(names)} contain the same number twice; write each number in one way"
            )
        return numbers, ()
    return {name: number for number, name in enumerate(names)}, tuple(names)


def parse_number(name: str) -> float | None:
    """Return the number that a name is, or None for another name."""
    if not NUMBER.fullmatch(name) or SEPARATED_THOUSANDS.fullmatch(name):
        return None
    value = float(name.replace(",", "."))
    return value if abs(value) < MAX_CLASS_NUMBER else None


def number_text_labels(arrays: Mapping[str, NDArray[Any]], folder: Path) -> dict[str, NDArray[Any]]:
    """Return arrays in which labels that are texts have class numbers, as in a CSV file.

    Args:
        arrays: the arrays of an `.npz` file or of a function. Other labels stay unchanged.
        folder: the folder that may contain `classes.txt`.

    Raises:
        DataError: as in `number_classes`.
    """
    try:
        texts = {
            part: (stored if stored.dtype.kind == "U" else np.char.decode(stored, "utf-8")).ravel()
            for part in ("y", "y_test")
            if (stored := arrays.get(part)) is not None
            and stored.dtype.kind in "US"
            and stored.ndim > 0
            and stored.size == len(stored)
        }
    except UnicodeDecodeError as error:
        raise DataError(f"the labels are no texts in UTF-8: {error}; store them as y.astype(str)") from error
    if not texts:
        return dict(arrays)
    if others := [part for part in ("y", "y_test") if part in arrays and part not in texts]:
        raise DataError(
            f"{next(iter(texts))} holds texts and {others[0]} {arrays[others[0]].dtype}, expected names or "
            "numbers in both; store the labels of both parts alike"
        )
    labels = {part: [text.strip() for text in values.tolist()] for part, values in texts.items()}
    numbers, names = number_classes([text for values in labels.values() for text in values], folder)
    numbered = {
        part: np.array([numbers[text] for text in values], np.int64) for part, values in labels.items()
    }
    return {**arrays, **numbered, **pack_class_names(names)}


def pack_class_names(names: tuple[str, ...]) -> Mapping[str, NDArray[np.str_]]:
    """Return the class names as an array of a shard, or no array if there are no names."""
    return {"class_names": np.array(names)} if names else {}

"""Your own data set: an `.npz` with x, y, optionally client, and optionally x_test, y_test, client_test.

Named `npz:PATH`.

`npz:PATH,PATH,...` is one data set of several devices' files, each of them a group: the partition `group`
makes a client of each.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.data.arrays import read_arrays
from edgefl.data.dataset import Dataset
from edgefl.data.datasets.held_out import hold_out_last
from edgefl.data.forms import to_training_form
from edgefl.data.npz import FIX, check_lengths, labels_of, num_classes_of, samples_of
from edgefl.errors import DataError
from edgefl.rng import rng_for
from edgefl.types import Labels

NAMES = ("x", "y", "client", "x_test", "y_test", "client_test", "num_classes")


def load(path: str, *, test_share: float = 0.2) -> Dataset:
    """Return a data set. uint8 samples are scaled to [0, 1]; other samples stay as they are.

    client: whose each sample is, whole numbers or names; they become groups. Without x_test, `test_share` is
    held out: the last samples of each client, or, where no clients are named, samples drawn once and for all.
    Raises DataError for what cannot be used.
    """
    if "," in path and not Path(path).exists():
        return _joined([load(each, test_share=test_share) for each in path.split(",")], path.split(","))
    if not Path(path).is_file():
        raise DataError(f"no data set at {path}; {FIX}")
    arrays, _ = to_training_form(read_arrays(Path(path), NAMES, some=True, remedy=FIX))
    try:
        x = samples_of(arrays, "")
        y = labels_of(arrays, "")
        check_lengths(x, y, "")
        group = _groups(arrays, "", len(y))
        if "x_test" not in arrays and "y_test" not in arrays:
            order = group if group is not None else np.zeros(len(y), np.int64)
            time = None if group is not None else rng_for(0, 0, "own").permutation(len(y))
            train, test = hold_out_last(order, test_share, time)
            if not len(test):
                raise DataError(
                    "one sample a client, expected two or more: some are held out to measure on; give "
                    "x_test and y_test"
                )
            groups = (None, None) if group is None else (group[train], group[test])
            return Dataset(
                x[train], y[train], x[test], y[test], num_classes_of(arrays, None, int(y.max())), *groups
            )
        x_test = samples_of(arrays, "_test")
        y_test = labels_of(arrays, "_test")
        check_lengths(x_test, y_test, "_test")
        if x_test.shape[1:] != x.shape[1:]:
            raise DataError(f"x_test is {x_test.shape[1:]} a sample, expected {x.shape[1:]} as in x")
        count = num_classes_of(arrays, None, int(max(y.max(), y_test.max())))
        group, group_test = _numbered(arrays, len(y), len(y_test))
        return Dataset(x, y, x_test, y_test, count, group, group_test)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _joined(parts: Sequence[Dataset], paths: Sequence[str]) -> Dataset:
    for part, path in zip(parts, paths, strict=True):
        if part.x_train.shape[1:] != parts[0].x_train.shape[1:]:
            raise DataError(
                f"{path} has samples of {part.x_train.shape[1:]}, {paths[0]} of "
                f"{parts[0].x_train.shape[1:]}; expected one shape"
            )
    joined = [
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("x_train", "y_train", "x_test", "y_test")
    ]
    group, group_test = (
        np.repeat(np.arange(len(parts), dtype=np.int64), [len(getattr(part, name)) for part in parts])
        for name in ("y_train", "y_test")
    )
    x, y, x_test, y_test = joined
    return Dataset(x, y, x_test, y_test, max(part.num_classes for part in parts), group, group_test)


def _groups(arrays: dict[str, NDArray[Any]], part: str, count: int) -> Labels | None:
    names = arrays.get(f"client{part}")
    if names is None:
        return None
    if names.shape != (count,) or names.dtype.kind not in "iuU":
        raise DataError(
            f"client{part} is {names.dtype}{list(names.shape)}, expected {count} whole numbers or names, one "
            "a sample"
        )
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _numbered(
    arrays: dict[str, NDArray[Any]], count: int, count_test: int
) -> tuple[Labels | None, Labels | None]:
    """Number the clients of both parts alike."""
    if _groups(arrays, "", count) is None or _groups(arrays, "_test", count_test) is None:
        return None, None
    both = {"client": np.concatenate([arrays["client"], arrays["client_test"]])}
    numbers = _groups(both, "", count + count_test)
    return (None, None) if numbers is None else (numbers[:count], numbers[count:])

"""A client's shard as one `.npz`: `x` and `y`, and optionally `group`, `x_test`, `y_test`, `num_classes`.

And shards out of arrays.

`edgefl device record` also writes `class_names`, `window_number`, `recording` and `first_row`: see
`num_classes_of` and `edgefl.data.train_test.split_ring`.
"""

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.data.arrays import read_arrays
from edgefl.data.forms import to_input_shape, to_training_form
from edgefl.data.recordings import (
    Recordings,
    cut_recordings,
    find_overlapping_rows,
    find_recordings,
    join_groups,
)
from edgefl.data.split import BY_FILE, SplitRecord
from edgefl.data.train_test import TrainTestSplit, split_ring, split_train_test
from edgefl.errors import DataError
from edgefl.rng import derive_rng
from edgefl.system.files import SECRET_MODE, write_atomic
from edgefl.types import Array, Labels, Shard

RING_ARRAYS = ("window_number", "recording", "first_row")
SHARD_ARRAYS = ("x", "y", "group", "x_test", "y_test", "num_classes", "class_names", *RING_ARRAYS)
SAVEZ_REMEDY = "write it with numpy.savez(path, x=..., y=...)"


def load_shard(
    path: Path, *, seed: int = 1, test_share: float = 0.2, num_classes: int | None = None
) -> Shard:
    """Read a shard. uint8 samples are scaled to [0, 1]; other samples stay as they are, shapes too.

    Without `x_test`, a share of the samples is held out: always the same ones for the same seed and the same
    file, on every device; `edgefl.data.train_test.split_train_test` says which ones. `num_classes` is
    taken from the argument, else from the file, else it is the largest label + 1.
    Raises DataError when the file cannot be read or trained on: it says what was expected and what to do.
    """
    return make_shard(
        read_shard(Path(path)), str(path), seed=seed, test_share=test_share, num_classes=num_classes
    )


def make_shard(
    arrays: Mapping[str, NDArray[Any]],
    where: str,
    *,
    seed: int = 1,
    test_share: float = 0.2,
    num_classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> Shard:
    """Return the arrays of a `.npz` or of another source as a shard; see `load_shard`.

    `where` begins each error. Other forms that have one meaning are accepted: see `edgefl.data.forms`.
    `input_shape` is the shape of the model's input, or None where it is not known.
    """
    return make_shard_and_split(
        arrays,
        where,
        seed=seed,
        test_share=test_share,
        num_classes=num_classes,
        input_shape=input_shape,
    )[0]


def make_shard_and_split(
    arrays: Mapping[str, NDArray[Any]],
    where: str,
    *,
    seed: int = 1,
    test_share: float = 0.2,
    num_classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    count_overlapping: bool = False,
) -> tuple[Shard, SplitRecord]:
    """Return the shard of `make_shard`, and the note of how its test samples were held out.

    With `count_overlapping`, the note says how many windows of the file's `x_test` overlap training windows.
    The search needs memory for a copy of all samples.
    """
    overlapping = 0
    try:
        arrays, _ = to_training_form(arrays)
        x = read_sample_array(arrays, "")
        y = read_label_array(arrays, "")
        check_lengths(x, y, "")
        group = read_group_array(arrays, len(y))
        if "x_test" in arrays or "y_test" in arrays:
            x_test = read_sample_array(arrays, "_test")
            y_test = read_label_array(arrays, "_test")
            check_lengths(x_test, y_test, "_test")
            if x_test.shape[1:] != x.shape[1:]:
                raise DataError(f"x_test is {x_test.shape[1:]} a sample, expected {x.shape[1:]} as in x")
            rule = BY_FILE
            rows, group = choose_training_rows(x, y, group)
            x, y = x[rows], y[rows]
            overlapping = len(find_overlapping_rows(x_test, x)) if count_overlapping else 0
        else:
            train_test = split_arrays(arrays, x, y, group, test_share, seed)
            rule, train, test, group = train_test.rule, train_test.train, train_test.test, train_test.group
            x, y, x_test, y_test = x[train], y[train], x[test], y[test]
        if input_shape is not None:
            x, x_test = (to_input_shape(samples, input_shape) for samples in (x, x_test))
        count = find_num_classes(arrays, num_classes, int(max(y.max(), y_test.max())))
        shard = Shard(x, y, x_test, y_test, count, group_train=group)
        return shard, SplitRecord(rule, seed, len(y), len(y_test), overlapping)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def save_shard(path: Path, shard: Shard) -> None:
    """Write a shard that `load_shard` reads back bit for bit."""
    write_atomic(path, encode_shard(shard), SECRET_MODE)


def encode_shard(shard: Shard) -> bytes:
    """Return the content of the file that `save_shard` writes."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        "x": shard.x_train,
        "y": shard.y_train,
        "x_test": shard.x_test,
        "y_test": shard.y_test,
        "num_classes": np.int64(shard.num_classes),
    }
    if shard.group_train is not None:
        arrays["group"] = shard.group_train
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def read_shard(path: Path) -> dict[str, NDArray[Any]]:
    """Return a shard's arrays as they lie in the file; DataError when it is no `.npz`."""
    if not path.is_file():
        raise DataError(f"no shard at {path}; {SAVEZ_REMEDY}")
    return read_arrays(path, SHARD_ARRAYS, some=True, remedy=SAVEZ_REMEDY)


def read_sample_array(arrays: Mapping[str, NDArray[Any]], part: str) -> Array:
    """Return x, x_test as float32; DataError for what is not pictures or finite floats."""
    if f"x{part}" not in arrays:
        raise DataError(f"there is no array x{part}, received {', '.join(arrays) or 'none'}; {SAVEZ_REMEDY}")
    x = arrays[f"x{part}"]
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise DataError(
            f"x{part} is {x.dtype}, expected uint8 pictures or floats; convert it with x.astype('float32')"
        )
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(
            f"x{part} has shape {x.shape}, expected (samples, ...) with at least one value a sample"
        )
    with np.errstate(over="ignore"):
        samples: Array = np.ascontiguousarray(x, np.float32)
    if x.dtype == np.uint8:
        samples /= np.float32(255)  # in place: it is a copy already
    bad = ~np.isfinite(samples).reshape(len(samples), -1).all(axis=1) if len(samples) else np.zeros(0, bool)
    if bad.any():
        raise DataError(
            f"x{part} holds NaN or infinite values in {bad.sum()} of {len(x)} samples, first at "
            f"{bad.argmax()}; clean it"
        )
    return samples


def read_label_array(arrays: Mapping[str, NDArray[Any]], part: str) -> Labels:
    """Return y, y_test as int64; DataError for what is not whole numbers from 0."""
    if f"y{part}" not in arrays:
        raise DataError(f"there is no array y{part}, received {', '.join(arrays) or 'none'}; {SAVEZ_REMEDY}")
    y = arrays[f"y{part}"]
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise DataError(
            f"y{part} is {y.dtype}{list(y.shape)}, expected whole numbers of shape [samples]; "
            f"{_suggest_label_remedy(y)}"
        )
    if len(y) and int(y.min()) < 0:
        raise DataError(f"y{part} holds the label {y.min()}, expected 0 or more; number the classes from 0")
    return y.astype(np.int64)


def _suggest_label_remedy(y: NDArray[Any]) -> str:
    if y.dtype.kind not in "iufb":
        return "number the classes from 0"
    if y.ndim == 2 and y.shape[1] > 1:
        return "if it holds a score for each class, y.argmax(1) gives the numbers"
    broken = ~np.isfinite(y) | (y != np.round(y))
    if broken.any():
        return (
            f"it holds {y[broken][0]:g}, which is no class: number the classes from 0 (edgefl trains "
            "classifiers, no regression)"
        )
    return "give one whole number for each sample"


def check_lengths(x: Array, y: Labels, part: str) -> None:
    """Raise DataError unless there is one label a sample, and one sample at least."""
    if len(x) != len(y):
        raise DataError(
            f"x{part} has {len(x)} samples and y{part} {len(y)} labels, expected as many; a shard needs one "
            "label a sample"
        )
    if len(y) == 0:
        raise DataError(
            f"x{part} is empty, expected at least one sample; collect data before this device joins"
        )


def read_group_array(arrays: Mapping[str, NDArray[Any]], count: int) -> Labels | None:
    """Return `group` as int64[count], numbered in sorted order; None when there is none."""
    names = arrays.get("group")
    if names is None:
        return None
    if names.shape != (count,) or names.dtype.kind not in "iuUS":
        raise DataError(
            f"group is {names.dtype}{list(names.shape)}, expected {count} whole numbers or names, one a "
            "sample: the recording that it was cut from"
        )
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def choose_training_rows(x: Array, y: Labels, group: Labels | None) -> tuple[Labels, Labels | None]:
    """Return the rows of a client to train on when its file has test samples.

    Groups whose windows overlap become one group. Without groups, windows that overlap are a recording. A
    recording is cut where a class has too few recordings, and windows that overlap the cut are left out.

    Args:
        x: float32[n, *input_shape].
        y: int64[n].
        group: int64[n] or None.

    Returns:
        Sorted rows, int64[m], and the recording of each of them, int64[m]. The recording is None without
        groups and without windows that overlap.
    """
    all_rows = np.arange(len(y), dtype=np.int64)
    recordings = find_recordings(x)
    if recordings is None:
        return all_rows, group
    if group is not None:
        return all_rows, join_groups(group, recordings.group)
    rows, pieces = cut_recordings(y, recordings)
    return rows, pieces.group


def split_arrays(
    arrays: Mapping[str, NDArray[Any]], x: Array, y: Labels, group: Labels | None, share: float, seed: int
) -> TrainTestSplit:
    """Return which samples are held out, by all that the arrays know of their recordings.

    Args:
        arrays: `window_number`, `recording` and `first_row` of a ring, `recording` and `first_row` of a
            source that cut recordings into windows, or none of them.
        x: float32[n, *input_shape].
        y: int64[n].
        group: int64[n] or None.
        share: share of the samples to hold out.
        seed: decides between groups.
    """
    rng = derive_rng(seed, 0, "split:")
    for name in RING_ARRAYS:
        if name in arrays and (arrays[name].shape != y.shape or arrays[name].dtype.kind not in "iu"):
            raise DataError(
                f"{name} is {arrays[name].dtype}{list(arrays[name].shape)}, expected {len(y)} whole numbers; "
                f"{SAVEZ_REMEDY}"
            )
    recordings = None
    if "recording" in arrays and "first_row" in arrays:
        recordings = Recordings(
            arrays["recording"].astype(np.int64), arrays["first_row"].astype(np.int64), x.shape[1]
        )
    if "window_number" not in arrays:
        return split_train_test(x, y, share, rng, group=group, recordings=recordings)
    if recordings is not None:
        return split_ring(recordings, share, rng)
    # a ring of an earlier version: its windows count as following on one another
    number = arrays["window_number"].astype(np.int64)
    recordings = Recordings(np.zeros(len(y), np.int64), number * x.shape[1], x.shape[1])
    train_test = split_ring(recordings, share, rng)
    overlaps = find_recordings(x)
    if overlaps is None:
        return train_test
    apart = ~overlaps.find_overlapping(train_test.test)[train_test.train]
    return replace(train_test, train=train_test.train[apart], group=train_test.group[apart])


def find_num_classes(arrays: Mapping[str, NDArray[Any]], configured: int | None, largest: int) -> int:
    """Return the number of classes: given, else stored, else the largest label + 1.

    DataError for a larger label, and when `class_names` are not as many as given: labels that were numbered
    by name are then another board's numbers only if both boards numbered the same names.
    """
    stored = arrays.get("num_classes")
    if stored is not None and (stored.size != 1 or stored.dtype.kind not in "iu"):
        raise DataError(f"num_classes is {stored.dtype}{list(stored.shape)}, expected one whole number")
    count = (
        configured if configured is not None else int(stored.item()) if stored is not None else largest + 1
    )
    if largest >= count:
        raise DataError(
            f"the label {largest} is in the shard, expected 0 to {count - 1} for {count} classes; is it of "
            "another task?"
        )
    names = arrays.get("class_names")
    if configured is not None and names is not None and names.size != configured:
        raise DataError(
            f"the classes here are {names.size} ({', '.join(map(str, names.ravel()[:20]))}), the federation "
            f"has {configured}; list the names of all {configured} in one order on every board, one a "
            f"line, in "
            "classes.txt, also those that this board has no samples of"
        )
    return count

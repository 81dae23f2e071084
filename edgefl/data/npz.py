"""A client's shard as one `.npz`: `x` and `y`, and optionally `group`, `x_test`, `y_test`, `num_classes`.

And shards out of arrays.

`edgefl device record` also writes `class_names`, `window_number`, `recording` and `first_row`: see
`num_classes_of` and `edgefl.data.train_test.divide_ring`.
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
from edgefl.data.recordings import Recordings, cut, find_recordings, join, overlapping_rows
from edgefl.data.split import BY_FILE, Split
from edgefl.data.train_test import TrainTest, divide, divide_ring
from edgefl.errors import DataError
from edgefl.rng import rng_for
from edgefl.system.files import SECRET, write_atomic
from edgefl.types import Array, Labels, Shard

RING = ("window_number", "recording", "first_row")
NAMES = ("x", "y", "group", "x_test", "y_test", "num_classes", "class_names", *RING)
FIX = "write it with numpy.savez(path, x=..., y=...)"


def load_shard(
    path: Path, *, seed: int = 1, test_share: float = 0.2, num_classes: int | None = None
) -> Shard:
    """Read a shard. uint8 samples are scaled to [0, 1]; other samples stay as they are, shapes too.

    Without `x_test`, a share of the samples is held out: always the same ones for the same seed and the same
    file, on every device; `edgefl.data.train_test.divide` says which ones. `num_classes` is taken from the
    argument, else from the file, else it is the largest label + 1.
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
) -> tuple[Shard, Split]:
    """Return the shard of `make_shard`, and the note of how its test samples were held out.

    With `count_overlapping`, the note says how many windows of the file's `x_test` overlap training windows.
    The search needs memory for a copy of all samples.
    """
    overlapping = 0
    try:
        arrays, _ = to_training_form(arrays)
        x = samples_of(arrays, "")
        y = labels_of(arrays, "")
        check_lengths(x, y, "")
        group = groups_of(arrays, len(y))
        if "x_test" in arrays or "y_test" in arrays:
            x_test = samples_of(arrays, "_test")
            y_test = labels_of(arrays, "_test")
            check_lengths(x_test, y_test, "_test")
            if x_test.shape[1:] != x.shape[1:]:
                raise DataError(f"x_test is {x_test.shape[1:]} a sample, expected {x.shape[1:]} as in x")
            rule = BY_FILE
            rows, group = training_rows(x, y, group)
            x, y = x[rows], y[rows]
            overlapping = len(overlapping_rows(x_test, x)) if count_overlapping else 0
        else:
            division = divide_arrays(arrays, x, y, group, test_share, seed)
            rule, train, test, group = division.rule, division.train, division.test, division.group
            x, y, x_test, y_test = x[train], y[train], x[test], y[test]
        if input_shape is not None:
            x, x_test = (to_input_shape(each, input_shape) for each in (x, x_test))
        count = num_classes_of(arrays, num_classes, int(max(y.max(), y_test.max())))
        shard = Shard(x, y, x_test, y_test, count, group_train=group)
        return shard, Split(rule, seed, len(y), len(y_test), overlapping)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def save_shard(path: Path, shard: Shard) -> None:
    """Write a shard that `load_shard` reads back bit for bit."""
    write_atomic(path, encode_shard(shard), SECRET)


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
        raise DataError(f"no shard at {path}; {FIX}")
    return read_arrays(path, NAMES, some=True, remedy=FIX)


def samples_of(arrays: Mapping[str, NDArray[Any]], part: str) -> Array:
    """Return x, x_test as float32; DataError for what is not pictures or finite floats."""
    if f"x{part}" not in arrays:
        raise DataError(f"there is no array x{part}, received {', '.join(arrays) or 'none'}; {FIX}")
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


def labels_of(arrays: Mapping[str, NDArray[Any]], part: str) -> Labels:
    """Return y, y_test as int64; DataError for what is not whole numbers from 0."""
    if f"y{part}" not in arrays:
        raise DataError(f"there is no array y{part}, received {', '.join(arrays) or 'none'}; {FIX}")
    y = arrays[f"y{part}"]
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise DataError(
            f"y{part} is {y.dtype}{list(y.shape)}, expected whole numbers of shape [samples]; "
            f"{_label_remedy(y)}"
        )
    if len(y) and int(y.min()) < 0:
        raise DataError(f"y{part} holds the label {y.min()}, expected 0 or more; number the classes from 0")
    return y.astype(np.int64)


def _label_remedy(y: NDArray[Any]) -> str:
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


def groups_of(arrays: Mapping[str, NDArray[Any]], count: int) -> Labels | None:
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


def training_rows(x: Array, y: Labels, group: Labels | None) -> tuple[Labels, Labels | None]:
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
    every = np.arange(len(y), dtype=np.int64)
    found = find_recordings(x)
    if found is None:
        return every, group
    if group is not None:
        return every, join(group, found.group)
    rows, pieces = cut(y, found)
    return rows, pieces.group


def divide_arrays(
    arrays: Mapping[str, NDArray[Any]], x: Array, y: Labels, group: Labels | None, share: float, seed: int
) -> TrainTest:
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
    rng = rng_for(seed, 0, "split:")
    for name in RING:
        if name in arrays and (arrays[name].shape != y.shape or arrays[name].dtype.kind not in "iu"):
            raise DataError(
                f"{name} is {arrays[name].dtype}{list(arrays[name].shape)}, expected {len(y)} whole numbers; "
                f"{FIX}"
            )
    recordings = None
    if "recording" in arrays and "first_row" in arrays:
        recordings = Recordings(
            arrays["recording"].astype(np.int64), arrays["first_row"].astype(np.int64), x.shape[1]
        )
    if "window_number" not in arrays:
        return divide(x, y, share, rng, group=group, recordings=recordings)
    if recordings is not None:
        return divide_ring(recordings, share, rng)
    # a ring of an earlier version: its windows count as following on one another
    number = arrays["window_number"].astype(np.int64)
    recordings = Recordings(np.zeros(len(y), np.int64), number * x.shape[1], x.shape[1])
    division = divide_ring(recordings, share, rng)
    found = find_recordings(x)
    if found is None:
        return division
    apart = ~found.overlapping(division.test)[division.train]
    return replace(division, train=division.train[apart], group=division.group[apart])


def num_classes_of(arrays: Mapping[str, NDArray[Any]], given: int | None, largest: int) -> int:
    """Return the number of classes: given, else stored, else the largest label + 1.

    DataError for a larger label, and when `class_names` are not as many as given: labels that were numbered
    by name are then another board's numbers only if both boards numbered the same names.
    """
    stored = arrays.get("num_classes")
    if stored is not None and (stored.size != 1 or stored.dtype.kind not in "iu"):
        raise DataError(f"num_classes is {stored.dtype}{list(stored.shape)}, expected one whole number")
    count = given if given is not None else int(stored.item()) if stored is not None else largest + 1
    if largest >= count:
        raise DataError(
            f"the label {largest} is in the shard, expected 0 to {count - 1} for {count} classes; is it of "
            "another task?"
        )
    names = arrays.get("class_names")
    if given is not None and names is not None and names.size != given:
        raise DataError(
            f"the classes here are {names.size} ({', '.join(map(str, names.ravel()[:20]))}), the federation "
            f"has {given}; list the names of all {given} in one order on every board, one a line, in "
            "classes.txt, also those that this board has no samples of"
        )
    return count

"""Reads and writes the shard of a client as one `.npz` file, and makes shards from arrays.

A shard file contains `x` and, unless the task is to find anomalies, `y`. Optionally it contains `group`,
`x_test`, `y_test`, `num_classes` and `scale`, the number that divides `x`. `edgefl device record` also writes
`class_names`, `window_number`, `recording` and `first_row`: see `find_num_classes` and
`edgefl.data.train_test.split_ring`.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.system.files import SECRET_MODE, write_atomic
from edgefl.base.system.format import shorten_names
from edgefl.base.system.natural_order import make_natural_key
from edgefl.base.tasks.samples import SamplesConfig, is_scale
from edgefl.base.types import Array, Labels, Shard
from edgefl.data.arrays import list_arrays, read_arrays
from edgefl.data.forms import PART_SUFFIXES, has_label_arrays, split_targets, to_input_shape, to_training_form
from edgefl.data.recordings import (
    Recordings,
    cut_recordings,
    find_overlapping_rows,
    find_recordings,
    join_groups,
)
from edgefl.data.split import BY_FILE, SplitRecord
from edgefl.data.train_test import TrainTestSplit, merge_scattered_labels, split_ring, split_train_test
from edgefl.data.unit import check_unit, to_federation_classes

RING_ARRAYS = ("window_number", "recording", "first_row")
TARGET_ARRAYS = ("target", "target_test")
CLIENT_ARRAYS = ("client", "client_test")
"""Arrays of a data set with several clients. A device ignores them."""
NAME_ARRAYS = ("class_names", "channel_names", "group", *CLIENT_ARRAYS)
"""Arrays whose texts may be stored as bytes in UTF-8."""
LABEL_NAMES = ("label", "labels", "class", "classes", "target", "targets", "y_train")
"""Names that others give to the array `y`."""
SHARD_ARRAYS = (
    "x",
    "y",
    "group",
    "x_test",
    "y_test",
    "num_classes",
    "class_names",
    "channel_names",
    "scale",
    *RING_ARRAYS,
)
SAVEZ_REMEDY = "write it with numpy.savez(path, x=..., y=...)"


def load_shard(
    path: Path, *, seed: int = 1, test_share: float = 0.2, num_classes: int | None = None
) -> Shard:
    """Read the shard of a client from an `.npz` file.

    uint8 samples are divided by 255, unless the file states another `scale`. Floats keep their values. All
    samples keep their shape. If the file has no `x_test`, a share of the samples is held out. The same seed
    and the same file give the same held-out samples on every device: see
    `edgefl.data.train_test.split_train_test`.

    Args:
        test_share: share of the samples to hold out, between 0 and 1.
        num_classes: number of classes. None uses the number in the file, or else the largest label + 1.

    Raises:
        DataError: the file cannot be read or cannot be used for training.
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
    """Make a shard from the arrays of an `.npz` file or of another source.

    Other array forms with a single meaning are accepted too: see `edgefl.data.forms`.

    Args:
        arrays: the arrays by name, as in `SHARD_ARRAYS`.
        where: name of the source, the first part of each error message.
        test_share: share of the samples to hold out if there is no `x_test`, between 0 and 1.
        num_classes: number of classes. None uses the number in the arrays, or else the largest label + 1.
        input_shape: input shape of the model, None if unknown.

    Raises:
        DataError: the arrays cannot be used for training.
    """
    return make_samples(
        arrays,
        where,
        seed=seed,
        test_share=test_share,
        num_classes=num_classes,
        input_shape=input_shape,
    ).shard


@dataclass(frozen=True)
class LoadedSamples:
    """The samples of a source in the form of training.

    Attributes:
        shard: the samples, divided into training and test samples.
        split: the record of this division.
        changes: one sentence for each conversion of the stored arrays.
    """

    shard: Shard
    split: SplitRecord
    changes: tuple[str, ...] = ()


def make_samples(
    arrays: Mapping[str, NDArray[Any]],
    where: str,
    *,
    samples: SamplesConfig | None = None,
    scale: float = 0.0,
    seed: int = 1,
    test_share: float = 0.2,
    num_classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    count_overlapping: bool = False,
    any_task: bool = False,
) -> LoadedSamples:
    """Make a shard from stored arrays, in the unit and layout of a federation.

    Every command that reads samples calls this function.

    Args:
        arrays: the stored arrays by name, as in `SHARD_ARRAYS`.
        where: name of the source, the first part of each error message.
        samples: unit and layout of the federation. None without a federation: labels may then have names.
        scale: scale that the owner of the samples states. 0 states none.
        test_share: share of the samples to hold out if there is no `x_test`, between 0 and 1.
        num_classes: number of classes. None uses the number in the arrays, or else the largest label + 1.
        input_shape: input shape of the model, None if unknown.
        count_overlapping: count the windows of `x_test` that overlap training windows. This needs memory for
            a copy of all samples.
        any_task: accept samples without labels, and labels that are no classes, see
            `edgefl.data.forms.split_targets`.

    Raises:
        DataError: the arrays cannot be used for training, or do not fit the federation.
    """
    overlapping = 0
    try:
        has_labels = has_label_arrays(arrays)
        if samples is not None:
            check_unit(arrays, samples, scale)
        arrays, changes = to_training_form(split_targets(arrays) if any_task else arrays, samples, scale)
        if samples is not None:
            arrays = to_federation_classes(arrays, samples)
        x = read_sample_array(arrays, "")
        y = read_label_array(arrays, "")
        check_lengths(x, y, "")
        group = read_group_array(arrays, len(y))
        target, target_test = (read_target_array(arrays, name) for name in TARGET_ARRAYS)
        if "x_test" in arrays or "y_test" in arrays:
            x_test = read_sample_array(arrays, "_test")
            y_test = read_label_array(arrays, "_test")
            check_lengths(x_test, y_test, "_test")
            if x_test.shape[1:] != x.shape[1:]:
                raise DataError(
                    f"x_test has samples of shape {x_test.shape[1:]}, expected {x.shape[1:]} as in x"
                )
            rule = BY_FILE
            rows, group = choose_training_rows(x, y, group)
            x, y = x[rows], y[rows]
            target = None if target is None else target[rows]
            overlapping = len(find_overlapping_rows(x_test, x)) if count_overlapping else 0
        else:
            train_test = split_arrays(arrays, x, y, group, test_share, seed)
            rule, train, test, group = train_test.rule, train_test.train, train_test.test, train_test.group
            x, y, x_test, y_test = x[train], y[train], x[test], y[test]
            if target is not None:
                target, target_test = target[train], target[test]
        if input_shape is not None:
            x, x_test = (to_input_shape(samples, input_shape) for samples in (x, x_test))
        count = find_num_classes(arrays, num_classes, int(max(y.max(), y_test.max())))
        shard = Shard(
            x_train=x,
            y_train=y,
            x_test=x_test,
            y_test=y_test,
            num_classes=count,
            group_train=group,
            target_train=target,
            target_test=target_test,
            has_labels=has_labels,
        )
        split = SplitRecord(rule=rule, seed=seed, train=len(y), test=len(y_test), overlapping=overlapping)
        return LoadedSamples(shard, split, changes)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def save_shard(
    path: Path, shard: Shard, classes: tuple[str, ...] = (), channels: tuple[str, ...] = ()
) -> None:
    """Write a shard to a file that `load_shard` reads back bit for bit.

    The file states that its samples are divided already. Only the owner can read the file.

    Args:
        path: file to write. Missing parent directories are created.
        classes: names of the classes, empty if they have numbers.
        channels: names of the channels in their order, empty if they have numbers.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomic(path, encode_shard(shard, classes=classes, channels=channels), SECRET_MODE)


def encode_shard(
    shard: Shard,
    *,
    with_labels: bool = True,
    classes: tuple[str, ...] = (),
    channels: tuple[str, ...] = (),
) -> bytes:
    """Return the content of the file that `save_shard` writes.

    Args:
        with_labels: write the labels. Without them, the file contains samples without labels.
        classes: names of the classes, empty if they have numbers.
        channels: names of the channels in their order, empty if they have numbers.
    """
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        "x": shard.x_train,
        "y": shard.y_train if shard.target_train is None else shard.target_train,
        "x_test": shard.x_test,
        "y_test": shard.y_test if shard.target_test is None else shard.target_test,
        "scale": np.float64(1),
    }
    if not with_labels:
        del arrays["y"], arrays["y_test"]
    elif shard.target_train is None:
        arrays["num_classes"] = np.int64(shard.num_classes)
    if classes and with_labels:
        arrays["class_names"] = np.array(classes)
    if channels:
        arrays["channel_names"] = np.array(channels)
    if shard.group_train is not None:
        arrays["group"] = shard.group_train
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def read_shard(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a shard file as stored.

    Raises:
        DataError: the file is missing or is not an `.npz`.
    """
    if not path.is_file():
        raise DataError(f"no shard at {path}; {SAVEZ_REMEDY}")
    return read_npz(path, SHARD_ARRAYS)


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return arrays of an `.npz` file of samples as stored. Missing ones are left out.

    Args:
        names: names of the arrays to read.

    Raises:
        DataError: the file is not an `.npz`, has no `x`, has known arrays under another name, has only one
            part in uint8, or states a scale that is no number above 0.
    """
    arrays = read_arrays(path, names, some=True, remedy=SAVEZ_REMEDY)
    stored = list_arrays(path)
    if "x" not in arrays:
        raise DataError(
            f"{path}: there is no array x, the file has {', '.join(stored) or 'none'}; {SAVEZ_REMEDY}"
        )
    for name in NAME_ARRAYS:
        if name in arrays and arrays[name].dtype.kind == "S":
            try:
                arrays[name] = np.char.decode(arrays[name], "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}: {name} holds no texts in UTF-8: {error}; store it as {name}.astype(str)"
                ) from error
    others = [name for name in stored if name not in (*SHARD_ARRAYS, *CLIENT_ARRAYS)]
    for name in others:
        likely = name.lower() if name.lower() in SHARD_ARRAYS else "y" if name.lower() in LABEL_NAMES else ""
        if likely and likely not in arrays:
            raise DataError(
                f"{path}: the array {name!r} is unknown, expected {likely!r}; rename it, or remove it from "
                "the file"
            )
    if others:
        arrays["notes"] = np.array([f"arrays that are left out: {shorten_names(others)}"])
    if "x_test" in arrays and (arrays["x"].dtype == np.uint8) != (arrays["x_test"].dtype == np.uint8):
        raise DataError(
            f"{path}: x is {arrays['x'].dtype} and x_test {arrays['x_test'].dtype}, expected one type: "
            "only uint8 is divided by 255; store both parts alike"
        )
    arrays |= _read_channel_names(path, arrays)
    scale = arrays.get("scale")
    if scale is not None and (scale.size != 1 or scale.dtype.kind not in "iuf" or not is_scale(scale.item())):
        raise DataError(f"{path}: scale is {scale!r}, expected one number above 0 that divides x; correct it")
    return arrays


def _read_channel_names(path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the array `channels`, as a CSV source has it, or nothing without names of channels."""
    stored = arrays.get("channel_names")
    if stored is None:
        return {}
    names = [str(name) for name in stored.ravel()]
    x = arrays["x"]
    if len(names) != (x.shape[-1] if x.ndim > 1 else 0) or len(set(names)) < len(names):
        raise DataError(
            f"{path}: channel_names is {', '.join(names)[:80]}, expected one name for each channel of x "
            f"{list(x.shape)}; correct it"
        )
    return {"channels": np.array(names)}


def order_channels(
    arrays: Mapping[str, NDArray[Any]], channels: tuple[str, ...], where: str
) -> dict[str, NDArray[Any]]:
    """Return arrays whose samples have the channels of a federation, in its order.

    Args:
        arrays: the arrays of a source. Without names of channels they get a note only.
        channels: names of the channels of the federation. Empty without a federation: the order is by name.
        where: name of the source, the first part of the error message.

    Raises:
        DataError: a channel is missing.
    """
    if "channels" not in arrays:
        note = f"the channels have no names, and are read in the order {', '.join(channels)[:80]}"
        notes = [*map(str, arrays.get("notes", ())), note]
        return {**arrays, "notes": np.array(notes)} if channels else dict(arrays)
    stored = tuple(map(str, arrays["channels"]))
    chosen = channels or tuple(sorted(stored, key=make_natural_key))
    if missing := next((name for name in chosen if name not in stored), None):
        raise DataError(
            f"{where}: there is no channel {missing!r} among {', '.join(stored)}, the federation has "
            f"{', '.join(chosen)}; record these channels"
        )
    ordered = {**arrays, "channels": np.array(chosen), "columns": arrays["channels"]}
    if chosen != stored:
        columns = [stored.index(name) for name in chosen]
        ordered |= {
            f"x{part}": arrays[f"x{part}"][..., columns] for part in PART_SUFFIXES if f"x{part}" in arrays
        }
    if others := [name for name in stored if name not in chosen]:
        note = f"channels {', '.join(chosen)}; left out: {', '.join(others)} (not requested)"
        ordered["notes"] = np.array([*map(str, arrays.get("notes", ())), note])
    return ordered


def list_channels(arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """Return the names of the channels of arrays as `order_channels` returns them, empty without names."""
    return tuple(map(str, arrays.get("channels", ())))


def read_sample_array(arrays: Mapping[str, NDArray[Any]], part: str) -> Array:
    """Return `x` or `x_test` as float32.

    Args:
        arrays: arrays in training form, see `edgefl.data.forms.to_training_form`.
        part: "" for `x`, "_test" for `x_test`.

    Returns:
        The samples, shape (n, *shape), float32.

    Raises:
        DataError: the array is missing, has another dtype or shape, or contains values that are not finite.
    """
    if f"x{part}" not in arrays:
        raise DataError(f"there is no array x{part}, received {', '.join(arrays) or 'none'}; {SAVEZ_REMEDY}")
    x = arrays[f"x{part}"]
    if x.dtype.kind != "f":
        raise DataError(
            f"x{part} is {x.dtype}, expected uint8 pictures or floats; convert it with x.astype('float32')"
        )
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(
            f"x{part} has shape {x.shape}, expected (samples, ...) with at least one value per sample"
        )
    with np.errstate(over="ignore"):
        samples: Array = np.ascontiguousarray(x, np.float32)
    bad = ~np.isfinite(samples).reshape(len(samples), -1).all(axis=1) if len(samples) else np.zeros(0, bool)
    if bad.any():
        raise DataError(
            f"x{part} holds NaN or infinite values in {bad.sum()} of {len(x)} samples, first at "
            f"{bad.argmax()}; clean it"
        )
    return samples


def read_target_array(arrays: Mapping[str, NDArray[Any]], name: str) -> Array | None:
    """Return `target` or `target_test` as float32, one column per value. None if there is no such array.

    Returns:
        The targets, shape (n, outputs), float32, or None.

    Raises:
        DataError: a value is not finite.
    """
    stored = arrays.get(name)
    if stored is None:
        return None
    columns = math.prod(stored.shape[1:])
    with np.errstate(over="ignore"):
        target = np.ascontiguousarray(stored.reshape(len(stored), columns), np.float32)
    bad = ~np.isfinite(target).all(axis=1)
    if bad.any():
        raise DataError(
            f"the labels y hold NaN or infinite values in {bad.sum()} of {len(target)} samples, first at "
            f"{bad.argmax()}; clean them"
        )
    return target


def read_label_array(arrays: Mapping[str, NDArray[Any]], part: str) -> Labels:
    """Return `y` or `y_test` as int64.

    Args:
        part: "" for `y`, "_test" for `y_test`.

    Returns:
        The labels, shape (n,), int64.

    Raises:
        DataError: the array is missing, or does not contain whole numbers of at least 0.
    """
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
        return "number the classes from 0, or store their names: y.astype(str)"
    if y.ndim == 2 and y.shape[1] > 1:
        return "if it holds a score for each class, y.argmax(1) returns the class numbers"
    broken = ~np.isfinite(y) | (y != np.round(y))
    if broken.any():
        return (
            f"it holds {y[broken][0]:g}, which is not a class: number the classes from 0, or set kind = "
            "'regression' in [task] of the federation"
        )
    return "store one whole number per sample"


def check_lengths(x: Array, y: Labels, part: str) -> None:
    """Check that there is one label per sample, and at least one sample.

    Args:
        x: samples, shape (n, *shape), float32.
        y: labels, shape (n,), int64.
        part: "" for the training part, "_test" for the test part.

    Raises:
        DataError: the numbers differ, or there is no sample.
    """
    if len(x) != len(y):
        raise DataError(
            f"x{part} has {len(x)} samples and y{part} has {len(y)} labels, expected equal numbers; a shard "
            "needs one label per sample"
        )
    if len(y) == 0:
        raise DataError(
            f"x{part} is empty, expected at least one sample; collect data before this device joins"
        )


def read_group_array(arrays: Mapping[str, NDArray[Any]], count: int) -> Labels | None:
    """Return the array `group` as group numbers in sorted order.

    Args:
        count: number of samples.

    Returns:
        The group of each sample, shape (count,), int64, or None if there is no such array.

    Raises:
        DataError: the array has another shape or does not contain whole numbers or names.
    """
    names = arrays.get("group")
    if names is None:
        return None
    if names.shape != (count,) or names.dtype.kind not in "iuUS":
        raise DataError(
            f"group is {names.dtype}{list(names.shape)}, expected {count} whole numbers or names, one per "
            "sample: the recording that it was cut from"
        )
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def choose_training_rows(x: Array, y: Labels, group: Labels | None) -> tuple[Labels, Labels | None]:
    """Return the training rows of a client whose file contains test samples.

    Groups whose windows overlap are merged. Without groups, overlapping windows form a recording. If a class
    has too few recordings, recordings are cut. Windows that overlap a cut are left out.

    Args:
        x: samples, shape (n, *input_shape), float32.
        y: labels, shape (n,), int64.
        group: the group of each sample, shape (n,), int64, or None.

    Returns:
        Sorted rows, shape (m,), int64, and the recording of each row, shape (m,), int64. The recording is
        None without groups and without overlapping windows.
    """
    all_rows = np.arange(len(y), dtype=np.int64)
    recordings = find_recordings(x)
    if recordings is None:
        return all_rows, group
    if group is not None:
        return all_rows, join_groups(group, recordings.group)
    rows, pieces = cut_recordings(merge_scattered_labels(y), recordings)
    return rows, pieces.group


def split_arrays(
    arrays: Mapping[str, NDArray[Any]], x: Array, y: Labels, group: Labels | None, share: float, seed: int
) -> TrainTestSplit:
    """Divide samples into training and test rows, using everything that the arrays contain about recordings.

    Args:
        arrays: `window_number`, `recording` and `first_row` of a ring, `recording` and `first_row` of a
            source that cut recordings into windows, or none of them.
        x: samples, shape (n, *input_shape), float32.
        y: labels, shape (n,), int64.
        group: the group of each sample, shape (n,), int64, or None.
        share: share of the samples to hold out, between 0 and 1.

    Raises:
        DataError: an array has another shape or type, or nothing can be held out.
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
        labels = merge_scattered_labels(y)
        return split_train_test(x, labels, share, rng, group=group, recordings=recordings)
    if recordings is None:
        raise DataError(
            "the file has window_number without recording or first_row, expected all three arrays of "
            "`edgefl device record`; record again, or leave window_number out"
        )
    return split_ring(recordings, share, rng)


def find_num_classes(arrays: Mapping[str, NDArray[Any]], configured: int | None, largest: int) -> int:
    """Return the number of classes: the configured number, else the stored one, else the largest label + 1.

    Class names are numbered in order, so class numbers agree between boards only if all boards use the same
    list of names. The number of names must therefore match a configured number.

    Args:
        arrays: the arrays by name. `num_classes` and `class_names` are read.
        configured: number of classes of the federation, None if unknown.

    Raises:
        DataError: a label is too large, the stored number is not a whole number or above `configured`, or the
            number of class names differs from `configured`.
    """
    stored = arrays.get("num_classes")
    if stored is not None and (stored.size != 1 or stored.dtype.kind not in "iu"):
        raise DataError(f"num_classes is {stored.dtype}{list(stored.shape)}, expected one whole number")
    count = (
        configured if configured is not None else int(stored.item()) if stored is not None else largest + 1
    )
    if configured is not None and stored is not None and int(stored.item()) > configured:
        raise DataError(
            f"the samples have {int(stored.item())} classes, as num_classes or the columns of y say, the "
            f"federation has {configured}; store labels of these classes"
        )
    if largest >= count:
        raise DataError(
            f"the label {largest} is in the shard, expected 0 to {count - 1} for {count} classes; does the "
            "shard belong to another task?"
        )
    names = arrays.get("class_names")
    if configured is not None and names is not None and names.size != configured:
        raise DataError(
            f"this board has {names.size} classes ({', '.join(map(str, names.ravel()[:20]))}), the "
            f"federation has {configured}; list the names of all {configured} classes in classes.txt, one "
            "per line, in the same order on every board, including classes without samples on this board"
        )
    return count

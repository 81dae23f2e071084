"""Your own data set: an `.npz` file, selected by the name `npz:PATH`.

The file contains `x` and `y`, and optionally `client`, `group`, `x_test`, `y_test` and `client_test`.
`npz:PATH,PATH,...` joins the files of several devices into one data set. Each file becomes a group, and the
partition `group` makes a client of each.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.system.natural_order import make_natural_key
from edgefl.base.tasks.samples import SamplesConfig
from edgefl.base.types import Array, Labels
from edgefl.data import npz
from edgefl.data.dataset import Dataset
from edgefl.data.forms import split_targets, to_training_form
from edgefl.data.npz import (
    SAVEZ_REMEDY,
    TARGET_ARRAYS,
    check_lengths,
    choose_training_rows,
    find_num_classes,
    list_channels,
    order_channels,
    read_group_array,
    read_label_array,
    read_npz,
    read_sample_array,
    read_target_array,
    split_arrays,
)
from edgefl.data.sources.classes import number_text_labels
from edgefl.data.train_test import split_by_owner
from edgefl.data.unit import check_unit, list_class_names, to_federation_classes

DATASET_ARRAYS = (*npz.CLIENT_ARRAYS, *npz.SHARD_ARRAYS)


def load(
    path: str, seed: int = 1, samples: SamplesConfig | None = None, *, test_share: float = 0.2
) -> Dataset:
    """Load a data set from one `.npz` file or from several.

    uint8 samples are divided by 255 and floats stay unchanged, unless the federation or the file states a
    scale. The array `client` names the client of
    each sample by whole numbers or names, and clients become groups. Without `x_test`, a share of the samples
    of each client is held out, by the rule and seed of a device with the same samples: see
    `edgefl.data.npz.load_shard`. With `x_test`, the training samples of each client equal those of such a
    device: see `edgefl.data.npz.choose_training_rows`.

    Args:
        path: path of the file, or several paths with commas between them.
        samples: unit and layout of the federation, None without a federation.
        test_share: share of the samples to hold out, between 0 and 1.

    Raises:
        DataError: a file is missing or damaged, or its samples cannot be used for training.
    """
    if "," in path and not Path(path).exists():
        paths = path.split(",")
        return _join_datasets([load(part, seed, samples, test_share=test_share) for part in paths], paths)
    if not Path(path).is_file():
        raise DataError(f"no data set at {path}; {SAVEZ_REMEDY}")
    stored = order_channels(
        number_text_labels(read_npz(Path(path), DATASET_ARRAYS), Path(path).parent),
        () if samples is None else samples.channels,
        path,
    )
    has_labels = "y" in stored
    try:
        if samples is not None:
            check_unit(stored, samples)
        arrays, _ = to_training_form(split_targets(stored), samples)
        if samples is not None:
            arrays = to_federation_classes(arrays, samples)
        x = read_sample_array(arrays, "")
        y = read_label_array(arrays, "")
        check_lengths(x, y, "")
        client = _read_clients(arrays, "", len(y))
        recording = read_group_array(arrays, len(y))
        target, target_test = (read_target_array(arrays, name) for name in TARGET_ARRAYS)
        if "x_test" not in arrays and "y_test" not in arrays:
            train_test = split_by_owner(
                np.zeros(len(y), np.int64) if client is None else client,
                lambda rows: split_arrays(
                    {name: arrays[name][rows] for name in npz.RING_ARRAYS if name in arrays},
                    x[rows],
                    y[rows],
                    None if recording is None else recording[rows],
                    test_share,
                    seed,
                ),
            )
            train, test = train_test.train, train_test.test
            return Dataset(
                x_train=x[train],
                y_train=y[train],
                x_test=x[test],
                y_test=y[test],
                num_classes=find_num_classes(arrays, None, int(y.max())),
                group_train=None if client is None else client[train],
                group_test=None if client is None else client[test],
                recording_train=train_test.group,
                target_train=None if target is None else target[train],
                target_test=None if target is None else target[test],
                has_labels=has_labels,
                class_names=list_class_names(arrays),
                channels=list_channels(arrays),
                group_names=_list_client_names(arrays, "client"),
            )
        x_test = read_sample_array(arrays, "_test")
        y_test = read_label_array(arrays, "_test")
        check_lengths(x_test, y_test, "_test")
        if x_test.shape[1:] != x.shape[1:]:
            raise DataError(f"x_test has samples of shape {x_test.shape[1:]}, expected {x.shape[1:]} as in x")
        count = find_num_classes(arrays, None, int(max(y.max(), y_test.max())))
        group, group_test = _number_clients(arrays, len(y), len(y_test))
        rows, recording = _choose_training_rows(x, y, recording, group)
        return Dataset(
            x_train=x[rows],
            y_train=y[rows],
            x_test=x_test,
            y_test=y_test,
            num_classes=count,
            group_train=None if group is None else group[rows],
            group_test=group_test,
            recording_train=recording,
            target_train=None if target is None else target[rows],
            target_test=target_test,
            has_labels=has_labels,
            class_names=list_class_names(arrays),
            channels=list_channels(arrays),
            group_names=() if group is None else _list_client_names(arrays, *npz.CLIENT_ARRAYS),
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _choose_training_rows(
    x: Array, y: Labels, recording: Labels | None, client: Labels | None
) -> tuple[Labels, Labels | None]:
    """Return the training rows of all clients, sorted, and their recordings, unique over clients."""
    if client is None:
        return choose_training_rows(x, y, recording)
    numbers = np.arange(len(y), dtype=np.int64)
    chosen, groups = [], []
    for client_id in np.unique(client):
        client_rows = np.flatnonzero(client == client_id)
        rows, group = choose_training_rows(
            x[client_rows], y[client_rows], None if recording is None else recording[client_rows]
        )
        chosen.append(client_rows[rows])
        groups.append(None if group is None else client_rows[np.unique(group, return_inverse=True)[1]])
    rows = np.sort(np.concatenate(chosen))
    if all(group is None for group in groups):
        return rows, None
    for client_rows, group in zip(chosen, groups, strict=True):
        numbers[client_rows] = client_rows if group is None else group
    return rows, numbers[rows]


def _join_datasets(parts: Sequence[Dataset], paths: Sequence[str]) -> Dataset:
    for part, path in zip(parts, paths, strict=True):
        if part.x_train.shape[1:] != parts[0].x_train.shape[1:]:
            raise DataError(
                f"{path} has samples of shape {part.x_train.shape[1:]}, {paths[0]} of shape "
                f"{parts[0].x_train.shape[1:]}; expected one shape"
            )
        if part.class_names != parts[0].class_names:
            raise DataError(
                f"{path} has the classes {', '.join(part.class_names) or 'of numbers'}, {paths[0]} "
                f"{', '.join(parts[0].class_names) or 'of numbers'}; expected the same names in each file"
            )
        if part.channels != parts[0].channels:
            raise DataError(
                f"{path} has the channels {', '.join(part.channels) or 'of numbers'}, {paths[0]} "
                f"{', '.join(parts[0].channels) or 'of numbers'}; expected the same names in each file"
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
    return Dataset(
        x_train=x,
        y_train=y,
        x_test=x_test,
        y_test=y_test,
        num_classes=max(part.num_classes for part in parts),
        group_train=group,
        group_test=group_test,
        recording_train=_join_recordings(parts),
        target_train=_join_targets([part.target_train for part in parts], paths),
        target_test=_join_targets([part.target_test for part in parts], paths),
        has_labels=all(part.has_labels for part in parts),
        class_names=parts[0].class_names,
        channels=parts[0].channels,
    )


def _join_targets(parts: Sequence[Array | None], paths: Sequence[str]) -> Array | None:
    """Return the targets of all parts, or None if the parts have classes."""
    targets = [part for part in parts if part is not None]
    if not targets:
        return None
    if len(targets) < len(parts) or len({target.shape[1] for target in targets}) > 1:
        raise DataError(
            f"the labels of {', '.join(paths)} have different forms, expected numbers in as many columns in "
            "each file; store y as float32 in all of them"
        )
    return np.concatenate(targets)


def _join_recordings(parts: Sequence[Dataset]) -> Labels | None:
    """Return the recordings of all parts. A sample of a part without recordings is a recording of its own."""
    if all(part.recording_train is None for part in parts):
        return None
    recordings = [
        np.arange(len(part.y_train), dtype=np.int64) if part.recording_train is None else part.recording_train
        for part in parts
    ]
    offsets = np.cumsum([0, *(int(recording.max()) + 1 for recording in recordings[:-1])])
    return np.concatenate([recording + offset for recording, offset in zip(recordings, offsets, strict=True)])


def _read_clients(arrays: dict[str, NDArray[Any]], part: str, count: int) -> Labels | None:
    names = arrays.get(f"client{part}")
    if names is None:
        return None
    if names.shape != (count,) or names.dtype.kind not in "iuU":
        raise DataError(
            f"client{part} is {names.dtype}{list(names.shape)}, expected {count} whole numbers or names, one "
            "per sample"
        )
    values, numbers = np.unique(names, return_inverse=True)
    if names.dtype.kind != "U":
        return numbers.astype(np.int64)
    order = sorted(range(len(values)), key=lambda index: make_natural_key(str(values[index])))
    return np.argsort(order)[numbers].astype(np.int64)


def _list_client_names(arrays: dict[str, NDArray[Any]], *keys: str) -> tuple[str, ...]:
    """Return the names of all clients in the order of their numbers, empty if the file has only numbers.

    Args:
        keys: the arrays that were numbered.
    """
    stored = [arrays[name] for name in keys if name in arrays]
    if not stored or any(names.dtype.kind != "U" for names in stored):
        return ()
    return tuple(sorted(set(np.concatenate(stored).tolist()), key=make_natural_key))


def _number_clients(
    arrays: dict[str, NDArray[Any]], count: int, count_test: int
) -> tuple[Labels | None, Labels | None]:
    """Number the clients of the training and test parts consistently."""
    if _read_clients(arrays, "", count) is None or _read_clients(arrays, "_test", count_test) is None:
        return None, None
    both = {"client": np.concatenate([arrays["client"], arrays["client_test"]])}
    numbers = _read_clients(both, "", count + count_test)
    return (None, None) if numbers is None else (numbers[:count], numbers[count:])

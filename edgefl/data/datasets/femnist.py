"""FEMNIST: handwritten digits and letters, 28x28 grey pixels, 62 classes, by 3,500 writers.

The script of LEAF makes the files, and no server hosts them. They are read from the folder `femnist`:
`all_data_*.json` in the subfolders `train` and `test`, or in one folder. In one folder, the last samples of
each writer are held out.

Source: S. Caldas et al., LEAF, arXiv:1812.01097.
"""

import json
from pathlib import Path

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.types import Labels
from edgefl.data.dataset import Dataset, Pixels, divide_samples
from edgefl.data.datasets.fetch import find_file, list_data_folders
from edgefl.data.datasets.held_out import hold_out_last

NUM_CLASSES = 62
MANUAL_DOWNLOAD = (
    "run `./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` in data/femnist of github.com/TalwalkarLab/leaf "
    "and copy its data folder to $EDGEFL_DATA/femnist"
)


def load(*, writers: int = 0, test_share: float = 0.2) -> Dataset:
    """Load the pictures, with writers as groups. Backgrounds are white.

    Args:
        writers: number of writers to read, the first ones in the files. 0 reads all 3,500 writers. They
            occupy 0.6 GB, and a multiple of that while the files are read.
        test_share: share of the samples of each writer to hold out, between 0 and 1, if the files are not
            split.

    Returns:
        The data set. Pictures have shape (n, 28, 28, 1), uint8.

    Raises:
        DataError: the folder is missing, a file is damaged, or `test_share` is out of range.
    """
    folder = find_file("femnist")
    if folder is None:
        raise DataError(
            f"no folder femnist in {' or '.join(map(str, list_data_folders()))}; {MANUAL_DOWNLOAD}"
        )
    names: dict[str, int] = {}
    parts = {part: _list_files(folder, part) for part in ("train", "test")}
    if parts["train"] and parts["test"]:
        x, y, writer = _read(parts["train"], names, writers)
        x_test, y_test, writer_test = _read(parts["test"], names, writers)
        return Dataset(
            x_train=x,
            y_train=y,
            x_test=x_test,
            y_test=y_test,
            num_classes=NUM_CLASSES,
            group_train=writer,
            group_test=writer_test,
        )
    x, y, writer = _read(
        _list_files(folder, "all_data") or sorted(folder.rglob("all_data_*.json")), names, writers
    )
    if not len(y):
        raise DataError(f"no all_data_*.json with samples in {folder}; {MANUAL_DOWNLOAD}")
    train, test = hold_out_last(writer, test_share)
    return divide_samples(x, y, train, test, num_classes=NUM_CLASSES, group=writer)


def _list_files(folder: Path, part: str) -> list[Path]:
    return sorted(path for path in folder.rglob("all_data_*.json") if path.parent.name == part)


def _read(paths: list[Path], names: dict[str, int], writers: int) -> tuple[Pixels, Labels, Labels]:
    """Return pictures, labels and writers. `names` maps writers to numbers in order of appearance."""
    pixels = [np.zeros((0, 784), np.uint8)]
    labels = [np.zeros(0, np.int64)]
    groups = [np.zeros(0, np.int64)]
    for path in paths:
        try:
            content = json.loads(path.read_text())
            for name in content["users"]:
                if name not in names and writers and len(names) >= writers:
                    continue
                user_data = content["user_data"][name]
                x = np.asarray(user_data["x"], np.float64).reshape(-1, 784)
                y = np.asarray(user_data["y"], np.int64)
                if len(x) != len(y) or (
                    len(x) and not (x.min() >= 0 and x.max() <= 1 and y.min() >= 0 and y.max() < NUM_CLASSES)
                ):
                    raise ValueError(
                        f"{name}: {len(x)} pictures and {len(y)} labels, expected equal numbers, pixels in "
                        f"[0, 1] and labels from 0 to {NUM_CLASSES - 1}"
                    )
                pixels.append(np.rint(x * 255).astype(np.uint8))
                labels.append(y)
                groups.append(np.full(len(y), names.setdefault(name, len(names)), np.int64))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not a LEAF file: {error}; {MANUAL_DOWNLOAD}") from error
    return np.concatenate(pixels).reshape(-1, 28, 28, 1), np.concatenate(labels), np.concatenate(groups)

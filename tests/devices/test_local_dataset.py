"""Samples that return to a state: the same, more, moved on, or other ones."""

from pathlib import Path

import numpy as np
import pytest

from devices.local_dataset import SKETCH_SIZE, LocalDataset
from edgefl.data.sources import make_source
from edgefl.errors import DataError

X = np.random.default_rng(2).normal(size=(200, 16, 3)).astype(np.float32)
Y = np.arange(200) % 4


def open_samples(path: Path, rows: slice, **arrays: np.ndarray) -> LocalDataset:
    np.savez(path / "a.npz", x=X[rows], y=Y[rows], **{name: array[rows] for name, array in arrays.items()})
    return LocalDataset(make_source(str(path / "a.npz")))


def test_the_same_samples_and_added_ones_pass(tmp_path: Path) -> None:
    sketch = open_samples(tmp_path, slice(0, 100)).sketch
    assert len(sketch) == SKETCH_SIZE
    for rows in (slice(0, 100), slice(0, 200)):
        assert open_samples(tmp_path, rows).check_sketch(sketch, tmp_path) == ""
    assert open_samples(tmp_path, slice(100, 200)).check_sketch([], tmp_path) == ""


def test_samples_that_are_partly_gone_are_reported(tmp_path: Path) -> None:
    sketch = open_samples(tmp_path, slice(0, 100)).sketch
    gone = open_samples(tmp_path, slice(50, 200)).check_sketch(sketch, tmp_path)
    assert "of 32 compared samples of the last start are still in" in gone


def test_other_samples_are_refused_except_in_a_ring(tmp_path: Path) -> None:
    sketch = open_samples(tmp_path, slice(0, 100)).sketch
    other = open_samples(tmp_path, slice(100, 200))
    with pytest.raises(
        DataError, match=r"^0 of 32 compared samples .*expected the samples that .*another --state"
    ):
        other.check_sketch(sketch, tmp_path)
    ring = {name: np.arange(200) for name in ("window_number", "first_row")} | {
        "recording": np.zeros(200, int)
    }
    ring["first_row"] = 16 * ring["first_row"]
    sketch = open_samples(tmp_path, slice(0, 100), **ring).sketch
    assert (
        open_samples(tmp_path, slice(100, 200), **ring).check_sketch(sketch, tmp_path).startswith("0 of 32")
    )

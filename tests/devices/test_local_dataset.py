"""Samples that return to a state: the same, more, moved on, or other ones."""

from pathlib import Path

import numpy as np
import pytest

from devices.local_dataset import SKETCH_SIZE, LocalDataset
from edgefl.base.errors import DataError
from edgefl.base.tasks.samples import SamplesConfig
from edgefl.data.sources import make_source
from edgefl.program.plan.spec import PlanSpec

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


def make_spec(samples: SamplesConfig, num_classes: int, shape: tuple[int, ...]) -> PlanSpec:
    return PlanSpec(
        model="mlp",
        algorithm="fedavg",
        options={},
        input_shape=shape,
        num_classes=num_classes,
        weights=(),
        signatures=(),
        samples=samples.as_plan_entry(),
    )


def test_labels_and_channels_have_the_order_of_the_plan(tmp_path: Path) -> None:
    rows = "".join(f"{i},{-i},{('walk', 'run')[i // 8 % 2]}\n" for i in range(64))
    (tmp_path / "a.csv").write_text("az,ax,label\n" + rows)
    dataset = LocalDataset(make_source(str(tmp_path / "a.csv"), window=4, label="label"))
    spec = make_spec(SamplesConfig(channels=("az", "ax"), classes=("sit", "walk", "run")), 3, (4, 2))
    shard = dataset.load_shard(spec)
    assert shard.num_classes == 3
    for x, y in ((shard.x_train, shard.y_train), (shard.x_test, shard.y_test)):
        assert np.array_equal(x[..., 0], -x[..., 1])
        assert (x[:, 0, 0] >= 0).all()
        assert y.tolist() == [1 + int(value) // 8 % 2 for value in x[:, 0, 0]]
    assert dataset.changes == ("channels az, ax",)


@pytest.mark.parametrize(
    ("samples", "error"),
    [
        (SamplesConfig(channels=("ax", "gx")), "no column 'gx' in the header"),
        (SamplesConfig(classes=("sit", "walk", "jog")), "class 'run' of these samples is unknown"),
        (SamplesConfig(), "have names .*, the federation has numbers"),
    ],
)
def test_device_with_other_classes_or_channels_is_refused(tmp_path: Path, samples, error) -> None:
    rows = "".join(f"{i},{-i},{('walk', 'run')[i % 2]}\n" for i in range(64))
    (tmp_path / "a.csv").write_text("az,ax,label\n" + rows)
    dataset = LocalDataset(make_source(str(tmp_path / "a.csv"), window=4, label="label"))
    with pytest.raises(DataError, match=error):
        dataset.load_shard(make_spec(samples, 3, (4, 2)))

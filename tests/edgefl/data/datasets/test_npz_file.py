from pathlib import Path

import numpy as np
import pytest

from edgefl.config import DataConfig, PartitionConfig
from edgefl.data import load_data, load_dataset, make_allotments
from edgefl.data.datasets.held_out import hold_out_last
from edgefl.errors import DataError


def test_the_last_of_each_group_by_hand() -> None:
    groups = np.array([7, 3, 7, 7, 3, 7, 7, 5])
    train, test = hold_out_last(groups, 0.4)
    assert test.tolist() == [4, 5, 6] and train.tolist() == [0, 1, 2, 3, 7]
    backwards = hold_out_last(groups, 0.4, time=np.arange(8)[::-1])[1]
    assert backwards.tolist() == [0, 1, 2]
    train, test = hold_out_last(groups, 0.4, overlaps=np.array([[3, 5], [0, 2]]))
    assert test.tolist() == [4, 5, 6] and train.tolist() == [0, 1, 2, 7]
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(DataError, match="between 0 and 1"):
            hold_out_last(groups, share)


def write(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_by_client(tmp_path: Path) -> None:
    x = np.arange(20, dtype=np.uint8)[:, None] * np.ones((1, 3), np.uint8)
    names = np.array(["pump", "fan"] * 10)
    data = load_dataset(write(tmp_path / "a.npz", x=x, y=np.arange(20) % 3, client=names))
    assert data.num_classes == 3 and len(data.y_test) == 4
    assert data.group_train is not None and np.bincount(data.group_train).tolist() == [8, 8]
    np.testing.assert_allclose(data.x_test[:, 0] * 255, [16, 17, 18, 19], rtol=1e-6)
    assert len(make_allotments(data, PartitionConfig("group", 2), 1)) == 2


def test_without_clients_the_draw_is_always_the_same(tmp_path: Path) -> None:
    name = write(tmp_path / "a.npz", x=np.random.default_rng(0).random((50, 4)), y=np.arange(50) % 2)
    first, again = (load_data(DataConfig(name), seed) for seed in (1, 2))
    assert (len(first.y_train), len(first.y_test)) == (40, 10) and first.group_train is None
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, first.x_train[-10:])


def test_with_a_test_part_of_its_own(tmp_path: Path) -> None:
    x = np.zeros((4, 2), np.float32)
    kept = {"x": x, "y": np.array([0, 1, 0, 1]), "x_test": x[:2], "y_test": np.array([2, 0])}
    data = load_dataset(
        write(tmp_path / "a.npz", **kept, client=np.array([9, 9, 4, 4]), client_test=np.array([4, 9]))
    )
    assert data.num_classes == 3
    assert data.group_train is not None and data.group_train.tolist() == [1, 1, 0, 0]
    assert data.group_test is not None and data.group_test.tolist() == [0, 1]
    assert load_dataset(write(tmp_path / "b.npz", **kept, client=np.arange(4))).group_train is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(3, int)}, "no array x"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4, int)}, "3 samples and y 4 labels"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(3, int), "client": np.zeros(2, int)},
            "client is int64.*expected 3",
        ),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, int), "client": np.zeros(3)}, "whole numbers or names"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, int), "client": np.arange(3)}, "one sample a client"),
        (
            {
                "x": np.zeros((3, 2)),
                "y": np.zeros(3, int),
                "x_test": np.zeros((1, 4)),
                "y_test": np.zeros(1, int),
            },
            "expected .2,. as in x",
        ),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(write(tmp_path / "a.npz", **arrays))
    assert str(tmp_path / "a.npz") in str(caught.value)


def test_objects_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data set at"):
        load_dataset(f"npz:{tmp_path / 'none.npz'}")
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset(write(tmp_path / "a.npz", x=np.array([{}, {}]), y=np.zeros(2, int)))

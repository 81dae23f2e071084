from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.config import DataConfig, PartitionConfig
from edgefl.data import load_data, make_client_partitions, make_shards
from edgefl.data.dataset import Dataset, pick_classes, scale_dataset, subsample
from edgefl.data.image_rotation import rotate, rotate_by_turns
from edgefl.data.partitions.client_partition import ClientPartition, copy_shard, make_client_ids
from edgefl.errors import ConfigError, DataError

CORNER = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)[None, :, :, None]


def pictures(count: int = 40, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, 4, 4, 1)).astype(np.uint8)
    y = np.arange(count) % 4
    return Dataset(x, y, x[:20], y[:20], 4)


def test_a_quarter_turn_by_hand() -> None:
    left = rotate(CORNER, 90)[0, :, :, 0]
    np.testing.assert_array_equal(left, [[3, 6, 9], [2, 5, 8], [1, 4, 7]])
    np.testing.assert_array_equal(rotate(CORNER, -90)[0, :, :, 0], [[7, 4, 1], [8, 5, 2], [9, 6, 3]])
    np.testing.assert_array_equal(rotate(CORNER, 180)[0, :, :, 0], CORNER[0, ::-1, ::-1, 0])
    np.testing.assert_array_equal(rotate(CORNER, 360), CORNER)


def test_an_eighth_turn_by_hand() -> None:
    away = np.sqrt(0.5)
    turned = rotate(CORNER, 45)[0, :, :, 0]
    assert turned[1, 1] == 5
    # The upper middle comes from the upper right: .7071 up and .7071 right of the centre, among 5, 6, 2 and
    # 3.
    among = (1 - away) * (1 - away) * 5 + (1 - away) * away * 6 + away * (1 - away) * 2 + away * away * 3
    np.testing.assert_allclose(turned[0, 1], among, rtol=1e-6)
    # The upper right corner comes from 1.4142 right of the centre: 6 fades into the zero outside.
    np.testing.assert_allclose(turned[0, 2], 6 * (2 - 2 * away), rtol=1e-6)


@given(st.integers(2, 7), st.integers(-8, 8))
def test_the_general_turn_is_the_exact_one(side: int, quarters: int) -> None:
    image = np.random.default_rng(side).random((2, side, side, 3)).astype(np.float32)
    exact = rotate(image, 90 * quarters)
    near = rotate(image, 90 * quarters + 1e-9)
    np.testing.assert_allclose(near, exact, atol=1e-6)


def test_turns_are_scipys() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    image = np.random.default_rng(1).random((1, 28, 28, 1)).astype(np.float32)
    for degrees in (45, 135, 17):
        theirs = ndimage.rotate(image[0, :, :, 0], degrees, order=1, reshape=False, mode="grid-constant")
        np.testing.assert_allclose(rotate(image, degrees)[0, :, :, 0], theirs, atol=1e-5)


def test_recordings_go_with_their_samples() -> None:
    """Pictures 0 to 39 have classes 0 to 3 in turn, and recording 100 + their number."""
    data = replace(pictures(), recording_train=np.arange(100, 140))
    shard = copy_shard(data, ClientPartition(np.array([1, 5, 39]), np.array([2])))
    assert shard.group_train is not None and shard.group_train.tolist() == [101, 105, 139]
    assert copy_shard(pictures(), ClientPartition(np.array([1]), np.array([2]))).group_train is None
    some = pick_classes(data, [3, 1])
    assert some.recording_train is not None
    assert some.recording_train.tolist() == [100 + row for row in range(40) if row % 4 in (1, 3)]
    few = subsample(data, 7, 3, 1)
    assert few.recording_train is not None
    np.testing.assert_array_equal(few.x_train, data.x_train[few.recording_train - 100])


def test_each_sample_has_its_own_turn() -> None:
    images = np.repeat(CORNER, 3, axis=0)
    turned = rotate_by_turns(images, np.array([0, 2, 4]), 45)
    for one, degrees in zip(turned, (0, 90, 180), strict=True):
        np.testing.assert_array_equal(one, rotate(CORNER, degrees)[0])
    with pytest.raises(DataError, match="only pictures can be rotated"):
        rotate(np.zeros((2, 5), np.float32), 45)


def test_take_relabels_turns_and_scales() -> None:
    data = pictures()
    own = ClientPartition(
        np.array([1, 5]), np.array([2]), np.array([0, 1]), np.array([2]), 90.0, (3, 2, 1, 0), 7
    )
    shard = copy_shard(data, own)
    assert shard.y_train.tolist() == [2, 2]
    assert shard.y_test.tolist() == [1]
    assert shard.side_train is not None and shard.side_train.tolist() == [0, 1]
    assert shard.x_train.dtype == np.float32
    np.testing.assert_array_equal(shard.x_train[0], data.x_train[1] / np.float32(255))
    np.testing.assert_array_equal(shard.x_train[1], np.rot90(data.x_train[5]) / np.float32(255))
    np.testing.assert_array_equal(shard.x_test[0], np.rot90(data.x_test[2], 2) / np.float32(255))
    assert shard.num_classes == 4
    assert own.truth == 7


def test_take_copies_only_its_own_from_a_memory_map(tmp_path: Path) -> None:
    data = pictures()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.save(tmp_path / f"{name}.npy", getattr(data, name))
    mapped = Dataset(
        *(
            np.load(tmp_path / f"{name}.npy", mmap_mode="r")
            for name in ("x_train", "y_train", "x_test", "y_test")
        ),
        4,
    )
    own = ClientPartition(np.array([0, 7, 9]), np.array([3]))
    shard = copy_shard(mapped, own)
    same = copy_shard(scale_dataset(data), own)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        array = getattr(shard, name)
        np.testing.assert_array_equal(array, getattr(same, name))
        assert not isinstance(array, np.memmap)

        assert not np.shares_memory(array, getattr(mapped, name))


def test_an_allotment_of_another_data_set() -> None:
    with pytest.raises(DataError, match="sample 40 of 40"):
        copy_shard(pictures(40), ClientPartition(np.array([3, 40]), np.array([0])))


def test_ids_sort() -> None:
    assert make_client_ids(2) == ["client-000", "client-001"]
    many = make_client_ids(1200)
    assert many == sorted(many)
    assert many[7] == "client-0007"


def test_shards_hold_the_samples_of_their_partitions_and_each_sample_once() -> None:
    data = scale_dataset(pictures(200))
    config = PartitionConfig("dirichlet", 4, {"alpha": 0.7, "min_samples": 5})
    client_partitions = make_client_partitions(data, config, 3)
    shards = make_shards(data, config, 3)
    assert list(shards) == make_client_ids(4)
    for name, shard in shards.items():
        np.testing.assert_array_equal(shard.x_train, data.x_train[client_partitions[name].train])
        np.testing.assert_array_equal(shard.y_test, data.y_test[client_partitions[name].test])
    indices = np.concatenate([part.train for part in client_partitions.values()])
    np.testing.assert_array_equal(np.sort(indices), np.arange(200))


def test_unknown_names_and_options() -> None:
    data = pictures()
    for name, options, message in (
        ("dirichlet", {"aplha": 1.0}, "did you mean 'alpha'"),
        ("dirichlet", {"alpha": "big"}, "alpha is 'big', expected a number"),
        ("dirichlet", {"min_samples": 2.5}, "expected a whole number"),
        ("rotation", {"fixed": 1}, "expected true or false"),
        ("dirichlt", {}, "did you mean 'dirichlet'"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_client_partitions(data, PartitionConfig(name, 2, options), 1)


def test_picked_classes_are_numbered_anew() -> None:
    data = Dataset(*pictures().__dict__.values())
    picked = pick_classes(data, (3, 1))
    assert picked.num_classes == 2
    assert np.bincount(picked.y_train).tolist() == [10, 10]
    np.testing.assert_array_equal(picked.x_train[picked.y_train == 0], data.x_train[data.y_train == 3])
    for wrong in ((1,), (1, 1), (0, 4), (-1, 2)):
        with pytest.raises(DataError, match="two or more different ones from 0 to 3"):
            pick_classes(data, wrong)


def test_the_configured_data() -> None:
    pytest.importorskip("sklearn")
    whole = load_data(DataConfig("digits"), 1)
    assert len(whole.y_train) == 1438
    few, again, other = (load_data(DataConfig("digits", 100, 0), seed) for seed in (1, 1, 2))
    assert (len(few.y_train), len(few.y_test)) == (100, 359)
    np.testing.assert_array_equal(few.x_train, again.x_train)
    assert not np.array_equal(few.x_train, other.x_train)
    some = load_data(DataConfig("digits", options={"classes": [4, 9]}), 1)
    assert some.num_classes == 2
    with pytest.raises(ConfigError, match="did you mean 'classes'"):
        load_data(DataConfig("digits", options={"class": [4]}), 1)

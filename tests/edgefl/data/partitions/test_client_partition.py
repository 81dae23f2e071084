from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import DataConfig, PartitionConfig
from edgefl.base.errors import ConfigError, DataError
from edgefl.data import load_data, make_client_partitions, make_shards
from edgefl.data.dataset import Dataset, pick_classes, scale_dataset, subsample
from edgefl.data.partitions.client_partition import ClientPartition, copy_shard, make_client_ids
from edgefl.program.learner.image_rotation import rotate, rotate_by_turns

IMAGE = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)[None, :, :, None]


def make_pictures(count: int = 40, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, 4, 4, 1)).astype(np.uint8)
    y = np.arange(count) % 4
    return Dataset(x_train=x, y_train=y, x_test=x[:20], y_test=y[:20], num_classes=4)


def test_quarter_turns_are_exact() -> None:
    left = rotate(IMAGE, 90)[0, :, :, 0]
    np.testing.assert_array_equal(left, [[3, 6, 9], [2, 5, 8], [1, 4, 7]])
    np.testing.assert_array_equal(rotate(IMAGE, -90)[0, :, :, 0], [[7, 4, 1], [8, 5, 2], [9, 6, 3]])
    np.testing.assert_array_equal(rotate(IMAGE, 180)[0, :, :, 0], IMAGE[0, ::-1, ::-1, 0])
    np.testing.assert_array_equal(rotate(IMAGE, 360), IMAGE)


def test_eighth_turn_interpolates_between_pixels() -> None:
    offset = np.sqrt(0.5)
    rotated = rotate(IMAGE, 45)[0, :, :, 0]
    assert rotated[1, 1] == 5
    # The upper middle pixel comes from .7071 up and .7071 right of the centre, between pixels 5, 6, 2 and 3.
    upper_middle = (
        (1 - offset) * (1 - offset) * 5
        + (1 - offset) * offset * 6
        + offset * (1 - offset) * 2
        + offset * offset * 3
    )
    np.testing.assert_allclose(rotated[0, 1], upper_middle, rtol=1e-6)
    # The upper right corner comes from 1.4142 right of the centre: 6 fades into the zero outside.
    np.testing.assert_allclose(rotated[0, 2], 6 * (2 - 2 * offset), rtol=1e-6)


@given(st.integers(2, 7), st.integers(-8, 8))
def test_interpolated_rotation_matches_exact_quarter_turns(side: int, quarters: int) -> None:
    image = np.random.default_rng(side).random((2, side, side, 3)).astype(np.float32)
    exact = rotate(image, 90 * quarters)
    near = rotate(image, 90 * quarters + 1e-9)
    np.testing.assert_allclose(near, exact, atol=1e-6)


def test_rotation_matches_scipy() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    image = np.random.default_rng(1).random((1, 28, 28, 1)).astype(np.float32)
    for degrees in (45, 135, 17):
        expected = ndimage.rotate(image[0, :, :, 0], degrees, order=1, reshape=False, mode="grid-constant")
        np.testing.assert_allclose(rotate(image, degrees)[0, :, :, 0], expected, atol=1e-5)


def test_recordings_stay_with_their_samples() -> None:
    """Pictures 0 to 39 have classes 0 to 3 in turn, and recording 100 + their number."""
    data = replace(make_pictures(), recording_train=np.arange(100, 140))
    shard = copy_shard(data, ClientPartition(train=np.array([1, 5, 39]), test=np.array([2])))
    assert shard.group_train is not None and shard.group_train.tolist() == [101, 105, 139]
    assert (
        copy_shard(make_pictures(), ClientPartition(train=np.array([1]), test=np.array([2]))).group_train
        is None
    )
    some = pick_classes(data, [3, 1])
    assert some.recording_train is not None
    assert some.recording_train.tolist() == [100 + row for row in range(40) if row % 4 in (1, 3)]
    few = subsample(data, 7, 3, 1)
    assert few.recording_train is not None
    np.testing.assert_array_equal(few.x_train, data.x_train[few.recording_train - 100])


def test_each_sample_is_rotated_by_its_turns() -> None:
    images = np.repeat(IMAGE, 3, axis=0)
    rotated = rotate_by_turns(images, np.array([0, 2, 4]), 45)
    for one, degrees in zip(rotated, (0, 90, 180), strict=True):
        np.testing.assert_array_equal(one, rotate(IMAGE, degrees)[0])
    with pytest.raises(DataError, match="only pictures can be rotated"):
        rotate(np.zeros((2, 5), np.float32), 45)


def test_copied_shard_is_relabelled_rotated_and_scaled() -> None:
    data = make_pictures()
    part = ClientPartition(
        train=np.array([1, 5]),
        test=np.array([2]),
        turns_train=np.array([0, 1]),
        turns_test=np.array([2]),
        turn_degrees=90.0,
        relabel=(3, 2, 1, 0),
        truth=7,
    )
    shard = copy_shard(data, part)
    assert shard.y_train.tolist() == [2, 2]
    assert shard.y_test.tolist() == [1]
    assert shard.side_train is not None and shard.side_train.tolist() == [0, 1]
    assert shard.x_train.dtype == np.float32
    np.testing.assert_array_equal(shard.x_train[0], data.x_train[1] / np.float32(255))
    np.testing.assert_array_equal(shard.x_train[1], np.rot90(data.x_train[5]) / np.float32(255))
    np.testing.assert_array_equal(shard.x_test[0], np.rot90(data.x_test[2], 2) / np.float32(255))
    assert shard.num_classes == 4
    assert part.truth == 7


def test_shard_is_copied_out_of_memory_maps(tmp_path: Path) -> None:
    data = make_pictures()
    maps = {}
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.save(tmp_path / f"{name}.npy", getattr(data, name))
        maps[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    mapped = Dataset(**maps, num_classes=4)
    part = ClientPartition(train=np.array([0, 7, 9]), test=np.array([3]))
    shard = copy_shard(mapped, part)
    same = copy_shard(scale_dataset(data), part)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        array = getattr(shard, name)
        np.testing.assert_array_equal(array, getattr(same, name))
        assert not isinstance(array, np.memmap)

        assert not np.shares_memory(array, getattr(mapped, name))


def test_client_partition_of_another_data_set_is_refused() -> None:
    with pytest.raises(DataError, match="sample 40 of 40"):
        copy_shard(make_pictures(40), ClientPartition(train=np.array([3, 40]), test=np.array([0])))


def test_client_ids_sort_in_order_of_number() -> None:
    assert make_client_ids(2) == ["client-000", "client-001"]
    many = make_client_ids(1200)
    assert many == sorted(many)
    assert many[7] == "client-0007"


def test_shards_have_the_samples_of_their_client_partitions() -> None:
    data = scale_dataset(make_pictures(200))
    config = PartitionConfig(name="dirichlet", num_clients=4, options={"alpha": 0.7, "min_samples": 5})
    client_partitions = make_client_partitions(data, config, 3)
    shards = make_shards(data, config, 3)
    assert list(shards) == make_client_ids(4)
    for name, shard in shards.items():
        np.testing.assert_array_equal(shard.x_train, data.x_train[client_partitions[name].train])
        np.testing.assert_array_equal(shard.y_test, data.y_test[client_partitions[name].test])
    named = make_shards(data, replace(config, client_ids=("d", "c", "b", "a")), 3)
    assert list(named) == ["d", "c", "b", "a"]
    assert [len(shard.y_train) for shard in named.values()] == [len(s.y_train) for s in shards.values()]
    indices = np.concatenate([part.train for part in client_partitions.values()])
    np.testing.assert_array_equal(np.sort(indices), np.arange(200))


def test_unknown_partition_names_and_options_are_refused() -> None:
    data = make_pictures()
    for name, options, message in (
        ("dirichlet", {"aplha": 1.0}, "did you mean 'alpha'"),
        ("dirichlet", {"alpha": "big"}, "alpha is 'big', expected a number"),
        ("dirichlet", {"min_samples": 2.5}, "expected a whole number"),
        ("rotation", {"fixed": 1}, "expected true or false"),
        ("dirichlt", {}, "did you mean 'dirichlet'"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_client_partitions(data, PartitionConfig(name=name, num_clients=2, options=options), 1)


def test_picked_classes_are_renumbered() -> None:
    data = make_pictures()
    picked = pick_classes(data, (3, 1))
    assert picked.num_classes == 2
    assert np.bincount(picked.y_train).tolist() == [10, 10]
    np.testing.assert_array_equal(picked.x_train[picked.y_train == 0], data.x_train[data.y_train == 3])
    for wrong in ((1,), (1, 1), (0, 4), (-1, 2)):
        with pytest.raises(DataError, match="two or more different ones from 0 to 3"):
            pick_classes(data, wrong)


def test_configured_data_set_is_loaded_and_subsampled() -> None:
    pytest.importorskip("sklearn")
    whole = load_data(DataConfig(name="digits"), 1)
    assert len(whole.y_train) == 1438
    few, again, other = (
        load_data(DataConfig(name="digits", num_train=100, num_test=0), seed) for seed in (1, 1, 2)
    )
    assert (len(few.y_train), len(few.y_test)) == (100, 359)
    np.testing.assert_array_equal(few.x_train, again.x_train)
    assert not np.array_equal(few.x_train, other.x_train)
    some = load_data(DataConfig(name="digits", options={"classes": [4, 9]}), 1)
    assert some.num_classes == 2
    with pytest.raises(ConfigError, match="did you mean 'classes'"):
        load_data(DataConfig(name="digits", options={"class": [4]}), 1)


def test_whole_numbers_to_predict_are_divided_without_classes() -> None:
    pictures = make_pictures()
    numbers = replace(
        pictures, y_train=10**9 * np.arange(40), y_test=10**9 * np.arange(20), num_classes=40 * 10**9
    )
    parts = make_client_partitions(numbers, PartitionConfig(name="iid", num_clients=4), 1)
    assert [len(part.train) for part in parts.values()] == [10] * 4

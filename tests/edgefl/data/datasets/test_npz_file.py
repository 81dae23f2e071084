from pathlib import Path

import numpy as np
import pytest

from edgefl.base.config import DataConfig, PartitionConfig
from edgefl.base.errors import ConfigError, DataError
from edgefl.base.tasks.samples import SamplesConfig
from edgefl.base.types import Shard
from edgefl.cli import main as cli
from edgefl.data import load_data, load_dataset, make_client_partitions, make_shards
from edgefl.data.datasets.held_out import hold_out_last
from edgefl.data.npz import load_shard, read_shard
from edgefl.data.unit import list_class_names
from tests.support.sample_files import SAMPLE_FILES, windows_of


def test_last_samples_of_each_group_are_held_out() -> None:
    groups = np.array([7, 3, 7, 7, 3, 7, 7, 5])
    train, test = hold_out_last(groups, 0.4)
    assert test.tolist() == [4, 5, 6] and train.tolist() == [0, 1, 2, 3, 7]
    backwards = hold_out_last(groups, 0.4, time=np.arange(8)[::-1])[1]
    assert backwards.tolist() == [0, 1, 2]
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(DataError, match="between 0 and 1"):
            hold_out_last(groups, share)


def write(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_last_samples_of_each_client_are_held_out(tmp_path: Path) -> None:
    x = np.arange(20, dtype=np.uint8)[:, None] * np.ones((1, 3), np.uint8)
    names = np.array(["pump", "fan"] * 10)
    data = load_dataset(write(tmp_path / "a.npz", x=x, y=np.arange(20) % 3, client=names))
    assert data.num_classes == 3 and len(data.y_test) == 6  # the last sample of each class of each client
    assert data.group_train is not None and np.bincount(data.group_train).tolist() == [7, 7]
    np.testing.assert_allclose(data.x_test[:, 0] * 255, range(14, 20), rtol=1e-6)
    assert len(make_client_partitions(data, PartitionConfig(name="group", num_clients=2), 1)) == 2


def make_named_clients(path: Path) -> str:
    """Write 12 samples of each of three clients, with the number of the client as their value."""
    numbers = np.repeat([1, 2, 10], 12)
    x = numbers[:, None] + np.linspace(0, 0.1, 36)[:, None]
    return write(path, x=x, y=np.arange(36) % 2, client=np.array([f"pi-{number}" for number in numbers]))


@pytest.mark.parametrize("ids", [(), ("pi-1", "pi-2", "pi-10"), ("pi-10", "pi-1", "pi-2")])
def test_clients_of_a_file_have_their_own_samples(ids: tuple[str, ...], tmp_path: Path) -> None:
    data = load_dataset(make_named_clients(tmp_path / "a.npz"))
    shards = make_shards(data, PartitionConfig(name="group", num_clients=3, client_ids=ids), 1)
    means = {name: round(float(shard.x_train.mean())) for name, shard in shards.items()}
    assert means == {"pi-1": 1, "pi-2": 2, "pi-10": 10}


@pytest.mark.parametrize("first", ["Room 1", "init"])
def test_names_that_are_no_ids_keep_the_order_of_their_numbers(first: str, tmp_path: Path) -> None:
    numbers = np.repeat([1, 2, 10], 12)
    names = np.array([f"room-{number}" if number > 1 else first for number in numbers])
    path = write(
        tmp_path / "a.npz", x=numbers[:, None] + np.zeros((36, 1)), y=np.arange(36) % 2, client=names
    )
    shards = make_shards(load_dataset(path), PartitionConfig(name="group", num_clients=3), 1)
    means = {client_id: float(shard.x_train.mean()) for client_id, shard in shards.items()}
    assert means == {"client-000": 1, "client-001": 2, "client-002": 10}


def test_ids_that_are_clients_of_a_file_only_in_part_are_refused(tmp_path: Path) -> None:
    data = load_dataset(make_named_clients(tmp_path / "a.npz"))
    ids = ("pi-1", "pi-2", "pi-3")
    with pytest.raises(
        ConfigError, match=r"clients pi-1, pi-2, pi-10, and client_ids .* has pi-1, pi-2, pi-3"
    ):
        make_client_partitions(data, PartitionConfig(name="group", num_clients=3, client_ids=ids), 1)
    others = make_client_partitions(
        data, PartitionConfig(name="group", num_clients=3, client_ids=("a", "b", "c")), 1
    )
    assert list(others) == ["a", "b", "c"]


def test_chosen_classes_and_class_names_of_the_federation_exclude_each_other(tmp_path: Path) -> None:
    names = np.array(list("abcd"))
    path = write(tmp_path / "a.npz", x=np.zeros((20, 2)), y=names[np.arange(20) % 4])
    config = DataConfig(name=path, options={"classes": [3, 1]})
    with pytest.raises(DataError, match=r"classes = \[3, 1\] of \[data\] .* \[samples\] names a, b, c, d"):
        load_data(config, 1, samples=SamplesConfig(classes=tuple("abcd")))


def test_last_samples_are_held_out_without_clients_and_recordings(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((50, 4)).astype(np.float32)
    name = write(tmp_path / "a.npz", x=x, y=np.arange(50) % 2)
    for seed in (1, 2):
        data = load_data(DataConfig(name=name), seed)
        assert data.group_train is None
        np.testing.assert_array_equal(data.x_test, x[-10:])
        np.testing.assert_array_equal(data.x_train, x[:40])


@pytest.mark.parametrize("seed", [1, 5])
def test_a_device_and_a_simulation_hold_out_the_same_samples(tmp_path: Path, seed: int) -> None:
    """Each file has the data of one device. All of them form a data set with one client per file."""
    paths = [tmp_path / f"{name}.npz" for name in SAMPLE_FILES]
    for path, arrays in zip(paths, SAMPLE_FILES.values(), strict=True):
        np.savez(path, **arrays)
    data = load_data(DataConfig(name=f"npz:{','.join(map(str, paths))}"), seed)
    shards = make_shards(data, PartitionConfig(name="group", num_clients=len(paths)), seed)
    for path, simulated in zip(paths, shards.values(), strict=True):
        device = load_shard(path, seed=seed)
        assert_same_samples(device, simulated)


def test_clients_of_one_file_are_split_like_devices(tmp_path: Path) -> None:
    """The windows of the first client overlap, and the samples of the second client are in time order."""
    parts = SAMPLE_FILES["recordings"], SAMPLE_FILES["time"]
    both = {name: np.concatenate([part[name] for part in parts]) for name in ("x", "y")}
    data = load_dataset(write(tmp_path / "both.npz", **both, client=np.repeat(["a", "b"], 60)))
    shards = make_shards(data, PartitionConfig(name="group", num_clients=2), 1)
    for part, simulated in zip(parts, shards.values(), strict=True):
        np.savez(tmp_path / "own.npz", **part)
        device = load_shard(tmp_path / "own.npz")
        np.testing.assert_array_equal(device.x_train, simulated.x_train)
        np.testing.assert_array_equal(device.x_test, simulated.x_test)


def make_arrays_with_test_part(name: str) -> dict[str, np.ndarray]:
    arrays = {key: SAMPLE_FILES[name][key] for key in ("x", "y", "group") if key in SAMPLE_FILES[name]}
    arrays = {key: array.copy() for key, array in arrays.items()}
    return arrays | {"x_test": windows_of(6, 16, 8), "y_test": np.arange(6) % 3}


def assert_same_samples(device: Shard, simulated: Shard) -> None:
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(device, name), getattr(simulated, name), name)
    assert device.group_train is not None and simulated.group_train is not None
    np.testing.assert_array_equal(
        *(np.unique(shard.group_train, return_inverse=True)[1] for shard in (device, simulated))
    )


def test_device_and_simulation_share_training_samples_of_files_with_test_samples(
    tmp_path: Path,
) -> None:
    """Six cuts of the only recording of the first file leave out three windows each.

    The second file names groups, and some of them overlap.
    """
    files = {name: make_arrays_with_test_part(name) for name in ("recordings", "groups")}
    files["groups"]["x"][:30] = windows_of(30, 12, 9)  # the first six groups overlap
    paths = [tmp_path / f"{name}.npz" for name in files]
    for path, arrays in zip(paths, files.values(), strict=True):
        np.savez(path, **arrays)
    data = load_dataset(f"npz:{','.join(map(str, paths))}")
    shards = make_shards(data, PartitionConfig(name="group", num_clients=2), 1)
    devices = [load_shard(path) for path in paths]
    assert [len(device.y_train) for device in devices] == [42, 60]
    for device, simulated in zip(devices, shards.values(), strict=True):
        assert_same_samples(device, simulated)
    first_file = load_dataset(f"npz:{paths[0]}")
    np.testing.assert_array_equal(first_file.x_train, devices[0].x_train)
    np.testing.assert_array_equal(first_file.recording_train, devices[0].group_train)


def test_clients_of_one_file_with_test_samples_are_split_like_devices(tmp_path: Path) -> None:
    """The windows of each client overlap, and windows of one client overlap windows of the other."""
    part = make_arrays_with_test_part("recordings")
    joined = {name: np.concatenate([array, array]) for name, array in part.items()}
    clients = {"client": np.repeat(["a", "b"], 60), "client_test": np.repeat(["a", "b"], 6)}
    data = load_dataset(write(tmp_path / "both.npz", **joined, **clients))
    np.savez(tmp_path / "own.npz", **part)
    device = load_shard(tmp_path / "own.npz")
    shards = make_shards(data, PartitionConfig(name="group", num_clients=2), 1)
    for simulated in shards.values():
        assert_same_samples(device, simulated)
    recordings = [
        set(shard.group_train.tolist()) for shard in shards.values() if shard.group_train is not None
    ]
    assert len(recordings) == 2 and not recordings[0] & recordings[1]


def test_only_sample_of_a_client_is_a_training_sample(tmp_path: Path) -> None:
    arrays = {"x": np.arange(8.0)[:, None], "y": np.arange(8) % 2, "client": np.array([3, *[4] * 7])}
    data = load_dataset(write(tmp_path / "a.npz", **arrays))
    assert data.x_test.ravel().tolist() == [6, 7] and data.x_train.ravel().tolist() == [0, 1, 2, 3, 4, 5]


def test_test_part_of_the_file_is_used(tmp_path: Path) -> None:
    x = np.zeros((4, 2), np.float32)
    arrays = {"x": x, "y": np.array([0, 1, 0, 1]), "x_test": x[:2], "y_test": np.array([2, 0])}
    data = load_dataset(
        write(tmp_path / "a.npz", **arrays, client=np.array([9, 9, 4, 4]), client_test=np.array([4, 9]))
    )
    assert data.num_classes == 3
    assert data.group_train is not None and data.group_train.tolist() == [1, 1, 0, 0]
    assert data.group_test is not None and data.group_test.tolist() == [0, 1]
    assert load_dataset(write(tmp_path / "b.npz", **arrays, client=np.arange(4))).group_train is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(3, int)}, "no array x"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4, int)}, "3 samples and y has 4 labels"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(3, int), "client": np.zeros(2, int)},
            "client is int64.*expected 3",
        ),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, int), "client": np.zeros(3)}, "whole numbers or names"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, int), "client": np.arange(3)}, "one sample per client"),
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
def test_error_for_invalid_arrays_names_file_and_cause(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(write(tmp_path / "a.npz", **arrays))
    assert str(tmp_path / "a.npz") in str(caught.value)


def test_pickled_objects_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data set at"):
        load_dataset(f"npz:{tmp_path / 'none.npz'}")
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset(write(tmp_path / "a.npz", x=np.array([{}, {}]), y=np.zeros(2, int)))


def test_joined_files_and_split_files_keep_the_class_names(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(40, 6))
    for name, texts in (("a", ["cat", "dog"]), ("b", ["cat", "dog"]), ("c", ["cat", "eel"])):
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.array(texts)[np.arange(40) % 2])
    both = load_data(DataConfig(name=f"npz:{tmp_path / 'a.npz'},{tmp_path / 'b.npz'}"), 1)
    assert both.class_names == ("cat", "dog")
    with pytest.raises(
        DataError, match=r"c.npz has the classes cat, eel, .*a.npz cat, dog; expected the same"
    ):
        load_data(DataConfig(name=f"npz:{tmp_path / 'a.npz'},{tmp_path / 'c.npz'}"), 1)
    some = load_data(DataConfig(name=f"npz:{tmp_path / 'a.npz'}", options={"classes": [1, 0]}), 1)
    assert some.class_names == ("dog", "cat")
    out = tmp_path / "out"
    command = ["data", "split", f"npz:{tmp_path / 'a.npz'}", "--partition", "iid", "-o", str(out)]
    assert cli.run_command(command) == 0
    assert list_class_names(read_shard(out / "pi-1.npz")) == ("cat", "dog")

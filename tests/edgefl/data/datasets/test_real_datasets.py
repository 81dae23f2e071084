"""The published files, if available: their sizes, and that no held-out sample is used for training."""

import numpy as np
import pytest

from edgefl.base.config import DataConfig, PartitionConfig
from edgefl.data import copy_shard, list_datasets, load_data, make_client_partitions
from edgefl.data.datasets.fetch import find_file
from edgefl.data.recordings import find_recordings

IS_AVAILABLE = {row["name"]: row["here"] for row in list_datasets()}


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not IS_AVAILABLE[name], reason=f"{name} is not in EDGEFL_DATA")


@needs("cifar10")
def test_cifar10_has_published_sizes() -> None:
    data = load_data(DataConfig(name="cifar10"), 1, scale=False)
    assert data.x_train.shape == (50000, 32, 32, 3) and data.x_train.dtype == np.uint8
    assert (
        np.bincount(data.y_train).tolist() == [5000] * 10 and np.bincount(data.y_test).tolist() == [1000] * 10
    )
    client_partitions = make_client_partitions(
        data, PartitionConfig(name="p-majority", num_clients=50, options={"p": 1.0}), 1
    )
    shard = copy_shard(data, client_partitions["client-049"])
    assert shard.x_train.dtype == np.float32 and 0.9 < shard.x_train.max() <= 1
    assert sorted(np.bincount(shard.y_train, minlength=10))[-3:] == [0, 250, 250]


@needs("cifar100")
def test_cifar100_has_published_sizes_and_superclasses() -> None:
    data = load_data(DataConfig(name="cifar100"), 1, scale=False)
    assert data.coarse is not None and len(data.coarse) == data.num_classes
    assert np.bincount(data.y_train).tolist() == [500] * data.num_classes
    assert bool(data.note) == (data.num_classes < 100)
    client_partitions = make_client_partitions(
        data, PartitionConfig(name="pachinko", num_clients=50, options={}), 1
    )
    assert (
        np.mean([len(np.unique(data.y_train[part.train])) for part in client_partitions.values()])
        < 0.6 * data.num_classes
    )


@needs("mnist-writers")
def test_mnist_writers_are_groups() -> None:
    data = load_data(DataConfig(name="mnist-writers"), 1, scale=False)
    assert data.group_train is not None and data.group_test is not None
    assert set(data.group_test) <= set(data.group_train) and len(set(data.group_train)) >= 400
    assert len(data.y_test) / (len(data.y_train) + len(data.y_test)) == pytest.approx(0.2, abs=0.005)
    client_partitions = make_client_partitions(
        data, PartitionConfig(name="group", num_clients=100, options={}), 1
    )
    assert all(len(part.train) >= 10 for part in client_partitions.values())


@needs("uci-har")
def test_uci_har_training_windows_do_not_overlap_test_windows() -> None:
    raw = load_data(DataConfig(name="uci-har", options={"standardise": False}), 1)
    assert raw.group_train is not None and raw.group_test is not None
    both = np.concatenate([raw.x_train, raw.x_test])
    recordings = find_recordings(both)
    num_train = len(raw.y_train)
    assert recordings is not None and recordings.measure_joined_share() > 0.99
    assert not recordings.find_overlapping(np.arange(num_train, len(both)))[:num_train].any()
    assert not set(recordings.group[:num_train]) & set(recordings.group[num_train:])
    assert (np.bincount(raw.y_test) > 150).all()
    assert raw.recording_train is not None
    for recording in np.unique(raw.recording_train):
        assert len(set(recordings.group[:num_train][raw.recording_train == recording])) == 1
    data = load_data(DataConfig(name="uci-har"), 1)
    channels = data.x_train.reshape(-1, 9)
    np.testing.assert_allclose(channels.std(axis=0), 1, atol=0.1)
    assert data.x_train.dtype == np.float32


@needs("dermamnist")
def test_dermamnist_is_divided_into_packages() -> None:
    data = load_data(DataConfig(name="dermamnist"), 1, scale=False)
    assert (len(data.y_train), len(data.y_test)) == (8010, 2005)
    client_partitions = make_client_partitions(
        data, PartitionConfig(name="packages", num_clients=34, options={}), 1
    )
    assert {(len(part.train), len(part.test)) for part in client_partitions.values()} == {(56, 14)}
    assert find_file("dermamnist.npz") is not None


@needs("spoken-digits")
def test_spoken_digits_hold_out_the_last_takes() -> None:
    data = load_data(DataConfig(name="spoken-digits", options={"takes": 25}), 1)
    assert data.x_train.shape[1:] == (8000, 1) and data.group_train is not None
    assert data.group_test is not None
    assert set(np.bincount(data.group_train * 10 + data.y_train)) == {25}
    assert set(np.bincount(data.group_test * 10 + data.y_test)) == {10}


@needs("shoulder")
def test_each_person_of_the_shoulder_exercises_has_each_exercise_in_both_parts() -> None:
    data = load_data(DataConfig(name="shoulder"), 1)
    assert data.x_train.shape[1:] == (128, 6)
    assert data.group_train is not None and data.group_test is not None
    for group, labels in ((data.group_train, data.y_train), (data.group_test, data.y_test)):
        people = np.unique(group)
        assert len(people) >= 7 and len(set(zip(group, labels, strict=True))) == 7 * len(people)

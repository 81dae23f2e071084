"""The published files, if available: their sizes, and that no held-out sample is used for training."""

import numpy as np
import pytest

from edgefl.config import DataConfig, PartitionConfig
from edgefl.data import copy_shard, list_datasets, load_data, make_client_partitions
from edgefl.data.datasets.fetch import find_file
from edgefl.data.recordings import find_recordings

HERE = {row["name"]: row["here"] for row in list_datasets()}


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not HERE[name], reason=f"{name} is not in EDGEFL_DATA")


@needs("cifar10")
def test_cifar_10() -> None:
    data = load_data(DataConfig("cifar10"), 1, scale=False)
    assert data.x_train.shape == (50000, 32, 32, 3) and data.x_train.dtype == np.uint8
    assert (
        np.bincount(data.y_train).tolist() == [5000] * 10 and np.bincount(data.y_test).tolist() == [1000] * 10
    )
    client_partitions = make_client_partitions(data, PartitionConfig("p-majority", 50, {"p": 1.0}), 1)
    shard = copy_shard(data, client_partitions["client-049"])
    assert shard.x_train.dtype == np.float32 and 0.9 < shard.x_train.max() <= 1
    assert sorted(np.bincount(shard.y_train, minlength=10))[-3:] == [0, 250, 250]


@needs("cifar100")
def test_cifar_100() -> None:
    data = load_data(DataConfig("cifar100"), 1, scale=False)
    assert data.coarse is not None and len(data.coarse) == data.num_classes
    assert np.bincount(data.y_train).tolist() == [500] * data.num_classes
    assert bool(data.note) == (data.num_classes < 100)
    made = make_client_partitions(data, PartitionConfig("pachinko", 50, {}), 1)
    assert (
        np.mean([len(np.unique(data.y_train[own.train])) for own in made.values()]) < 0.6 * data.num_classes
    )


@needs("mnist-writers")
def test_writers() -> None:
    data = load_data(DataConfig("mnist-writers"), 1, scale=False)
    assert data.group_train is not None and data.group_test is not None
    assert set(data.group_test) <= set(data.group_train) and len(set(data.group_train)) >= 400
    assert len(data.y_test) / (len(data.y_train) + len(data.y_test)) == pytest.approx(0.2, abs=0.005)
    made = make_client_partitions(data, PartitionConfig("group", 100, {}), 1)
    assert all(len(own.train) >= 10 for own in made.values())


@needs("uci-har")
def test_no_window_overlaps_a_held_out_one() -> None:
    raw = load_data(DataConfig("uci-har", options={"standardise": False}), 1)
    assert raw.group_train is not None and raw.group_test is not None
    both = np.concatenate([raw.x_train, raw.x_test])
    found = find_recordings(both)
    trained = len(raw.y_train)
    assert found is not None and found.measure_joined_share() > 0.99
    assert not found.find_overlapping(np.arange(trained, len(both)))[:trained].any()
    assert not set(found.group[:trained]) & set(found.group[trained:])
    assert (np.bincount(raw.y_test) > 150).all()
    assert raw.recording_train is not None
    for recording in np.unique(raw.recording_train):
        assert len(set(found.group[:trained][raw.recording_train == recording])) == 1
    data = load_data(DataConfig("uci-har"), 1)
    channels = data.x_train.reshape(-1, 9)
    np.testing.assert_allclose(channels.std(axis=0), 1, atol=0.1)
    assert data.x_train.dtype == np.float32


@needs("dermamnist")
def test_skin_lesions_in_packages() -> None:
    data = load_data(DataConfig("dermamnist"), 1, scale=False)
    assert (len(data.y_train), len(data.y_test)) == (8010, 2005)
    made = make_client_partitions(data, PartitionConfig("packages", 34, {}), 1)
    assert {(len(own.train), len(own.test)) for own in made.values()} == {(56, 14)}
    assert find_file("dermamnist.npz") is not None

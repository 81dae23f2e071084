import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import PartitionConfig
from edgefl.base.errors import ConfigError, DataError
from edgefl.base.types import Shard
from edgefl.data import make_shards
from edgefl.data.dataset import Dataset, subsample
from edgefl.data.partitions.shares import divide_by_shares, draw_dirichlet_shares, make_iid_shares


def make_dataset(count: int, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = np.arange(count, dtype=np.float32)[:, None]
    return Dataset(
        x_train=x,
        y_train=rng.integers(0, 5, count),
        x_test=x + 10_000,
        y_test=rng.integers(0, 5, count),
        num_classes=5,
    )


def make_client_shards(
    count: int, clients: int, seed: int = 1, partition: str = "dirichlet", **options: object
) -> list[Shard]:
    return list(
        make_shards(
            make_dataset(count), PartitionConfig(name=partition, num_clients=clients, options=options), seed
        ).values()
    )


@given(
    st.integers(0, 2**32), st.integers(1, 9), st.integers(20, 300), st.floats(0.01, 100), st.integers(1, 2)
)
def test_every_sample_goes_to_one_client_and_minimum_is_met(
    seed: int, clients: int, count: int, alpha: float, min_samples: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, 6, count)
    shares = draw_dirichlet_shares(6, clients, np.random.default_rng(seed), alpha=alpha)
    parts = divide_by_shares(labels, shares, np.random.default_rng(seed), min_samples)
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    assert min(len(part) for part in parts) >= min_samples
    again = divide_by_shares(labels, shares, np.random.default_rng(seed), min_samples)
    for part, same in zip(parts, again, strict=True):
        np.testing.assert_array_equal(part, same)


def test_samples_are_divided_by_shares() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    parts = divide_by_shares(labels, np.array([[0.75, 0.25], [0.0, 1.0]]), np.random.default_rng(0))
    assert np.bincount(labels[parts[0]], minlength=2).tolist() == [3, 0]
    assert np.bincount(labels[parts[1]], minlength=2).tolist() == [1, 4]


def test_client_without_a_share_gets_samples_of_the_largest() -> None:
    labels = np.zeros(10, np.int64)
    parts = divide_by_shares(labels, np.array([[0.7, 0.3, 0.0]]), np.random.default_rng(0), 2)
    assert [len(part) for part in parts] == [5, 3, 2]


def test_small_alpha_is_more_uneven_than_large() -> None:
    small, large = (draw_dirichlet_shares(10, 8, np.random.default_rng(0), alpha=a).std() for a in (0.1, 100))
    assert small > 5 * large
    np.testing.assert_allclose(make_iid_shares(3, 4, np.random.default_rng(0)).sum(1), 1)


def test_test_samples_have_the_class_shares_of_the_client() -> None:
    for shard in make_client_shards(4000, 5, 4, alpha=0.3):
        train, test = (np.bincount(y, minlength=5) / len(y) for y in (shard.y_train, shard.y_test))
        np.testing.assert_allclose(train, test, atol=0.06)
        assert shard.x_train.max() < 10_000 <= shard.x_test.min()


def test_shards_depend_on_the_seed_and_the_partition() -> None:
    first, again, other = (make_client_shards(400, 3, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[2].x_train, again[2].x_train)
    assert not np.array_equal(first[2].x_train, other[2].x_train)
    sizes = [len(s.y_train) for s in make_client_shards(400, 4, partition="iid")]
    assert max(sizes) - min(sizes) <= 5


def test_impossible_partitions_are_refused() -> None:
    with pytest.raises(DataError, match="4 clients, expected at least 2 each"):
        make_client_shards(7, 4)
    with pytest.raises(DataError, match="alpha is 0"):
        make_client_shards(70, 4, alpha=0.0)
    with pytest.raises(ConfigError, match="num_clients is 0"):
        make_client_shards(70, 0)
    with pytest.raises(ConfigError, match="unknown partition 'zipf'"):
        make_client_shards(70, 4, partition="zipf")


def test_subsample_draws_each_sample_once() -> None:
    few = subsample(make_dataset(100), 30, 500, seed=2)
    assert len(np.unique(few.x_train)) == 30
    assert len(few.y_test) == 100
    one = subsample(make_dataset(100), 1, 1, seed=2)
    assert (len(one.y_train), len(one.y_test)) == (1, 1)
    for too_few in ((0, 5), (5, 0)):
        with pytest.raises(DataError, match="at least one"):
            subsample(make_dataset(100), *too_few, seed=2)

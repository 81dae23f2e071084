from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.config import PartitionConfig
from edgefl.base.errors import DataError
from edgefl.data.dataset import Dataset
from edgefl.data.partitions.by_class import apportion, partition_by_counts
from edgefl.data.partitions.client_mixes import fill_counts
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.data.partitions.p_majority import draw_majority_counts
from edgefl.data.partitions.packages import draw_pairs
from edgefl.data.partitions.registry import PARTITIONS, make_client_partitions


def make_dataset(per_class: int = 120, classes: int = 10, groups: int = 12) -> Dataset:
    """Return a data set with equally frequent classes and a test part half as large. Values are indices."""
    y = np.tile(np.arange(classes), per_class)
    y_test = np.tile(np.arange(classes), per_class // 2)
    x, x_test = (np.arange(len(part), dtype=np.float32).reshape(-1, 1, 1, 1) for part in (y, y_test))
    group, group_test = (np.arange(len(part)) * 7 % groups for part in (y, y_test))
    return Dataset(
        x_train=x,
        y_train=y,
        x_test=x_test,
        y_test=y_test,
        num_classes=classes,
        group_train=group,
        group_test=group_test,
        coarse=np.arange(classes) // 3,
    )


def draw(
    name: str, clients: int, seed: int = 1, data: Dataset | None = None, **options: Any
) -> list[ClientPartition]:
    return list(
        make_client_partitions(
            data or make_dataset(), PartitionConfig(name=name, num_clients=clients, options=options), seed
        ).values()
    )


def count_classes(part: ClientPartition, data: Dataset | None = None) -> tuple[list[int], list[int]]:
    data = data or make_dataset()
    train, test = (
        np.bincount(y[i], minlength=data.num_classes)
        for y, i in ((data.y_train, part.train), (data.y_test, part.test))
    )
    return train.tolist(), test.tolist()


SMALL: dict[str, dict[str, Any]] = {
    "p-majority": {"samples": 30, "test_samples": 10},
    "tasks": {"samples": 30, "test_samples": 10},
}
ALL_USED = {"iid", "dirichlet", "shards", "quantity", "pachinko", "rotation", "permutation"}


@settings(max_examples=12)
@given(st.sampled_from(sorted(PARTITIONS)), st.integers(0, 2**32), st.integers(4, 10))
def test_no_sample_goes_to_two_clients_and_no_client_is_empty(name: str, seed: int, clients: int) -> None:
    data = make_dataset()
    client_partitions, again = (draw(name, clients, seed, data, **SMALL.get(name, {})) for _ in range(2))
    assert len(client_partitions) == clients
    for side, total in (("train", len(data.y_train)), ("test", len(data.y_test))):
        all_indices = np.concatenate([getattr(part, side) for part in client_partitions])
        assert len(np.unique(all_indices)) == len(all_indices)
        assert all_indices.min() >= 0 and all_indices.max() < total
        if name in ALL_USED and (name != "pachinko" or total % clients == 0):
            assert len(all_indices) == total
        for part, same in zip(client_partitions, again, strict=True):
            indices = getattr(part, side)
            assert len(indices) and indices.dtype == np.int64 and (np.diff(indices) > 0).all()
            np.testing.assert_array_equal(indices, getattr(same, side))
            assert part.relabel == same.relabel and part.truth == same.truth


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_partition_depends_on_the_seed(name: str) -> None:
    first, second = (draw(name, 6, seed, **SMALL.get(name, {})) for seed in (1, 2))
    same = [
        len(a.train) == len(b.train) and (a.train == b.train).all()
        for a, b in zip(first, second, strict=True)
    ]
    assert not all(same)


def test_majority_classes_get_their_share() -> None:
    counts = draw_majority_counts(10, (3, 7), 0.8, 500, np.random.default_rng(0))
    assert counts[[3, 7]].tolist() == [200, 200]
    assert counts.sum() == 500
    assert np.delete(counts, [3, 7]).sum() == 100
    even = np.mean(
        [draw_majority_counts(10, (3, 7), 0.2, 500, np.random.default_rng(seed)) for seed in range(400)],
        axis=0,
    )
    assert even[[3, 7]].tolist() == [50, 50]
    np.testing.assert_allclose(even, 50, atol=1.5)
    odd = draw_majority_counts(10, (0, 1), 1, 5, np.random.default_rng(0))
    assert odd.tolist() == [3, 2, 0, 0, 0, 0, 0, 0, 0, 0]


def test_test_samples_have_the_majority_classes_of_the_client() -> None:
    for part in draw("p-majority", 6, p=1.0, samples=40, test_samples=20):
        train, test = count_classes(part)
        assert sorted(train)[-2:] == [20, 20] and sorted(test)[-2:] == [10, 10]
        assert (np.array(train) > 0).tolist() == (np.array(test) > 0).tolist()


def test_class_with_too_few_samples_is_an_error() -> None:
    with pytest.raises(DataError, match=r"class \d has 120 training samples, the 9 clients need \d+"):
        draw("p-majority", 9, samples=400, test_samples=10)
    with pytest.raises(DataError, match="1200 training samples, the 7 clients need 1750"):
        draw("permutation", 7, samples=250)
    with pytest.raises(DataError, match="expected a number above 0"):
        draw("p-majority", 2, samples=0)


def test_samples_are_partitioned_by_counts() -> None:
    labels = np.array([0, 1, 0, 1, 0, 1])
    parts = partition_by_counts(labels, np.array([[1, 2], [2, 0]]), np.random.default_rng(0))
    assert [np.bincount(labels[part], minlength=2).tolist() for part in parts] == [[1, 2], [2, 0]]
    assert apportion(10, np.array([1.0, 1, 1])).tolist() == [4, 3, 3]
    assert apportion(200, np.array([1, 1 / 3])).tolist() == [150, 50]


def test_clients_of_sorted_shards_have_few_classes() -> None:
    for part in draw("shards", 10):
        train, test = count_classes(part)
        assert sum(train) == 120 and sum(test) == 60
        assert 1 <= sum(count > 0 for count in train) <= 3
        assert [a > 0 for a in train] == [b > 0 for b in test]


def test_quantity_partition_gives_clients_different_sizes() -> None:
    for law in ("dirichlet", "power"):
        client_partitions = draw("quantity", 8, law=law, alpha=1.0)
        sizes, test_sizes = (
            np.array([len(getattr(part, side)) for part in client_partitions]) for side in ("train", "test")
        )
        assert sizes.min() >= 10 and sizes.max() > 3 * np.median(sizes) / 2
        assert np.corrcoef(sizes, test_sizes)[0, 1] > 0.99
    power = sorted(len(part.train) for part in draw("quantity", 4, law="power", alpha=1.0, min_samples=10))[
        ::-1
    ]
    assert power == [10 + count for count in apportion(1160, 1 / np.arange(1, 5)).tolist()]
    with pytest.raises(DataError, match="'dirichlet' or 'power'"):
        draw("quantity", 8, law="normal")


def test_group_partition_gives_each_client_one_group() -> None:
    data = make_dataset()
    client_partitions = draw("group", 5)
    groups = [np.unique(data.group_train[part.train]).tolist() for part in client_partitions]  # type: ignore[index]
    assert all(len(numbers) == 1 for numbers in groups) and groups == sorted(groups)
    for part, (number,) in zip(client_partitions, groups, strict=True):
        assert (data.group_test[part.test] == number).all()  # type: ignore[index]
        assert len(part.train) == (data.group_train == number).sum()
    with pytest.raises(
        DataError, match="12 of 12 groups have at least 2 training samples and a test sample, expected 13"
    ):
        draw("group", 13)
    with pytest.raises(DataError, match="has no groups"):
        draw(
            "group",
            2,
            data=Dataset(
                x_train=data.x_train,
                y_train=data.y_train,
                x_test=data.x_test,
                y_test=data.y_test,
                num_classes=10,
            ),
        )


def test_pachinko_concentrates_clients_on_few_superclasses() -> None:
    data = make_dataset()
    with pytest.raises(DataError, match="has no superclasses"):
        draw(
            "pachinko",
            2,
            data=Dataset(
                x_train=data.x_train,
                y_train=data.y_train,
                x_test=data.x_test,
                y_test=data.y_test,
                num_classes=10,
            ),
        )
    client_partitions = draw("pachinko", 12, samples=40)
    largest = []
    for part in client_partitions:
        train, test = count_classes(part)
        assert sum(train) == 40
        np.testing.assert_allclose(test, np.array(train) / 2, atol=1)
        largest.append(max(sum(train[i] for i in range(10) if i // 3 == kind) for kind in range(4)))
    assert np.mean(largest) > 25
    even = [count_classes(part)[0] for part in draw("pachinko", 12, samples=40, alpha=1000.0, beta=1000.0)]
    assert np.mean([max(counts) for counts in even]) < 12


def test_rotation_partition_draws_turns_for_each_sample() -> None:
    client_partitions = draw("rotation", 10)
    for part in client_partitions:
        assert part.turns_train is not None and part.turns_test is not None
        assert len(part.turns_train) == len(part.train) and len(part.turns_test) == len(part.test)
        train, test = (
            np.bincount(turns, minlength=8) / len(turns) for turns in (part.turns_train, part.turns_test)
        )
        np.testing.assert_allclose(train, test, atol=0.25)
        assert part.truth == -1
    shares = [
        np.bincount(part.turns_train, minlength=8) / len(part.turns_train)  # type: ignore[arg-type]
        for part in client_partitions
    ]
    assert np.std(shares, axis=0).mean() > 0.05
    fixed = draw("rotation", 8, fixed=True, angles=4, degrees=90.0)
    assert np.bincount([part.truth for part in fixed]).tolist() == [2, 2, 2, 2]
    for part in fixed:
        assert set(part.turns_train.tolist()) == {part.truth} and part.turn_degrees == 90  # type: ignore[union-attr]
    equal = draw("rotation", 10, label_alpha=1.0, equal_sizes=True)
    assert {(len(part.train), len(part.test)) for part in equal} == {(120, 60)}
    assert max(max(count_classes(part)[0]) for part in equal) > 20
    with pytest.raises(DataError, match="equal_sizes is true without label_alpha"):
        draw("rotation", 10, equal_sizes=True)
    skewed = draw("rotation", 10, label_alpha=0.1)
    assert (
        max(max(count_classes(part)[0]) for part in skewed)
        > 60
        > max(max(count_classes(part)[0]) for part in client_partitions)
    )


def test_permutation_partition_relabels_by_cluster() -> None:
    client_partitions = draw("permutation", 8, samples=50, test_samples=20)
    assert np.bincount([part.truth for part in client_partitions]).tolist() == [2, 2, 2, 2]
    relabel_of_cluster = {part.truth: part.relabel for part in client_partitions}
    assert len(set(relabel_of_cluster.values())) == 4
    for part in client_partitions:
        assert sorted(part.relabel) == list(range(10)) and part.relabel == relabel_of_cluster[part.truth]
        assert (len(part.train), len(part.test)) == (50, 20)
    with pytest.raises(DataError, match="permutations is 25 with 4 classes, expected at most 24"):
        draw("permutation", 2, data=make_dataset(classes=4), permutations=25)


def test_packages_have_published_sizes() -> None:
    client_partitions = draw("packages", 34, data=make_dataset(500), classes=7)
    for part in client_partitions:
        train, test = count_classes(part, make_dataset(500))
        assert sorted(train)[-3:] == [0, 28, 28] and sorted(test)[-3:] == [0, 7, 7]
        assert train[7:] == [0, 0, 0]
    used = (
        np.sum([np.array(count_classes(part, make_dataset(500))[0]) for part in client_partitions], axis=0)
        // 28
    )
    assert used.max() <= 14 and used.sum() == 68


def test_all_packages_are_paired() -> None:
    for seed in range(20):
        pairs = draw_pairs(np.array([5, 3, 1, 1]), 5, np.random.default_rng(seed))
        assert np.bincount(np.ravel(pairs), minlength=4).tolist() == [5, 3, 1, 1]
        assert all(a != b for a, b in pairs)
    with pytest.raises(DataError, match="enough for 3 clients with two different classes, expected 4"):
        draw_pairs(np.array([9, 2, 1]), 4, np.random.default_rng(0))


def test_clients_of_a_cluster_have_the_same_tasks() -> None:
    client_partitions = draw("tasks", 16, samples=40, test_samples=12)
    assert np.bincount([part.truth for part in client_partitions]).tolist() == [4, 4, 4, 4]
    classes = [
        {label for label, count in enumerate(count_classes(part)[0]) if count} for part in client_partitions
    ]
    for i, part in enumerate(client_partitions):
        train, test = count_classes(part)
        assert sorted(train)[-2:] == [10, 30] and sorted(test)[-2:] == [6, 6]
        for j, other in enumerate(client_partitions):
            assert (classes[i] == classes[j]) if part.truth == other.truth else not classes[i] & classes[j]


def test_neighbouring_clusters_share_classes() -> None:
    data = make_dataset()
    parts = draw("tasks", 8, tasks=3, num_tasks=8, clusters=4, samples=30, test_samples=9, overlap=1)
    classes = {part.truth: set(np.unique(data.y_train[part.train]).tolist()) for part in parts}
    for part in parts:  # 2 classes of its own and 1 of the next cluster, so all clients have all 3
        assert set(np.unique(data.y_train[part.train]).tolist()) == classes[part.truth]
    for k in range(4):
        assert len(classes[k]) == 3
        assert len(classes[k] & classes[(k + 1) % 4]) == 1
        assert not classes[k] & classes[(k + 2) % 4]
    assert len(set.union(*classes.values())) == 8
    for options in ({"overlap": 3}, {"overlap": -1}, {"clusters": 1, "overlap": 1}):
        with pytest.raises(DataError, match=r"overlap is -?[13] with 8 tasks"):
            draw("tasks", 8, num_tasks=8, **{"clusters": 4, **options})


def test_clusters_may_share_all_classes_but_in_other_pairs() -> None:
    """With 3 tasks in 3 clusters and overlap 1, the clusters have the three pairs of the classes."""
    data = make_dataset(classes=3)
    parts = draw(
        "tasks", 6, data=data, tasks=2, num_tasks=3, clusters=3, samples=8, test_samples=4, overlap=1
    )
    pairs = {part.truth: frozenset(np.unique(data.y_train[part.train]).tolist()) for part in parts}
    assert set(pairs.values()) == {frozenset(pair) for pair in ((0, 1), (1, 2), (0, 2))}


def test_counts_follow_the_mix_until_a_class_runs_out() -> None:
    """Of 12 samples by (1/2, 1/4, 1/4), 6 fall to class 0, which has 2. The others get its 4."""
    counts = fill_counts(np.array([2, 20, 20]), np.array([0.5, 0.25, 0.25]), 12, apportion)
    assert counts.tolist() == [2, 5, 5]
    only_others = fill_counts(np.array([0, 1, 3]), np.array([1.0, 0.0, 0.0]), 4, apportion)
    assert only_others.tolist() == [0, 1, 3]


def test_clients_of_client_dirichlet_have_equal_sizes() -> None:
    data = make_dataset(500)
    parts = draw("client-dirichlet", 20, data=data, alpha=1.0)
    assert {(len(part.train), len(part.test)) for part in parts} == {(250, 125)}
    for part in parts:
        train, test = (np.array(counts) for counts in count_classes(part, data))
        assert np.abs(test - train / 2).max() <= 6  # rounding, which adds up for the last clients
    some = draw("client-dirichlet", 4, data=data, samples=30, test_samples=10)
    assert {(len(part.train), len(part.test)) for part in some} == {(30, 10)}
    with pytest.raises(DataError, match="5000 training samples for 4 clients with 1300 each"):
        draw("client-dirichlet", 4, data=data, samples=1300)
    with pytest.raises(DataError, match="2500 test samples for 2600 clients with 1 each"):
        draw("client-dirichlet", 2600, data=data)
    with pytest.raises(DataError, match="-1 training samples per client, expected 1 or more"):
        draw("client-dirichlet", 4, data=data, samples=-1)


def test_class_mixes_of_client_dirichlet_have_the_variance_of_the_distribution() -> None:
    """A share of Dir(alpha) over C classes has the variance (C - 1) / (C^2 (C alpha + 1))."""
    data = make_dataset(20_000)
    parts = draw("client-dirichlet", 300, data=data, alpha=1.0, samples=200, test_samples=1)
    shares = np.array([count_classes(part, data)[0] for part in parts]) / 200
    of_sampling = (shares * (1 - shares)).mean() / 199
    assert shares.var() - of_sampling == pytest.approx(9 / (100 * 11), rel=0.15)


def test_clients_of_a_cluster_may_lack_tasks() -> None:
    client_partitions = draw(
        "tasks", 16, tasks=3, num_tasks=10, clusters=2, samples=30, test_samples=10, imbalance=1.0
    )
    for cluster in (0, 1):
        class_sets = [
            frozenset(np.flatnonzero(count_classes(part)[0]).tolist())
            for part in client_partitions
            if part.truth == cluster
        ]
        assert len(class_sets) == 8 and all(len(classes) == 3 for classes in class_sets)
        assert len(frozenset.union(*class_sets)) == 5 and len(set(class_sets)) > 1
        used = [sum(label in classes for classes in class_sets) for label in frozenset.union(*class_sets)]
        assert sorted(used) == [4, 5, 5, 5, 5]
        assert count_classes(client_partitions[0])[0].count(10) == 3
    for options in ({"num_tasks": 12}, {"num_tasks": 9}, {"tasks": 3}):
        with pytest.raises(DataError, match="change num_tasks"):
            draw("tasks", 16, **options)
    with pytest.raises(DataError, match="3 clients in 4 clusters"):
        draw("tasks", 3)


@given(st.sampled_from(["dirichlet", "quantity", "pachinko", "rotation"]), st.floats(1e-12, 1e12))
@settings(max_examples=20)
def test_any_alpha_gives_each_client_samples(name: str, alpha: float) -> None:
    client_partitions = draw(name, 5, alpha=alpha)
    assert all(len(part.train) and len(part.test) for part in client_partitions)


def test_client_without_samples_is_an_error() -> None:
    tiny = make_dataset(1, classes=4, groups=1)
    tiny = Dataset(
        x_train=tiny.x_train,
        y_train=tiny.y_train,
        x_test=tiny.x_train[:2],
        y_test=tiny.y_train[:2],
        num_classes=4,
    )
    for name in ("iid", "dirichlet", "quantity", "shards", "permutation", "packages", "rotation"):
        with pytest.raises(DataError, match="use fewer clients"):
            draw(name, 3, data=tiny)

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.config import PartitionConfig
from edgefl.data.dataset import Dataset
from edgefl.data.partitions.by_class import apportion, partition_by_counts
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.data.partitions.p_majority import draw_majority_counts
from edgefl.data.partitions.packages import draw_pairs
from edgefl.data.partitions.registry import PARTITIONS, make_client_partitions
from edgefl.errors import DataError


def toy(per_class: int = 120, classes: int = 10, groups: int = 12) -> Dataset:
    """Return a data set with equally frequent classes and a test part half as large. Values are indices."""
    y = np.tile(np.arange(classes), per_class)
    y_test = np.tile(np.arange(classes), per_class // 2)
    x, x_test = (np.arange(len(part), dtype=np.float32).reshape(-1, 1, 1, 1) for part in (y, y_test))
    group, group_test = (np.arange(len(part)) * 7 % groups for part in (y, y_test))
    return Dataset(x, y, x_test, y_test, classes, group, group_test, np.arange(classes) // 3)


def draw(
    name: str, clients: int, seed: int = 1, data: Dataset | None = None, **options: Any
) -> list[ClientPartition]:
    return list(make_client_partitions(data or toy(), PartitionConfig(name, clients, options), seed).values())


def classes_of(own: ClientPartition, data: Dataset | None = None) -> tuple[list[int], list[int]]:
    data = data or toy()
    train, test = (
        np.bincount(y[i], minlength=data.num_classes)
        for y, i in ((data.y_train, own.train), (data.y_test, own.test))
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
    data = toy()
    made, again = (draw(name, clients, seed, data, **SMALL.get(name, {})) for _ in range(2))
    assert len(made) == clients
    for part, total in (("train", len(data.y_train)), ("test", len(data.y_test))):
        every = np.concatenate([getattr(own, part) for own in made])
        assert len(np.unique(every)) == len(every)
        assert every.min() >= 0 and every.max() < total
        if name in ALL_USED and (name != "pachinko" or total % clients == 0):
            assert len(every) == total
        for own, same in zip(made, again, strict=True):
            indices = getattr(own, part)
            assert len(indices) and indices.dtype == np.int64 and (np.diff(indices) > 0).all()
            np.testing.assert_array_equal(indices, getattr(same, part))
            assert own.relabel == same.relabel and own.truth == same.truth


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_another_seed_draws_otherwise(name: str) -> None:
    first, second = (draw(name, 6, seed, **SMALL.get(name, {})) for seed in (1, 2))
    same = [
        len(a.train) == len(b.train) and (a.train == b.train).all()
        for a, b in zip(first, second, strict=True)
    ]
    assert not all(same)


def test_two_majority_classes_by_hand() -> None:
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


def test_a_client_is_measured_on_its_majority_classes() -> None:
    for own in draw("p-majority", 6, p=1.0, samples=40, test_samples=20):
        train, test = classes_of(own)
        assert sorted(train)[-2:] == [20, 20] and sorted(test)[-2:] == [10, 10]
        assert (np.array(train) > 0).tolist() == (np.array(test) > 0).tolist()


def test_a_class_that_runs_out_says_so() -> None:
    with pytest.raises(DataError, match=r"class \d has 120 training samples, the 9 clients need \d+"):
        draw("p-majority", 9, samples=400, test_samples=10)
    with pytest.raises(DataError, match="1200 training samples, the 7 clients need 1750"):
        draw("permutation", 7, samples=250)
    with pytest.raises(DataError, match="expected a number above 0"):
        draw("p-majority", 2, samples=0)


def test_dealing_by_hand() -> None:
    labels = np.array([0, 1, 0, 1, 0, 1])
    parts = partition_by_counts(labels, np.array([[1, 2], [2, 0]]), np.random.default_rng(0))
    assert [np.bincount(labels[own], minlength=2).tolist() for own in parts] == [[1, 2], [2, 0]]
    assert apportion(10, np.array([1.0, 1, 1])).tolist() == [4, 3, 3]
    assert apportion(200, np.array([1, 1 / 3])).tolist() == [150, 50]


def test_sorted_shards_hold_few_classes() -> None:
    for own in draw("shards", 10):
        train, test = classes_of(own)
        assert sum(train) == 120 and sum(test) == 60
        assert 1 <= sum(count > 0 for count in train) <= 3
        assert [a > 0 for a in train] == [b > 0 for b in test]


def test_uneven_sizes_of_even_labels() -> None:
    for law in ("dirichlet", "power"):
        made = draw("quantity", 8, law=law, alpha=1.0)
        sizes, held = (np.array([len(getattr(own, part)) for own in made]) for part in ("train", "test"))
        assert sizes.min() >= 10 and sizes.max() > 3 * np.median(sizes) / 2
        assert np.corrcoef(sizes, held)[0, 1] > 0.99
    power = sorted(len(own.train) for own in draw("quantity", 4, law="power", alpha=1.0, min_samples=10))[
        ::-1
    ]
    assert power == [10 + count for count in apportion(1160, 1 / np.arange(1, 5)).tolist()]
    with pytest.raises(DataError, match="'dirichlet' or 'power'"):
        draw("quantity", 8, law="normal")


def test_one_client_a_group() -> None:
    data = toy()
    made = draw("group", 5)
    groups = [np.unique(data.group_train[own.train]).tolist() for own in made]  # type: ignore[index]
    assert all(len(own) == 1 for own in groups) and groups == sorted(groups)
    for own, (number,) in zip(made, groups, strict=True):
        assert (data.group_test[own.test] == number).all()  # type: ignore[index]
        assert len(own.train) == (data.group_train == number).sum()
    with pytest.raises(
        DataError, match="12 of 12 groups have at least 2 training samples and a test sample, expected 13"
    ):
        draw("group", 13)
    with pytest.raises(DataError, match="has no groups"):
        draw("group", 2, data=Dataset(data.x_train, data.y_train, data.x_test, data.y_test, 10))


def test_pachinko_keeps_to_few_superclasses() -> None:
    data = toy()
    with pytest.raises(DataError, match="has no superclasses"):
        draw("pachinko", 2, data=Dataset(data.x_train, data.y_train, data.x_test, data.y_test, 10))
    made = draw("pachinko", 12, samples=40)
    largest = []
    for own in made:
        train, test = classes_of(own)
        assert sum(train) == 40
        np.testing.assert_allclose(test, np.array(train) / 2, atol=1)
        largest.append(max(sum(train[i] for i in range(10) if i // 3 == kind) for kind in range(4)))
    assert np.mean(largest) > 25
    even = [classes_of(own)[0] for own in draw("pachinko", 12, samples=40, alpha=1000.0, beta=1000.0)]
    assert np.mean([max(counts) for counts in even]) < 12


def test_turned_samples() -> None:
    made = draw("rotation", 10)
    for own in made:
        assert own.turns_train is not None and own.turns_test is not None
        assert len(own.turns_train) == len(own.train) and len(own.turns_test) == len(own.test)
        train, test = (
            np.bincount(turns, minlength=8) / len(turns) for turns in (own.turns_train, own.turns_test)
        )
        np.testing.assert_allclose(train, test, atol=0.25)
        assert own.truth == -1
    spread = np.array([np.bincount(own.turns_train, minlength=8) / len(own.turns_train) for own in made])  # type: ignore[arg-type]
    assert spread.std(axis=0).mean() > 0.05
    fixed = draw("rotation", 8, fixed=True, angles=4, degrees=90.0)
    assert np.bincount([own.truth for own in fixed]).tolist() == [2, 2, 2, 2]
    for own in fixed:
        assert set(own.turns_train.tolist()) == {own.truth} and own.turn_degrees == 90  # type: ignore[union-attr]
    skewed = draw("rotation", 10, label_alpha=0.1)
    assert max(max(classes_of(own)[0]) for own in skewed) > 60 > max(max(classes_of(own)[0]) for own in made)


def test_permuted_labels() -> None:
    made = draw("permutation", 8, samples=50, test_samples=20)
    assert np.bincount([own.truth for own in made]).tolist() == [2, 2, 2, 2]
    known = {own.truth: own.relabel for own in made}
    assert len(set(known.values())) == 4
    for own in made:
        assert sorted(own.relabel) == list(range(10)) and own.relabel == known[own.truth]
        assert (len(own.train), len(own.test)) == (50, 20)
    with pytest.raises(DataError, match="permutations is 25 with 4 classes, expected at most 24"):
        draw("permutation", 2, data=toy(classes=4), permutations=25)


def test_packages_as_published() -> None:
    made = draw("packages", 34, data=toy(500), classes=7)
    for own in made:
        train, test = classes_of(own, toy(500))
        assert sorted(train)[-3:] == [0, 28, 28] and sorted(test)[-3:] == [0, 7, 7]
        assert train[7:] == [0, 0, 0]
    used = np.sum([np.array(classes_of(own, toy(500))[0]) for own in made], axis=0) // 28
    assert used.max() <= 14 and used.sum() == 68


def test_packages_are_paired_to_the_last() -> None:
    for seed in range(20):
        pairs = draw_pairs(np.array([5, 3, 1, 1]), 5, np.random.default_rng(seed))
        assert np.bincount(np.ravel(pairs), minlength=4).tolist() == [5, 3, 1, 1]
        assert all(a != b for a, b in pairs)
    with pytest.raises(DataError, match="enough for 3 clients with two different classes, expected 4"):
        draw_pairs(np.array([9, 2, 1]), 4, np.random.default_rng(0))


def test_tasks_of_one_cluster() -> None:
    made = draw("tasks", 16, samples=40, test_samples=12)
    assert np.bincount([own.truth for own in made]).tolist() == [4, 4, 4, 4]
    own_classes = [{label for label, count in enumerate(classes_of(own)[0]) if count} for own in made]
    for i, own in enumerate(made):
        train, test = classes_of(own)
        assert sorted(train)[-2:] == [10, 30] and sorted(test)[-2:] == [6, 6]
        for j, other in enumerate(made):
            assert (
                (own_classes[i] == own_classes[j])
                if own.truth == other.truth
                else not own_classes[i] & own_classes[j]
            )


def test_tasks_that_some_clients_lack() -> None:
    made = draw("tasks", 16, tasks=3, num_tasks=10, clusters=2, samples=30, test_samples=10, imbalance=1.0)
    for cluster in (0, 1):
        sets = [
            frozenset(np.flatnonzero(classes_of(own)[0]).tolist()) for own in made if own.truth == cluster
        ]
        assert len(sets) == 8 and all(len(own) == 3 for own in sets)
        assert len(frozenset.union(*sets)) == 5 and len(set(sets)) > 1
        used = [sum(label in own for own in sets) for label in frozenset.union(*sets)]
        assert sorted(used) == [4, 5, 5, 5, 5]
        assert classes_of(made[0])[0].count(10) == 3
    for options in ({"num_tasks": 12}, {"num_tasks": 9}, {"tasks": 3}):
        with pytest.raises(DataError, match="change num_tasks"):
            draw("tasks", 16, **options)
    with pytest.raises(DataError, match="3 clients in 4 clusters"):
        draw("tasks", 3)


@given(st.sampled_from(["dirichlet", "quantity", "pachinko", "rotation"]), st.floats(1e-12, 1e12))
@settings(max_examples=20)
def test_any_alpha_gives_each_client_something(name: str, alpha: float) -> None:
    made = draw(name, 5, alpha=alpha)
    assert all(len(own.train) and len(own.test) for own in made)


def test_a_client_that_would_be_empty() -> None:
    tiny = toy(1, classes=4, groups=1)
    tiny = Dataset(tiny.x_train, tiny.y_train, tiny.x_train[:2], tiny.y_train[:2], 4)
    for name in ("iid", "dirichlet", "quantity", "shards", "permutation", "packages", "rotation"):
        with pytest.raises(DataError, match="use fewer clients"):
            draw(name, 3, data=tiny)

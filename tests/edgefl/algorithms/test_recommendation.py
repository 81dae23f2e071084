"""Which algorithm `edgefl init` recommends: cases by hand, and the federations of the benchmark."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.algorithms.recommendation import recommend
from edgefl.data.dataset import Dataset
from edgefl.data.partitions.registry import make_shards
from edgefl.reproduce.outcomes import FEDERATIONS


def devices(*classes: str, samples: int = 100) -> list[dict[int, int]]:
    """Return devices with as many samples of each of their classes, which are digits."""
    return [{int(digit): samples for digit in own} for own in classes]


@pytest.mark.parametrize(
    ("classes", "algorithm"),
    [
        (["012", "012", "012"], "pfl-mfe"),
        (["01", "12", "23"], "pfl-mfe"),  # neighbours share a class, so all are one group
        (["01", "23", "01", "32"], "clustered"),
        (["01", "12", "45", "56"], "clustered"),
        (["01", "01", "23"], "pfl-mfe"),  # a group of one device has nobody to learn from
        (["01", "23", "13", "02"], "pfl-mfe"),  # the third device joins the first two
        (["0123"], "pfl-mfe"),
    ],
)
def test_groups_without_a_common_class_get_models_of_their_own(classes, algorithm):
    assert recommend(devices(*classes)).algorithm == algorithm


def test_a_few_samples_of_a_class_join_no_groups():
    found = devices("012", "012", "345", "345")
    found[0][5] = 15  # of 315
    assert recommend(found).algorithm == "clustered"
    assert "2 groups" in recommend(found).reason
    found[0][5] = 16
    assert recommend(found).algorithm == "pfl-mfe"


def test_labels_that_cannot_be_classes_are_ignored():
    assert recommend([{-1: 50, 0: 50}, {-1: 50, 1: 50}, {0: 9}, {1: 9}]).algorithm == "clustered"


def test_a_caution_where_training_alone_was_as_good():
    assert not recommend(devices("012", "012")).caution
    assert "one or two of the 5 classes" in recommend(devices("01", "12", "01234")).caution
    assert not recommend(devices("01", "012", "01234")).caution
    assert not recommend(devices("01", "01")).caution  # the task has two classes
    assert "1,200 samples" in recommend(devices("0123", "0123", samples=300)).caution


@given(st.lists(st.dictionaries(st.integers(-1, 9), st.integers(0, 300), max_size=6), min_size=1, max_size=8))
def test_the_order_of_devices_does_not_matter(found):
    assert recommend(found) == recommend(found[::-1])


def test_the_benchmark_runs_what_is_recommended_for_its_groups():
    (tasks,) = [each for each in FEDERATIONS.values() if each.partition.name == "tasks"]
    labels = np.repeat(np.arange(20), 600)
    x = np.zeros((len(labels), 1), np.float32)
    shards = make_shards(Dataset(x, labels, x, labels, 20), tasks.partition, seed=1)
    dealt = [dict(enumerate(np.bincount(shard.y_train).tolist())) for shard in shards.values()]
    assert recommend(dealt).algorithm == tasks.recommended

"""The algorithm that `edgefl init` recommends: cases by hand, and the federations of the benchmark."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.data.dataset import Dataset
from edgefl.data.partitions.registry import make_shards
from edgefl.lab.reproduce.outcomes import FEDERATIONS
from edgefl.learning.algorithms.recommendation import FEW_SAMPLES_ALGORITHM, USUAL_ALGORITHM, recommend

ROOT = Path(__file__).parents[4]


def make_class_counts(*classes: str, samples: int = 100) -> list[dict[int, int]]:
    """Return the number of samples by class of each device. A device is a string of class digits."""
    return [{int(digit): samples for digit in digits} for digits in classes]


@pytest.mark.parametrize(
    ("samples", "count", "algorithm"),
    [(59, 4, "fedmix"), (60, 4, "pfl-mfe"), (59, 3, "pfl-mfe"), (1, 9, "fedmix")],
)
def test_fedmix_is_recommended_for_few_samples_on_enough_devices(samples, count, algorithm):
    advice = recommend([{0: samples}] * count)
    assert advice.algorithm == algorithm
    assert (f"{samples} samples or fewer" in advice.reason) == (algorithm == "fedmix")


def test_the_median_device_decides():
    assert recommend([{0: 10}, {0: 10}, {0: 900}, {0: 900}]).algorithm == "fedmix"
    assert recommend([{0: 10}, {0: 900}, {0: 900}, {0: 900}]).algorithm == "pfl-mfe"


def test_recommendation_warns_when_training_alone_may_be_as_good():
    assert not recommend(make_class_counts("012", "012")).caution
    assert "one or two of the 5 classes" in recommend(make_class_counts("01", "12", "01234")).caution
    assert not recommend(make_class_counts("01", "012", "01234")).caution
    assert not recommend(make_class_counts("01", "01")).caution  # the task has two classes
    assert "1,200 samples" in recommend(make_class_counts("0123", "0123", samples=300)).caution


@given(st.lists(st.dictionaries(st.integers(-1, 9), st.integers(0, 300), max_size=6), min_size=1, max_size=8))
def test_the_order_of_devices_does_not_matter(counts):
    assert recommend(counts) == recommend(counts[::-1])


@pytest.mark.parametrize("name", ["cifar100-tasks", "few", "fashion-dirichlet", "many"])
def test_benchmark_federations_name_the_recommended_algorithm(name):
    federation = FEDERATIONS[name]
    size = federation.data.num_train or 12_000
    labels = np.arange(size) % federation.model.num_classes
    x = np.zeros((len(labels), 1), np.float32)
    data = Dataset(
        x_train=x, y_train=labels, x_test=x, y_test=labels, num_classes=federation.model.num_classes
    )
    shards = make_shards(data, federation.partition, seed=1)
    class_counts = [dict(enumerate(np.bincount(shard.y_train).tolist())) for shard in shards.values()]
    assert recommend(class_counts).algorithm == federation.recommended


def test_reasons_state_the_published_results():
    """The reasons name numbers of the table of int8 models in `docs/results/outcomes.md`."""
    page = (ROOT / "docs/results/outcomes.md").read_text()
    _, _, table = page.partition("int8 above local   har")
    rows = {line.split()[0]: line.split()[1:] for line in table.partition("```")[0].splitlines()[1:]}
    gains = {name: list(map(float, row)) for name, row in rows.items()}
    usual = gains[USUAL_ALGORITHM]
    assert (sum(gain > 0 for gain in usual), len(usual)) == (6, 9)
    assert "in six of nine federations" in recommend([{0: 100, 1: 100}] * 2).reason
    few = table.split("\n")[0].split().index("few")
    assert round(gains[FEW_SAMPLES_ALGORITHM][few + 1] - usual[few + 1]) == 2
    assert "2 points better on average" in recommend([{0: 5}] * 4).reason

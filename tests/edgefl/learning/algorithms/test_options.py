import pytest

from edgefl.base.errors import ConfigError
from edgefl.learning.algorithms import REGISTRY, make_algorithm
from edgefl.learning.algorithms.options import extend_epochs

COUNTS = [
    (name, option)
    for name, entry in sorted(REGISTRY.items())
    for option in entry.defaults
    if option == "num_experts" or option.endswith("batch_size")
]


@pytest.mark.parametrize("count", [0, -1])
@pytest.mark.parametrize(("name", "option"), COUNTS)
def test_counts_below_one_are_refused_by_every_algorithm(name: str, option: str, count: int) -> None:
    with pytest.raises(ConfigError, match=rf"\b{option} is {count}, expected"):
        make_algorithm(name, None, {option: count})


@pytest.mark.parametrize(
    ("samples", "epochs", "expected"),
    [(45, 10, 67), (200, 10, 16), (1600, 10, 10), (1600, 30, 30), (45, 0, 0), (1, 10, 200), (0, 10, 10)],
)
def test_few_samples_get_more_epochs(samples: int, epochs: int, expected: int) -> None:
    """With batches of 16, 45 samples are 3 steps an epoch. 67 epochs are the first with 200 steps."""
    assert extend_epochs(epochs, 200, samples, 16) == expected


def test_epochs_stay_as_configured_without_minimum_number_of_steps() -> None:
    assert extend_epochs(7, 0, 56, 16) == 7

import pytest

from edgefl.algorithms.options import extend_epochs


@pytest.mark.parametrize(
    ("samples", "epochs", "expected"),
    [(45, 10, 67), (200, 10, 16), (1600, 10, 10), (1600, 30, 30), (45, 0, 0), (1, 10, 200), (0, 10, 10)],
)
def test_few_samples_get_more_epochs(samples: int, epochs: int, expected: int) -> None:
    """With batches of 16, 45 samples are 3 steps an epoch. 67 epochs are the first with 200 steps."""
    assert extend_epochs(epochs, 200, samples, 16) == expected


def test_epochs_stay_as_configured_without_minimum_number_of_steps() -> None:
    assert extend_epochs(7, 0, 56, 16) == 7

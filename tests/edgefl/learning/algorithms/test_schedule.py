"""Schedules of the learning rate by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError
from edgefl.learning.algorithms.schedule import SCHEDULES, scale_learning_rate


def list_scales(schedule: str, epochs: int, **options: float) -> list[float]:
    return [scale_learning_rate(schedule, epoch, epochs, **options) for epoch in range(epochs)]


def test_step_divides_the_rate_each_hundred_epochs() -> None:
    """PFL-MoE: 300 epochs, divided by 10 every 100."""
    scales = list_scales("step", 300, decay_every=100, decay_factor=0.1)
    assert scales == pytest.approx([1.0] * 100 + [0.1] * 100 + [0.01] * 100)


def test_cosine_by_hand() -> None:
    """cos(0), cos(60), cos(120) degrees are 1, .5, -.5."""
    assert list_scales("cosine", 3) == pytest.approx([1.0, 0.75, 0.25])
    assert list_scales("cosine", 1) == [1.0]


def test_constant_keeps_the_rate() -> None:
    assert list_scales("constant", 4, decay_every=2, decay_factor=0.5) == [1.0] * 4


@given(st.sampled_from(SCHEDULES), st.integers(1, 300), st.integers(1, 200), st.floats(0, 1, allow_nan=False))
def test_rates_start_at_one_and_never_rise(schedule: str, epochs: int, every: int, factor: float) -> None:
    scales = list_scales(schedule, epochs, decay_every=every, decay_factor=factor)
    assert scales[0] == 1.0 and min(scales) >= 0
    assert scales == sorted(scales, reverse=True)


def test_unknown_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"schedule is 'cosin', expected .*did you mean 'cosine'"):
        scale_learning_rate("cosin", 0, 1)

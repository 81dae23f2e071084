"""Mean and standard deviation of each channel are measured over all clients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import DataError
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms.base import PHASE_DONE
from edgefl.learning.algorithms.measurement import (
    MEAN,
    MOMENTS,
    STD,
    VARIANCE,
    MeasurementOptions,
    combine_moments,
    make_measurement,
    measure_moments,
)

NUMBERS = st.floats(-1e6, 1e6, width=32)
VARIANCES = st.floats(0, 1e6, width=32)


def moments(mean: list[float], variance: list[float]) -> dict[str, np.ndarray]:
    return {MEAN: np.array(mean, np.float32), VARIANCE: np.array(variance, np.float32)}


def test_moments_of_one_client():
    """The first channel has the values 1, 3, 5, 7, the second is 2."""
    x = np.array([[[1, 2], [3, 2]], [[5, 2], [7, 2]]], np.float32)
    measured = measure_moments(x)
    np.testing.assert_array_equal(measured[MEAN], [4, 2])
    np.testing.assert_array_equal(measured[VARIANCE], [5, 0])


def test_a_large_mean_costs_no_precision():
    x = (np.arange(200_000, dtype=np.float32) % 7 + 2**20).reshape(-1, 1)
    measured = measure_moments(x)
    assert measured[VARIANCE][0] == pytest.approx(4.0, rel=1e-4)


def test_medians_over_clients():
    """The means are 0, 2 and 10, so m = 2. The variances around 2 are 1 + 4, 9 and 1 + 64."""
    measured = combine_moments([moments([0], [1]), moments([2], [9]), moments([10], [1])])
    np.testing.assert_array_equal(measured[MEAN], [2])
    np.testing.assert_array_equal(measured[STD], [3])


@pytest.mark.parametrize("mean", [0.0, 9.81, 1e9])
def test_a_constant_channel_is_not_divided(mean):
    assert combine_moments([moments([mean], [0])] * 2)[STD] == [1]


def test_channel_with_tiny_values_is_normalized_or_named(caplog):
    """Fields in tesla have standard deviations of 1e-6, and currents in ampere of 1e-9."""
    measured = combine_moments([moments([0, 5e-5, 0], [1e-12, 4e-12, 1e-18])] * 2)
    np.testing.assert_allclose(measured[STD], [1e-6, 2e-6, 1])
    (record,) = caplog.records
    assert record.message.startswith("channel 2: the standard deviation is 1e-09, expected 1e-07 or more")
    assert "multiply this channel by a constant" in record.message


def test_one_client_with_far_larger_values_is_named(caplog):
    """Three boards at rest, and one that moves: the second channel is divided by the noise of the others."""
    rest = [moments([0, 0], [1, 1e-4])] * 3
    combine_moments([*rest, moments([0, 0], [4, 25])])
    (record,) = caplog.records
    assert record.message.startswith("channel 1: one device has values 5 from the mean, most devices 0.01")
    assert "write mean and std into [model]" in record.message


@given(
    st.lists(st.tuples(NUMBERS, VARIANCES), min_size=3, max_size=3),
    NUMBERS,
    st.floats(-(2.0**100), 2.0**100, width=32),
)
def test_one_of_four_clients_moves_nothing_beyond_the_others(honest, mean, variance):
    measured = combine_moments([*(moments([m], [v]) for m, v in honest), moments([mean], [variance])])
    means = [m for m, _ in honest]
    spread = max(means) - min(means)
    assert min(means) <= measured[MEAN][0] <= max(means)
    largest = np.sqrt(max(v for _, v in honest) + spread**2)
    smallest = np.sqrt(min(v for _, v in honest))
    assert smallest * (1 - 1e-6) <= measured[STD][0] <= max(largest * (1 + 1e-6), 1)


def test_the_round_returns_the_measured_values():
    algorithm = make_measurement(None, MeasurementOptions())
    rng = np.random.default_rng(0)
    state = algorithm.init(moments([0], [0]), rng)
    y = np.zeros(4, np.int64)
    updates = []
    for client_id, low in (("pi-1", 1.0), ("pi-2", 5.0)):
        x = np.array([[low], [low + 2]], np.float32)
        shard = Shard(x_train=x, y_train=y[:2], x_test=x[:0], y_test=y[:0], num_classes=2)
        broadcast = algorithm.broadcast(state, client_id)
        update, _ = algorithm.local_update(broadcast, ClientState(), shard, client_id, rng)
        assert algorithm.trained.find_problem(update.deltas) == "" and update.num_samples == 2
        updates.append(update)
    after = algorithm.aggregate(state, updates)
    assert (after.round, after.phase) == (2, PHASE_DONE)
    np.testing.assert_array_equal(after.models[MOMENTS][MEAN], [4])  # of 2 and 6
    np.testing.assert_allclose(after.models[MOMENTS][STD], np.sqrt([5]))  # 1 + 4 for both
    with pytest.raises(DataError, match=r"no client reported mean and std; set both in \[model\]"):
        algorithm.aggregate(state, ())


def test_an_update_with_other_models_is_refused():
    algorithm = make_measurement(None, MeasurementOptions())
    assert "expected moments" in algorithm.trained.find_problem({"global": {}})

"""Robust means: each by hand, then with one hostile client, and FedAvg with each mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.names import GLOBAL
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, fedavg
from edgefl.learning.algorithms.robust import average_deltas, clip_delta, krum, l2_norm, median, trimmed_mean
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def make_deltas(*rows):
    return [{"w": np.array(row, np.float32)} for row in rows]


def test_norm_and_clip_by_hand():
    delta = {"a": np.array([3.0], np.float32), "b": np.array([[0.0, 4.0]], np.float32)}
    assert l2_norm(delta) == 5.0
    half = clip_delta(delta, 2.5)
    np.testing.assert_array_equal(half["a"], [1.5])
    np.testing.assert_array_equal(half["b"], [[0.0, 2.0]])
    assert clip_delta(delta, 5.0) is delta
    assert clip_delta(delta, 0.0) is delta


def test_trimmed_mean_by_hand():
    """A fifth of 1, 2, 6, 9, 1000 is cut off at either end, which leaves (2 + 6 + 9) / 3.

    The other column leaves 0, 1, 2.
    """
    rows = make_deltas([1, 0], [2, 1], [6, 2], [9, -500], [1000, 3])
    np.testing.assert_allclose(trimmed_mean(rows, 0.2)["w"], [17 / 3, 1.0], rtol=1e-6)
    np.testing.assert_allclose(trimmed_mean(rows, 0.0)["w"], [1018 / 5, -494 / 5], rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "trim", "expected"), [([[1], [5]], 0.4, 3.0), ([[7]], 0.4, 7.0), ([[1], [2], [9]], 0.01, 2.0)]
)
def test_trimmed_share_is_rounded_up_but_leaves_a_value(rows, trim, expected):
    assert trimmed_mean(make_deltas(*rows), trim)["w"][0] == expected


def test_median_by_hand():
    np.testing.assert_array_equal(median(make_deltas([1, 9], [3, 7], [1000, 8]))["w"], [3, 8])
    np.testing.assert_array_equal(median(make_deltas([1], [2], [4], [100]))["w"], [3])


def test_krum_by_hand():
    """On a line at 0, 1, 3, 7, 100 with one fault, two neighbours count.

    The scores are 10, 5, 13, 52, 18058, so Krum returns 1. The mean of the two lowest is .5.
    """
    points = make_deltas([0], [1], [3], [7], [100])
    assert krum(points, 1)["w"][0] == 1.0
    assert krum(points, 1, keep=2)["w"][0] == 0.5


def test_krum_returns_the_first_of_equal_scores():
    assert krum(make_deltas([0], [1], [0], [1], [0.5]), 1)["w"][0] == 0.0
    assert krum(make_deltas([-1], [1], [-1], [1], [-1], [1]), 1)["w"][0] == -1.0


@pytest.mark.parametrize(("count", "faults", "keep"), [(4, 1, 1), (6, 2, 1), (5, 1, 3), (5, 1, 0)])
def test_krum_rejects_too_many_faults_or_invalid_keep(count, faults, keep):
    with pytest.raises(ConfigError, match="expected"):
        krum(make_deltas(*[[i] for i in range(count)]), faults, keep)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["trimmed", "median", "krum"]),
    honest=st.lists(st.floats(-1, 1, width=32), min_size=6, max_size=9),
    hostile=st.floats(-(2.0**99), 2.0**99, width=32),
    position=st.integers(0, 6),
    count=st.integers(1, 10**6),
)
def test_hostile_client_cannot_move_mean_out_of_honest_range(kind, honest, hostile, position, count):
    rows = [[value] for value in honest]
    rows.insert(position, [hostile])
    terms = [(delta, count if i == position else 1) for i, delta in enumerate(make_deltas(*rows))]
    averaged = average_deltas(kind, terms, trim=0.1)["w"][0]
    assert min(honest) - 1e-6 <= averaged <= max(honest) + 1e-6


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["trimmed", "median", "krum"]),
    rows=st.lists(st.tuples(st.floats(-9, 9, width=32), st.floats(-9, 9, width=32)), min_size=5, max_size=8),
)
def test_robust_mean_of_equal_deltas_is_that_delta(kind, rows):
    same = [rows[0]] * len(rows)
    np.testing.assert_allclose(
        average_deltas(kind, [(d, 3) for d in make_deltas(*same)])["w"], rows[0], rtol=1e-6
    )


def aggregate_hostile_round(**options):
    """Return the model after four honest updates of 1 and one of -1000, from 0."""
    algorithm = fedavg(None, FedAvgOptions(**options))
    state = algorithm.init({"w": np.zeros(1, np.float32)}, derive_rng(1, 0, "init"))
    values = {"a": 1.0, "b": 1.0, "c": -1000.0, "d": 1.0, "e": 1.0}
    return algorithm.aggregate(
        state,
        [
            Update(client_id=c, round=1, num_samples=10, deltas={GLOBAL: {"w": np.array([v], np.float32)}})
            for c, v in values.items()
        ],
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, -199.2),
        ({"mean": "trimmed"}, 1.0),
        ({"mean": "median"}, 1.0),
        ({"mean": "krum"}, 1.0),
        ({"clip_norm": 2.0}, 0.4),
    ],
)
def test_fedavg_with_one_hostile_client(options, expected):
    assert aggregate_hostile_round(**options).models[GLOBAL]["w"][0] == pytest.approx(expected)


def test_round_too_small_for_krum_is_skipped():
    after = aggregate_hostile_round(mean="krum", krum_faults=2)
    assert after.models[GLOBAL]["w"][0] == 0.0
    assert after.round == 2


def test_the_server_optimizer_keeps_its_state_between_rounds():
    algorithm = fedavg(None, FedAvgOptions(server_optimizer="momentum", server_beta1=0.5))
    state = algorithm.init({"w": np.zeros(1, np.float32)}, derive_rng(1, 0, "init"))
    for value in (2.0, 3.0):
        state = algorithm.aggregate(
            state,
            [
                Update(
                    client_id="a",
                    round=state.round,
                    num_samples=1,
                    deltas={GLOBAL: {"w": np.array([value], np.float32)}},
                )
            ],
        )
    assert state.models[GLOBAL]["w"][0] == 6.0
    assert algorithm.aggregate(state, []).records == state.records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": "medain"}, "did you mean 'median'"),
        ({"mean": "trimmed", "trim": 0.5}, "below .5"),
        ({"server_optimizer": "adm"}, "did you mean 'adam'"),
        ({"server_beta2": 1.5}, "below 1"),
    ],
)
def test_invalid_option_is_rejected_when_the_algorithm_is_made(options, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm("fedavg", None, options)


@pytest.mark.parametrize(
    "options",
    [
        {"mean": "trimmed", "server_optimizer": "adam"},
        {"mean": "median", "server_optimizer": "yogi"},
        {"mean": "krum", "krum_faults": 0, "server_optimizer": "momentum"},
        {"clip_norm": 0.1},
        {"clip_update": 0.1, "noise_multiplier": 0.5, "withhold": "head/bias"},
    ],
)
def test_laws_hold_with_robust_means_optimizers_and_sanitization(options, shards):
    spec = softmax_spec("fedavg", inputs=4, features=3, classes=3)
    rng = np.random.default_rng(7)
    initial = {w.name: rng.normal(0, 0.5, w.shape).astype(np.float32) for w in spec.weights}
    check_algorithm(
        lambda any_learner: make_algorithm("fedavg", any_learner, options),
        SoftmaxLearner(spec),
        initial,
        shards,
    )

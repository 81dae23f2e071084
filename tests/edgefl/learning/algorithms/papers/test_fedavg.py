"""FedAvg: one two-client round by hand, then the laws."""

import numpy as np

from edgefl.base.rng import derive_rng
from edgefl.base.types import ServerState, Update
from edgefl.learning.algorithms.arithmetic import weighted_mean
from edgefl.learning.algorithms.names import GLOBAL
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, fedavg


def test_weighted_mean_by_hand():
    a = np.array([1, 2], np.float32)
    b = np.array([5, 6], np.float32)
    mean = weighted_mean([({"w": a}, 1), ({"w": b}, 3)])
    np.testing.assert_array_equal(mean["w"], np.array([4, 5], np.float32))


def test_two_clients_one_round_by_hand():
    algorithm = fedavg(None, FedAvgOptions())
    state = algorithm.init({"w": np.array([0, 8], np.float32)}, derive_rng(1, 0, "init"))
    updates = [
        Update(client_id="a", round=1, num_samples=1, deltas={GLOBAL: {"w": np.array([1, -6], np.float32)}}),
        Update(client_id="b", round=1, num_samples=3, deltas={GLOBAL: {"w": np.array([5, -2], np.float32)}}),
    ]
    after = algorithm.aggregate(state, updates)
    np.testing.assert_array_equal(after.models[GLOBAL]["w"], np.array([4, 5], np.float32))
    assert after.round == 2


def test_a_round_without_updates_changes_no_weight():
    state = ServerState(round=3, phase="federate", models={GLOBAL: {"w": np.ones(2, np.float32)}})
    after = fedavg(None, FedAvgOptions()).aggregate(state, [])
    np.testing.assert_array_equal(after.models[GLOBAL]["w"], np.ones(2, np.float32))
    assert after.round == 4


def test_weighted_mean_equals_float64_sum_and_keeps_its_inputs():
    rng = np.random.default_rng(3)
    for _ in range(50):
        scales = 10.0 ** rng.integers(-30, 20, 7)
        deltas = [
            {"w": (scale * rng.normal(size=(3, 2))).astype(np.float32), "s": np.array(scale, np.float32)}
            for scale in scales
        ]
        counts = [int(n) for n in rng.integers(1, 10**9, 7)]
        before = [{name: array.tobytes() for name, array in delta.items()} for delta in deltas]
        averaged = weighted_mean(zip(deltas, counts, strict=True))
        assert averaged is not None
        assert before == [{name: array.tobytes() for name, array in delta.items()} for delta in deltas]
        for name in ("w", "s"):
            total = deltas[0][name].astype(np.float64) * counts[0]
            for delta, n in zip(deltas[1:], counts[1:], strict=True):
                total = total + delta[name].astype(np.float64) * n
            assert (
                np.asarray(averaged[name]).tobytes()
                == (total / float(sum(counts))).astype(np.float32).tobytes()
            )

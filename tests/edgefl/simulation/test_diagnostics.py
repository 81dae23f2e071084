"""Round diagnostics do not change the results of a simulation."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig
from edgefl.learning.checkpoint import encode_server_state
from edgefl.simulation.engines.processes import choose_local_engine
from edgefl.simulation.simulate import Checkpoint, simulate

CASES = {"clustered": {"cut": "auto", "compare": "deltas", "mixing": 0.25}, "fedavg": {}, "ditto": {}}


@pytest.fixture(scope="session")
def build_linear_plan():
    """Return a function that builds plan and initial weights of a linear model for an algorithm."""
    keras = pytest.importorskip("keras", reason="the aggregator extra is not installed")
    del keras
    from edgefl.base.config import ModelConfig
    from edgefl.learning.algorithms.plans import build_plan

    def build(algorithm, options):
        return build_plan(
            FederationConfig(
                algorithm=algorithm,
                options=options,
                model=ModelConfig(name="softmax", input_shape=(4,), num_classes=3),
            )
        )

    return build


@pytest.mark.parametrize("algorithm", CASES)
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_evaluation_does_not_change_results(algorithm, processes, shards, build_linear_plan):
    options = CASES[algorithm]
    plan, initial = build_linear_plan(algorithm, options)
    config = FederationConfig(
        rounds=4,
        algorithm=algorithm,
        options=options,
        seed=2,
        clients_per_round=2 if algorithm == "ditto" else 0,
    )
    ends = []
    client_states = []
    records = []
    for every in (0, 2):
        states = {}
        round_records = []
        x = shards["pi-1"].x_test
        y = shards["pi-1"].y_test
        ends.append(
            simulate(
                plan,
                initial,
                shards,
                config,
                checkpoint=Checkpoint(clients=states),
                evaluate_every=every,
                test=(x, y),
                open_engine=choose_local_engine(processes),
                progress=lambda state, record, round_records=round_records: round_records.append(record),
            )
        )
        client_states.append(states)
        records.append(round_records)
    for first, second in zip(*(end.state.models.values() for end in ends), strict=True):
        assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    first, second = (replace(end.state, models={}) for end in ends)
    assert encode_server_state(first) == encode_server_state(second)
    for client in shards:
        assert ends[0].metrics[client] == ends[1].metrics[client]
        assert all(
            client_states[0][client].arrays[n].tobytes() == a.tobytes()
            for n, a in client_states[1][client].arrays.items()
        )
    assert ["clients" in record.measured for record in records[0]] == [False] * 4
    assert ["clients" in record.measured for record in records[1]] == [False, True, False, True]
    last = records[1][-1].measured
    assert last["clients"].keys() == shards.keys()
    # the last evaluation measures the final models of the client
    for client, figures in last["clients"].items():
        assert figures["accuracy_federated"] == pytest.approx(
            ends[1].metrics[client]["accuracy_federated"], abs=1e-6
        )
        if algorithm != "ditto":
            assert figures["accuracy_mixture"] == pytest.approx(
                ends[1].metrics[client]["accuracy_mixture"], abs=1e-6
            )
        assert figures["loss_mixture"] > 0
    assert last["models"].keys() == {
        name for name in ends[1].state.models if name not in ("initial", "local_start")
    }
    assert all(0 <= value <= 2 for record in records[0] for value in record.measured["divergence"].values())
    assert (records[0][0].similarity is not None) == (algorithm == "clustered")
    if algorithm == "clustered":
        assert records[0][0].measured["clusters"] == records[0][0].similarity["assignment"]
        assert "clusters" not in records[0][1].measured


def test_confusion_matrix_counts_each_test_sample_once(shards, build_linear_plan):
    plan, initial = build_linear_plan("fedavg", {})
    end = simulate(plan, initial, shards, FederationConfig(rounds=1))
    assert end.results.keys() == shards.keys()
    for client, result in end.results.items():
        true, predicted, counts = result.confusion.T
        assert counts.sum() == len(shards[client].y_test)
        assert result.metrics["accuracy_shipped"] == pytest.approx(
            counts[true == predicted].sum() / counts.sum()
        )
        np.testing.assert_array_equal(
            np.bincount(true, counts, 3), np.bincount(shards[client].y_test, minlength=3)
        )

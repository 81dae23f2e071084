"""Hostile boards answer every task with generated valid messages, in federations of every algorithm.

Every round closes, all honest boards get a result, and no decision changes.
"""

import math
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgefl.base.types import Update
from edgefl.base.verdict import judge_federation
from edgefl.learning.algorithms import PHASE_PERSONALIZE, REGISTRY
from edgefl.learning.algorithms.names import SCORE_METRIC_PREFIX
from edgefl.learning.algorithms.robust import average_deltas
from edgefl.protocol.server.comparison import BlendShares, ModelOrder, rank_models, read_fractions
from edgefl.protocol.server.plausibility import find_problem, list_left_out_clients
from edgefl.protocol.server.spread import summarize_accuracy
from tests.edgefl.protocol.server.hostile_board import HONEST_BOARDS, Answer, BoardNetwork, answers

TOTAL_EXAMPLES = 4 * int(os.environ.get("EDGEFL_SCHEDULES", "12"))
"""Number of federations over all algorithms: 48 in `make test`, and 10,000 in `make test-all`."""
EXAMPLES = math.ceil(TOTAL_EXAMPLES / len(REGISTRY))


def list_figures(begins, honest):
    return [dict(begin.metrics) for begin in begins if begin.client_id in honest]


def check_decisions(network):
    """Assert that the decisions are within the figures of the honest boards."""
    *rounds, last = network.closed
    for begin in (begin for action in network.closed for begin in action.begins):
        for name, value in begin.metrics.items():
            is_share = name.partition("_")[0] in ("accuracy", "auc", "r2", "score", "blend", "share")
            low, high = (0.0, 1.0) if is_share else (-1e15, 1e15)
            assert math.isnan(value) or low <= value <= high, f"{name} is {value}"
    for action in rounds:
        honest = list_figures(action.begins, network.honest)
        assert len(honest) == HONEST_BOARDS, "every honest board takes part in every round"
        losses = [figures["loss"] for figures in honest]
        assert min(losses) <= action.loss <= max(losses)
        median = summarize_accuracy([begin.metrics for begin in action.begins]).median
        accuracies = [figures["accuracy"] for figures in honest]
        assert min(accuracies) <= median <= max(accuracies)
    order = network.memory.state.read_record(ModelOrder).models
    scores = [
        read_fractions(
            Update(client_id="", round=1, num_samples=1, deltas={}, metrics=figures), SCORE_METRIC_PREFIX
        )
        for figures in list_figures(rounds[-1].begins, network.honest)
    ]
    assert order == tuple(rank_models(scores))
    shares = network.memory.state.read_record(BlendShares).by_model
    honest_part = len(list_figures(rounds[-1].begins, network.honest)) / len(rounds[-1].begins)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["local"] >= 0.3 * honest_part and shares["fine_tuned"] >= 0.65 * honest_part
    rows = [{**begin.metrics, "id": begin.client_id} for begin in last.begins]
    verdict = judge_federation(rows)
    assert {row.id for row in verdict.rows} >= set(network.honest)
    assert (verdict.overall, verdict.measure) == ("better", "accuracy")


SLOW_OR_SMALL = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


LIES = {
    "loss": 1e300,
    "validation_loss": 0.0,
    "accuracy": -24999930.0,
    "accuracy_shipped": 1.0,
    "r2_shipped": 1.0,
    "score_federated": 1.0,
    "score_local": 1.0,
    "score_mixture": 0.0,
    "blend_local": 1.0,
    "test_gained": 0.0,
    "id": 5.0,
    "test_lost": 2.0**53 - 1,
    "num_samples": 0.0,
    "seconds": 1e300,
    "epochs": 1e-320,
}


@pytest.mark.parametrize("name", sorted(REGISTRY))
@given(first=answers, second=answers)
@example(first=[Answer(models=1, metrics=LIES)], second=[Answer(models=255, samples=100_000, metrics=LIES)])
@example(first=[Answer(models=2)], second=[Answer(models=1, many=True), Answer(models=4, value=3e38)])
@SLOW_OR_SMALL
def test_hostile_boards_end_no_round_and_change_no_decision(name, first, second):
    network = BoardNetwork(name, [first, second])
    network.finish()
    state = network.memory.state
    assert network.starts == 1 and state.phase == "done"
    assert not list_left_out_clients(state) & set(network.honest)
    assert [action.opened.phase for action in network.closed][-1] == PHASE_PERSONALIZE
    assert len(network.closed) == network.config.rounds + 1
    personal = {begin.client_id for begin in network.closed[-1].begins}
    assert personal >= set(network.honest)
    assert find_problem(state, state, 0.0) == "", "all models are finite"
    check_decisions(network)


@pytest.mark.parametrize(
    "changes",
    [
        {"clients_per_round": 1},
        {"clients_per_round": 3},
        {"clients_per_round": 2, "over_selection": 2.0, "late": "keep"},
        {"mode": "async", "buffer": 2, "max_staleness": 2},
        {"codec": "int8"},
        {"codec": "top-10+deflate"},
        {"options": {"mean": "median"}},
        {"options": {"mean": "krum"}},
        {"upload_slots": 1},
    ],
    ids=str,
)
@given(first=answers, second=answers)
@example(first=[Answer(models=2)], second=[Answer(models=2)])  # unusable updates
@SLOW_OR_SMALL
def test_hostile_boards_end_no_round_of_other_modes(changes, first, second):
    network = BoardNetwork("fedavg", [first, second], **changes)
    network.finish()
    state = network.memory.state
    assert network.starts == 1 and state.phase == "done"
    assert not list_left_out_clients(state) & set(network.honest)
    assert {begin.client_id for begin in network.closed[-1].begins} >= set(network.honest)


@pytest.mark.parametrize("name", ["fedavg", "fedmix", "aem", "clustered", "fedper"])
@given(first=answers, second=answers, restart_every=st.integers(20, 35))
@SLOW_OR_SMALL
def test_hostile_boards_end_no_round_of_a_server_that_restarts(name, first, second, restart_every):
    network = BoardNetwork(name, [first, second], restart_every)
    network.finish()
    state = network.memory.state
    assert network.starts > 1 and state.phase == "done"
    assert not list_left_out_clients(state) & set(network.honest)
    assert {begin.client_id for begin in network.closed[-1].begins} >= set(network.honest)


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.integers(1, 100)), min_size=1, max_size=5),
    st.floats(-1e6, 1e6),
    st.integers(1, 100_000),
)
def test_valid_update_moves_the_mean_by_its_share_of_the_samples(honest, delta, samples):
    others = sum(count for _, count in honest)
    mean = sum(value * count for value, count in honest) / others
    terms = [({"w": np.array([value], np.float32)}, count) for value, count in (*honest, (delta, samples))]
    moved = float(average_deltas("weighted", terms)["w"][0]) - mean
    assert moved == pytest.approx(samples / (samples + others) * (delta - mean), rel=1e-4, abs=1e-5)
    for kind in ("median", "trimmed"):
        robust = average_deltas(kind, [*terms[:-1], *terms[:-1], terms[-1]])
        values = [value for value, _ in honest]
        assert min(values) - 1e-6 <= float(robust["w"][0]) <= max(values) + 1e-6

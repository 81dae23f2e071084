"""The rounds end when the smoothed accuracy of the clients no longer rises."""

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig
from edgefl.base.types import ServerState, StateRecord, Update
from edgefl.learning.algorithms import PHASE_CLUSTER, PHASE_FEDERATE, PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.names import LOCAL_EPOCHS
from edgefl.protocol.server.baseline import count_local_epochs, with_baseline
from edgefl.protocol.server.convergence import AccuracyHistory, has_stopped_rising, with_convergence_check
from edgefl.protocol.server.plausibility import mark_left_out
from tests.support.numpy_learner.softmax import softmax_spec


@pytest.mark.parametrize(
    ("accuracies", "converged"),
    [
        ([0.5] * 14, False),  # ten smoothed values, and none before them
        ([0.5] * 15, True),
        ([0.5 + number / 1000 for number in range(40)], False),
        # The mean of rounds 6 to 10 is .6, and no later mean of five rounds is higher
        ([0.5] * 5 + [0.6] * 5 + [0.59, 0.61] * 4, False),  # nine means after it
        ([0.5] * 5 + [0.6] * 5 + [0.59, 0.6] * 5, True),
        ([0.5] * 5 + [0.6] * 5 + [0.59, 0.6] * 4 + [0.6, 0.65], False),
    ],
)
def test_smoothed_maximum_by_hand(accuracies, converged):
    assert has_stopped_rising(accuracies) == converged


@given(st.lists(st.floats(0, 1), max_size=60), st.integers(15, 30))
def test_a_curve_with_a_rising_end_has_not_converged(start, length):
    rising = [2 + number for number in range(length)]
    assert not has_stopped_rising([*start, *rising])


def play(algorithm, config, list_accuracies, phase=PHASE_FEDERATE):
    """Return the state after the rounds end, each client with the accuracies of a round."""
    state = mark_left_out(ServerState(round=1, phase=phase, models={"global": {}}), ["c9"], 1)
    while state.round <= config.rounds and state.phase == phase:
        updates = [
            Update(
                client_id=f"c{i}",
                round=state.round,
                num_samples=10,
                deltas={"global": {}},
                metrics={"accuracy": value},
            )
            for i, value in enumerate(list_accuracies(state.round))
        ]
        state = algorithm.aggregate(state, iter(updates))
    return state


@dataclass(frozen=True)
class UpdateCount(StateRecord):
    count: int = 0


def make_counting_algorithm():
    """Return an algorithm whose `aggregate` reads all updates and drops all records but its own."""

    def aggregate(state, updates):
        after = replace(state, round=state.round + 1, records={})
        return after.with_record(UpdateCount(len(list(updates))))

    return replace(make_algorithm("fedavg", None, {}), aggregate=aggregate)


def test_medians_of_the_clients_end_the_rounds():
    """The honest clients stop at .8. A client that reports rising accuracies does not prolong the rounds."""
    config = FederationConfig(rounds=60, least_rounds=1)
    algorithm = with_convergence_check(make_counting_algorithm(), config)
    state = play(algorithm, config, lambda number: [min(0.1 * number, 0.8)] * 2 + [number / 60])
    # Rounds 8 to 12 are the first five at .8. Ten more smoothed values bring nothing new
    assert (state.round, state.phase) == (23, PHASE_PERSONALIZE)
    assert state.read_record(UpdateCount).count == 3
    assert list(state.read_record(AccuracyHistory).by_round) == list(range(1, 23))


@pytest.mark.parametrize(("rounds", "least", "last"), [(60, 0, 60), (60, 40, 40), (60, 15, 15), (12, 12, 12)])
def test_least_and_most_rounds(rounds, least, last):
    config = FederationConfig(rounds=rounds, least_rounds=least)
    algorithm = with_convergence_check(make_counting_algorithm(), config)
    assert play(algorithm, config, lambda number: [0.5] * 3).round == last + 1


def test_other_phases_and_rounds_without_accuracy_do_not_count():
    config = FederationConfig(rounds=40, least_rounds=1)
    algorithm = with_convergence_check(make_counting_algorithm(), config)
    assert play(algorithm, config, lambda number: [0.5], PHASE_CLUSTER).round == 41
    assert play(algorithm, config, lambda number: [math.nan] * 3).round == 41
    assert play(algorithm, config, lambda number: [0.5 if number % 2 else math.nan]).round == 30


def test_local_models_train_as_long_as_the_federation():
    config = FederationConfig(rounds=60, least_rounds=1)
    spec = softmax_spec("fedavg", inputs=2, features=2, classes=2, options={"epochs": 3})
    assert count_local_epochs(config, spec, 61) == count_local_epochs(config, spec, 60) == 180
    assert count_local_epochs(config, spec, 31) == 90
    personalized = softmax_spec(
        "fedavg",
        inputs=2,
        features=2,
        classes=2,
        options={"epochs": 3},
        personalization={"select": True, "baseline": True},
    )
    algorithm = with_baseline(make_algorithm("fedavg", None, {}), config, personalized)
    names = [weight.name for weight in personalized.weights]
    models = {name: dict.fromkeys(names, 0) for name in ("global", "local_start")}
    sent = algorithm.broadcast(ServerState(round=31, phase=PHASE_PERSONALIZE, models=models), "c0")
    assert sent.scalars[LOCAL_EPOCHS] == 90

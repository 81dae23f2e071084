"""Whatever happens to a fleet at whatever line, it ends with every client's model, to the bits of the rounds
as they were played.

`make test-faults` runs fifty seeds, a run of all tests one for each kind. A seed draws what happens, to whom
and at which line.
"""

import os
from dataclasses import dataclass

import pytest

from edgefl.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.algorithms.cohort import choose_cohort
from edgefl.client.runner import ClientRunner, WorkItem
from edgefl.rng import derive_rng
from edgefl.storage.checkpoint import decode_server_state, decode_stored_mixture
from edgefl.types import ClientState
from mqtt_broker.aggregator.journal import Journal
from tests.support.numpy_learner.softmax import SoftmaxLearner

CLIENTS = ("pi-0", "pi-1", "pi-2")
DEVICE_KINDS = ("killed", "replaced", "power-cut", "full-disk", "clock", "line-cut", "half-open", "slow-link")
KINDS = [("aggregator", kind) for kind in ("killed", "full-disk", "clock", "broker-killed", "plan-upgraded")]
KINDS += [("pi-0", kind) for kind in DEVICE_KINDS]
LINES = {"aggregator": 19_000, "pi-0": 14_000}
"""About as many lines as `at_line` counts in a process that nothing happens to; a test holds the figures near
the truth.
"""
RUNS = int(os.environ.get("EDGEFL_FAULT_RUNS", len(KINDS)))
RULES = [("pfl-mfe", "fp32"), ("pfl-mfe", "int8"), ("ditto", "fp32")]


@dataclass(frozen=True)
class Hazard:
    """What happens to whom, at which line. share: what is left of a truncated file; jump: of the clock,
    seconds.
    """

    victim: str
    kind: str
    line: str
    share: float = 0.0
    jump: float = 0.0


def draw(seed):
    """Return the run of a seed: algorithm, codec and what happens; every second run has a second fault."""
    rng = derive_rng(seed, 0, "faults")
    algorithm, codec = RULES[rng.integers(len(RULES))]
    drawn = {}
    for victim, kind in (KINDS[seed % len(KINDS)], KINDS[rng.integers(len(KINDS))])[
        : 1 + (seed // len(KINDS) + seed) % 2
    ]:
        jump = float(rng.integers(-(10**6), 10**6))
        line = str(1 + int(rng.integers(LINES[victim])))
        drawn.setdefault(victim, Hazard(victim, kind, line, float(rng.random()), jump))
    if any(hazard.kind in ("replaced", "power-cut") for hazard in drawn.values()):
        # What a board keeps for itself is lost with it; here it keeps nothing between rounds
        algorithm, codec = RULES[0]
    return algorithm, codec, tuple(drawn.values())


def replay(fleet, toys, config):
    """Return server state and mixtures of the rounds as the journal has them."""
    plan = fleet.federation.plan
    shards = {client_id: toys.shard(i, 20 + 10 * i) for i, client_id in enumerate(CLIENTS)}
    runner = ClientRunner(plan, SoftmaxLearner(plan.spec), shards, config["seed"])
    algorithm = make_algorithm(plan.spec.algorithm, None, plan.spec.options)
    own = {}
    cohorts = []
    state = algorithm.init(toys.weights(more=plan.spec.weights), derive_rng(config["seed"], 0, "init"))
    with Journal(fleet.federation.out) as journal:
        while state.round <= config["rounds"]:
            opened = journal.read_round(state.round, state.phase)
            assert [begin.client_id for begin in journal.read_accepted(opened)] == list(opened.cohort)
            updates = []
            for client_id in opened.cohort:
                broadcast = algorithm.broadcast(state, client_id)
                item = WorkItem(broadcast, own.get(client_id, ClientState()), client_id, config["codec"])
                update, own[client_id] = runner.update(item)
                updates.append(update)
            cohorts.append(
                (opened.cohort, choose_cohort(config["seed"], state, CLIENTS, config["clients_per_round"]))
            )
            state = algorithm.aggregate(state, iter(updates))
        last = algorithm.broadcast(state.__class__(**{**vars(state), "phase": PHASE_PERSONALIZE}), CLIENTS[0])
        assert sorted(
            begin.client_id
            for begin in journal.read_accepted(journal.read_round(state.round, PHASE_PERSONALIZE))
        ) == list(CLIENTS)
    mixtures = {
        c: runner.personalize(WorkItem(last, own.get(c, ClientState()), c, config["codec"]))[0]
        for c in CLIENTS
    }
    return state, mixtures, cohorts


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].tobytes() == array.tobytes() for name, array in expected.items()
    )


def test_the_lines_that_a_seed_draws_from_are_those_that_run(fleet):
    made = fleet(
        [Hazard(victim, "killed", "0") for victim in LINES],
        min_clients=3,
        quorum=1.0,
        rounds=4,
        clients_per_round=2,
    )
    made.run()
    assert made.counts.keys() == LINES.keys()
    assert all(0.7 < sum(made.counts[victim]) / lines < 1.5 for victim, lines in LINES.items()), made.counts


def test_an_aggregator_killed_at_the_end_of_the_last_round_goes_on_to_personalize(fleet, toys):
    check(
        fleet,
        toys,
        "pfl-mfe",
        "fp32",
        [Hazard("aggregator", "killed", "aggregator/service.py:_close_round#4")],
    )


def test_an_aggregator_killed_when_all_was_done_but_said_only_says_so(fleet, toys):
    check(
        fleet,
        toys,
        "pfl-mfe",
        "fp32",
        [Hazard("aggregator", "killed", "aggregator/results.py:publish_verdict#1")],
    )


@pytest.mark.parametrize(
    "place", ["aggregator/journal.py:remove_tensors#1", "aggregator/results.py:make_client_rows#1"]
)
def test_an_aggregator_killed_as_its_updates_are_let_go_still_makes_the_result(place, fleet, toys):
    check(fleet, toys, "pfl-mfe", "fp32", [Hazard("aggregator", "killed", place)])


def test_a_board_replaced_between_two_rounds_is_there_at_the_end(fleet, toys):
    check(fleet, toys, "pfl-mfe", "fp32", [Hazard("pi-0", "replaced", "transport/link.py:get#13")])


@pytest.mark.parametrize("seed", range(RUNS))
def test_nothing_is_lost_whatever_happens(seed, fleet, toys):
    check(fleet, toys, *draw(seed))


def check(fleet, toys, algorithm, codec, hazards):
    config = {"rounds": 4, "seed": 5, "clients_per_round": 2, "codec": codec}
    made = fleet(hazards, algorithm=algorithm, min_clients=3, quorum=1.0, **config)
    made.run()
    state, mixtures, cohorts = replay(made, toys, config)
    story = made.story()
    # a place that the code does not pass any more would try nothing; a drawn line may lie behind the end
    assert all(
        f"{each.kind} of {each.victim} at {each.line}" in made.log for each in hazards if "#" in each.line
    ), story
    found = decode_server_state((made.federation.out / "server_state.safetensors").read_bytes())
    assert (found.round, found.phase) == (5, "done"), story
    for model, weights in state.models.items():
        assert same(found.models[model], weights), story
    for client_id, mixture in mixtures.items():
        kept = decode_stored_mixture(
            (made.federation.directory / f"state-{client_id}" / "mixture.safetensors").read_bytes()
        ).mixture
        assert same(kept.weights, mixture.weights), f"{client_id}; {story}"
    result = made.federation.result()
    assert ([row["id"] for row in result["clients"]], result["dropped"]) == (list(CLIENTS), []), story
    if all(hazard.victim == "aggregator" for hazard in hazards):
        assert all(played == drawn for played, drawn in cohorts), f"{cohorts}; {story}"

"""Over-selected, late and asynchronous rounds: worked cases, weights of late updates, and invariants."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig, parse_config
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ServerState, Update
from edgefl.learning.algorithms import REGISTRY, make_algorithm
from edgefl.learning.algorithms.cohort import choose_cohort, choose_task_clients, count_required_updates
from edgefl.learning.client.local_training import fit_epochs
from edgefl.program.plan.spec import Plan
from edgefl.protocol.server import rounds
from edgefl.protocol.server.staleness import check_staleness, scale_late_update, weigh_staleness
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import softmax_spec


def open_round(number=3, cohort=("a", "b", "c", "d"), quorum=0.5, **options):
    return rounds.open_round(
        number, cohort, quorum=quorum, deadline_s=100.0, grace_s=10.0, now=0.0, **options
    )


def accept_updates(round, number, *clients):
    for client in clients:
        round, verdict = rounds.receive_update(round, number, client, f"{number}-{client}")
        assert verdict.kind == "accepted", verdict
    return round


def test_over_selected_round_closes_with_enough_updates():
    """Three updates of four clients are enough. The quorum is half of three, rounded up."""
    round = open_round(enough=3)
    assert round.needed == 2
    two = accept_updates(round, 3, "d", "a")
    assert not rounds.is_closed(two, 99.0)
    assert rounds.is_closed(two, 100.0)
    three = accept_updates(two, 3, "b")
    assert rounds.is_closed(three, 0.0)
    assert rounds.list_missing(three) == ("c",)
    after, verdict = rounds.receive_update(open_round(4), 3, "c", "late")
    assert (after, verdict.kind) == (open_round(4), "rejected")
    assert "stale: an update of round 3, round 4 is open" in verdict.reason
    assert open_round(enough=9).enough == 4, "no round waits for more than its cohort"


def test_late_update_counts_once_and_closes_no_synchronous_round():
    round = open_round(max_staleness=1, settled={(2, "a"): "2-a"})
    assert rounds.receive_update(round, 2, "a", "2-a")[1].kind == "repeated"
    assert "duplicate: round 2 had update 2-a of a" in rounds.receive_update(round, 2, "a", "other")[1].reason
    assert "stale" in rounds.receive_update(round, 1, "b", "x")[1].reason
    late = accept_updates(round, 2, "b", "z")
    assert late.late == {(2, "b"): "2-b", (2, "z"): "2-z"}
    assert rounds.receive_update(late, 2, "b", "2-b")[1].kind == "repeated"
    assert "duplicate" in rounds.receive_update(late, 2, "b", "other")[1].reason
    assert (rounds.count_updates(late), rounds.list_missing(late)) == (0, ("a", "b", "c", "d"))
    assert rounds.is_overdue(late, 100.0)
    # b may answer the task of this round in addition to its late update
    assert rounds.is_closed(accept_updates(late, 3, "a", "b"), 100.0)


def test_late_and_fresh_update_fill_a_buffer_of_two():
    version = open_round(enough=2, max_staleness=5, late_count=True)
    version = accept_updates(version, 1, "c")
    assert not rounds.is_closed(version, 1.0)
    version = accept_updates(version, 3, "a")
    assert rounds.is_closed(version, 1.0)
    alone = open_round(cohort=("a",), enough=2, max_staleness=5, late_count=True)
    assert rounds.is_closed(accept_updates(alone, 3, "a"), 1.0), (
        "fewer devices than the buffer holds are enough when all reported"
    )


def test_weight_of_late_updates_matches_hand_calculation():
    """For n = 1 and 3 and d = 4, an update that is three rounds late is halved: (1 * 4 + 3 * 2) / 4 = 2.5."""
    assert [weigh_staleness(s) for s in (0, 3)] == [1.0, 0.5]
    delta = {"global": {"w": np.float32([4.0])}}
    fresh = Update(client_id="a", round=5, num_samples=1, deltas=delta)
    late = Update(client_id="b", round=2, num_samples=3, deltas=delta)
    assert scale_late_update(fresh, 5) is fresh
    algorithm = make_algorithm("fedavg", None, {})
    state = ServerState(round=5, phase="federate", models={"global": {"w": np.float32([1.0])}})
    after = algorithm.aggregate(state, [scale_late_update(each, 5) for each in (fresh, late)])
    assert after.models["global"]["w"] == 3.5
    assert (
        scale_late_update(late, 5).round,
        scale_late_update(late, 5).num_samples,
        late.deltas["global"]["w"],
    ) == (5, 3, 4.0)
    assert math.isclose(
        float(scale_late_update(late, 3).deltas["global"]["w"][0]), 4 / math.sqrt(2), rel_tol=1e-6
    )


def test_over_selection_enlarges_the_cohort_but_not_required_updates():
    config = FederationConfig(clients_per_round=10, over_selection=1.3)
    state = ServerState(round=1, phase="federate", models={})
    online = [f"c{i:02}" for i in range(20)]
    cohort = choose_task_clients(config, state, online)
    assert (len(cohort), count_required_updates(config, state, cohort)) == (13, 10)
    assert (
        len(choose_task_clients(config, state, online[:8])),
        count_required_updates(config, state, online[:8]),
    ) == (8, 8)
    plain = FederationConfig(clients_per_round=10)
    assert choose_task_clients(plain, state, online) == choose_cohort(1, state, online, 10)
    assert count_required_updates(plain, state, cohort) == 0
    eleven = FederationConfig(clients_per_round=10, over_selection=1.1)
    assert len(choose_task_clients(eleven, state, online)) == 11
    buffered = FederationConfig(mode="async", buffer=4)
    assert (
        choose_task_clients(buffered, state, online),
        count_required_updates(buffered, state, online),
    ) == (tuple(online), 4)
    assert count_required_updates(buffered, ServerState(round=1, phase="personalize", models={}), online) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("over_selection = 0.9", "expected 1 \\(none\\) to 10"),
        ("over_selection = 1.3", "set clients_per_round"),
        ('mode = "asynchronous"', "expected 'sync' or 'async'"),
        ('late = "yes"', "expected 'drop' or 'keep'"),
        (
            'mode = "async"',
            "async with buffer 0 and max_staleness 10, expected buffer of at least 1 and max_staleness of "
            "at least 0",
        ),
        ('mode = "async"\nbuffer = 2\nlate = "keep"', "leave clients_per_round and late out"),
        ("buffer = 2", "is for mode = 'async'"),
        ("budget_s = 120", "seconds below deadline_s, 120"),
        ("budget_s = -1", "expected 0"),
    ],
)
def test_conflicting_round_settings_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(f"[federation]\n{text}\n")


def test_only_algorithms_with_a_global_mean_accept_late_updates():
    # That `takes_late` is right is shown by the pages of the algorithms, see tests/test_docs_pages.py
    supported = {name for name in REGISTRY if make_algorithm(name, None, {}).takes_late}
    assert {"fedavg", "ditto"} <= supported and not {"fedmix", "aem", "local"} & supported
    for name in REGISTRY:
        check_staleness(FederationConfig(algorithm=name, budget_s=5.0))
        for settings_of_rounds in ({"late": "keep"}, {"mode": "async", "buffer": 2}):
            config = FederationConfig(algorithm=name, **settings_of_rounds)
            if name in supported:
                check_staleness(config)
            else:
                with pytest.raises(
                    ConfigError,
                    match=f"does not work with {name}, expected .* mean of deltas to one global model",
                ):
                    check_staleness(config)


def test_simulator_refuses_asynchronous_rounds(shards):
    plan = Plan(spec=softmax_spec("fedavg", inputs=4, features=4, classes=3), program=b"", template=b"")
    with pytest.raises(
        ConfigError,
        match="mode 'async' needs a clock, which this simulation lacks; add the table \\[fleet\\]",
    ):
        simulate(plan, {}, shards, FederationConfig(mode="async", buffer=1))


@pytest.mark.parametrize(
    ("budget_s", "before", "epochs"),
    [
        (0.0, {}, 5),
        (0.0, {"epochs": 1.0, "seconds": 99.0}, 5),
        (10.0, {}, 1),
        (10.0, {"loss": 0.5, "seconds": 3.0}, 1),
        (10.0, {"epochs": 1.0, "seconds": 3.0}, 3),
        (10.0, {"epochs": 2.0, "seconds": 10.0}, 2),
        (10.0, {"epochs": 1.0, "seconds": 60.0}, 1),
        (10.0, {"epochs": 1.0, "seconds": 0.001}, 5),
        (10.0, {"epochs": 1.0, "seconds": 1e-320}, 5),
        (10.0, {"epochs": 1.0, "seconds": 0.0}, 1),
        (10.0, {"epochs": math.nan, "seconds": 1.0}, 1),
    ],
)
def test_epochs_are_limited_by_the_time_budget(budget_s, before, epochs):
    assert fit_epochs(budget_s, 5, before) == epochs


@given(st.integers(0, 3), st.integers(1, 4), st.booleans(), st.integers(0, 10**6))
@settings(deadline=None, max_examples=100)
def test_answers_count_once_in_time_and_rounds_replay_from_journal(staleness, buffer, counts, seed):
    """Clients repeat any of their old and new answers. A round can be rebuilt from the accepted answers."""
    rng = derive_rng(seed, 0, "answers")
    clients = "abc"
    accepted = {}
    for number in range(1, 7):
        settled = {answer: sha for answer, (sha, _) in accepted.items() if answer[0] >= number - staleness}
        terms = {"enough": buffer, "max_staleness": staleness, "late_count": counts, "settled": settled}
        round = initial_round = open_round(number, clients, **terms)
        for _ in range(int(rng.integers(0, 12))):
            answer = int(rng.integers(max(1, number - 4), number + 2)), clients[rng.integers(3)]
            sha = f"{answer}-{rng.integers(2)}"
            previous, (round, verdict) = accepted.get(answer), rounds.receive_update(round, *answer, sha)
            in_time = number - staleness <= answer[0] <= number
            if verdict.kind == "accepted":
                assert previous is None
                assert in_time
                accepted[answer] = sha, number
            elif in_time:
                assert previous is not None
                assert verdict.kind == ("repeated" if previous[0] == sha else "rejected")
            else:
                assert verdict.kind == "rejected"
            if rounds.is_closed(round, 1.0):
                break
        replayed = initial_round
        for answer, (sha, accepted_in) in sorted(accepted.items(), reverse=True):
            if accepted_in == number:
                replayed, _ = rounds.receive_update(replayed, *answer, sha)
        assert replayed == round

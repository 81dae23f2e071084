"""Over-selected, late and asynchronous rounds over a real broker; what the journal says was accepted explains
every bit of the end.
"""

import time

import numpy as np
import pytest

from edgefl.algorithms import make_algorithm
from edgefl.algorithms.cohort import choose_task_clients
from edgefl.client.local_training import derive_client_rng
from edgefl.config import FederationConfig
from edgefl.rng import derive_rng
from edgefl.server.events import OpenedRound
from edgefl.server.staleness import scale_late_update
from edgefl.storage.checkpoint import decode_server_state
from edgefl.transport.link import Message
from edgefl.types import ClientState, ServerState
from edgefl.wire.chunks import slice_chunk
from edgefl.wire.messages import Task
from edgefl.wire.strict_json import decode_json
from edgefl.wire.tensors import encode_models
from mqtt_broker.aggregator.journal import Journal
from tests.support.numpy_learner.softmax import SoftmaxLearner

ASYNC = {"mode": "async", "buffer": 2, "max_staleness": 3}


def update(toys, value):
    return encode_models(
        {"global": {name: np.full_like(array, value) for name, array in toys.weights().items()}}
    )


def moved(federation, toys):
    """Return how far the global model went, the same for each of its values."""
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    steps = {name: state.models["global"][name] - array for name, array in toys.weights().items()}
    first = next(iter(steps.values())).ravel()[0]
    assert all(np.allclose(step, first) for step in steps.values())
    return float(first)


def end(aggregator, *puppets):
    for each in puppets:
        while (task := each.next("task")).phase != "personalize":
            pass
        assert each.send(task, encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.said


def test_of_three_that_have_a_task_two_are_enough_and_the_third_is_told(
    federate, mosquitto_url, toys, puppet
):
    federation = federate(
        mosquitto_url,
        algorithm="fedavg",
        rounds=1,
        min_clients=4,
        clients_per_round=2,
        over_selection=1.5,
        quorum=1.0,
    )
    aggregator = federation.aggregator()
    ids = {f"pi-{i}": puppet(federation, f"pi-{i}") for i in range(4)}
    aggregator.wait_for("waiting for devices: 3 of 4")
    aggregator.wait_for("pi-3 is online")
    config = FederationConfig(clients_per_round=2, over_selection=1.5)
    cohort = choose_task_clients(config, ServerState(1, "federate", {}), ids)
    assert len(cohort) == 3
    tasks = {client_id: ids[client_id].next("task") for client_id in cohort}
    for client_id, value in zip(cohort[:2], (1.0, 2.0), strict=True):
        assert ids[client_id].send(tasks[client_id], update(toys, value)).outcome == "ok"
    told = ids[cohort[2]].send(tasks[cohort[2]], update(toys, 9.0))
    assert (told.outcome, "stale" in told.reason) == ("rejected", True)
    end(aggregator, *ids.values())
    assert moved(federation, toys) == pytest.approx(1.5)
    assert federation.result()["dropped"] == [{"round": 1, "id": cohort[2], "reason": "too late"}]


def test_a_late_update_is_kept_for_the_next_round_scaled_and_once(federate, mosquitto_url, toys, puppet):
    """Round 1: 1 and 1. Round 2: 1, 1 and the late 3 / sqrt 2 of as many samples each."""
    federation = federate(
        mosquitto_url, algorithm="fedavg", rounds=2, min_clients=3, quorum=0.6, grace_s=0.0, late="keep"
    )
    aggregator = federation.aggregator()
    a, b, slow = (puppet(federation, client_id) for client_id in ("a", "b", "slow"))
    first = {each: each.next("task") for each in (a, b, slow)}
    assert {task.max_staleness for task in first.values()} == {1}
    slow.close_hard()
    for each in (a, b):
        assert each.send(first[each], update(toys, 1.0)).outcome == "ok"
    second = {each: each.next("task") for each in (a, b)}
    assert {task.round for task in second.values()} == {2}
    again = puppet(federation, "slow")
    late = update(toys, 3.0)
    refused = again.send(first[slow], late, nonce=second[a].nonce)
    assert "a replayed update" in refused.reason, "each round has its own nonce"
    assert again.send(first[slow], late).outcome == "ok"
    assert again.send(first[slow], late).outcome == "ok", "sent again it is the same update"
    assert "duplicate: round 1 had update" in again.send(first[slow], update(toys, 4.0)).reason
    for each in (a, b):
        assert each.send(second[each], update(toys, 1.0)).outcome == "ok"
    end(aggregator, a, b, again)
    assert "round 2: slow reported late, for round 1 (0 of 2)" in aggregator.said
    assert "3 updates, 1 of them late" in aggregator.said
    assert moved(federation, toys) == pytest.approx(1 + (1 + 1 + 3 / np.sqrt(2)) / 3, rel=1e-6)


def test_an_update_that_is_whole_between_rounds_comes_again(federate, mosquitto_url, toys, puppet):
    """Its round closes at the deadline, and nobody is there to open the next one when its last chunk
    comes.
    """
    federation = federate(
        mosquitto_url, algorithm="fedavg", rounds=2, min_clients=3, quorum=0.6, deadline_s=2.0, late="keep"
    )
    aggregator = federation.aggregator()
    fast = [puppet(federation, client_id) for client_id in ("a", "b")]
    slow = puppet(federation, "slow")
    first = slow.next("task")
    late = update(toys, 3.0)
    begun = slow.begin(first, late)
    assert slow.next("receipt").outcome == "missing"
    for each in fast:
        assert each.send(each.next("task"), update(toys, 1.0)).outcome == "ok"
        each.say(paused="busy")
    slow.say(paused="busy", draining=True)
    aggregator.wait_for("waiting for devices: 0 of 1 online, 3 paused")
    slow.publish(begun.sha256, 0, slice_chunk(late, 0))
    told = slow.next("receipt")
    assert (told.outcome, told.reason) == ("wait", "no round is open")
    slow.say()
    second = slow.next("task")
    assert second.round == 2
    assert slow.send(first, late).outcome == "ok"
    assert slow.send(second, update(toys, 1.0)).outcome == "ok"
    for each in fast:
        each.say()
    end(aggregator, *fast, slow)
    assert "2 updates, 1 of them late" in aggregator.said


def test_a_buffer_of_two_makes_a_version_whoever_reports(federate, mosquitto_url, toys, puppet):
    """Version 1: a and b. Version 2: b's answer to it and c's to version 1. Then what was taken before is not
    taken again.
    """
    federation = federate(mosquitto_url, algorithm="fedavg", rounds=3, min_clients=3, **ASYNC)
    aggregator = federation.aggregator()
    a, b, c = (puppet(federation, client_id) for client_id in "abc")
    first = {each: each.next("task") for each in (a, b, c)}
    for each in (a, b):
        assert each.send(first[each], update(toys, 1.0)).outcome == "ok"
    second = b.next("task")
    assert (second.round, second.max_staleness) == (2, 3)
    assert b.send(second, update(toys, 2.0)).outcome == "ok"
    assert b.send(first[b], update(toys, 1.0)).outcome == "ok", "version 1 has it"
    assert "duplicate" in b.send(first[b], update(toys, 5.0)).reason
    assert c.send(first[c], update(toys, 3.0)).outcome == "ok"
    third = b.next("task")
    assert third.round == 3
    assert "duplicate: round 1 had update" in c.send(first[c], update(toys, 5.0)).reason
    assert b.send(third, update(toys, 0.0)).outcome == "ok"
    assert a.send(a.next("task"), update(toys, 2.0)).outcome == "ok", "it answers version 2"
    end(aggregator, a, b, c)
    assert moved(federation, toys) == pytest.approx(
        1 + (2 + 3 / np.sqrt(2)) / 2 + (0 + 2 / np.sqrt(2)) / 2, rel=1e-6
    )
    assert federation.result()["dropped"] == []


def replayed(federation, toys, shards, staleness):
    """Return the global model that the accepted updates give, each computed anew from the version that it
    answers.
    """
    learner = SoftmaxLearner(federation.plan.spec)
    algorithm = make_algorithm(federation.algorithm, learner, federation.plan.spec.options)
    states = [algorithm.init(toys.weights(), derive_rng(1, 0, "init"))]
    seen = set()
    with Journal(federation.out) as journal:
        for number in range(1, federation.settings["rounds"] + 1):
            begins = journal.read_accepted(OpenedRound(number, "federate", "", ()))
            assert begins
            updates = []
            for begin in begins:
                assert (begin.client_id, begin.round) not in seen, "nothing is accepted twice"
                assert 0 <= number - begin.round <= staleness
                seen.add((begin.client_id, begin.round))
                broadcast = algorithm.broadcast(states[begin.round - 1], begin.client_id)
                rng = derive_client_rng(1, broadcast, begin.client_id)
                made, _ = algorithm.local_update(
                    broadcast, ClientState(), shards[begin.client_id], begin.client_id, rng
                )
                assert made.metrics["loss"] == begin.metrics["loss"]
                updates.append(scale_late_update(made, number))
            states.append(algorithm.aggregate(states[-1], updates))
    return states[-1].models["global"]


LATE = {"clients_per_round": 2, "over_selection": 1.5, "late": "keep"}


@pytest.mark.parametrize(
    ("seed", "rounds"),
    [(0, ASYNC), (1, ASYNC), (2, LATE)],
    ids=["async 0", "async 1", "over-selected and late"],
)
def test_killed_at_any_line_it_accepts_nothing_twice_and_what_was_accepted_gives_the_bits(
    seed, rounds, federate, mosquitto_url, toys
):
    """One of the devices is slow: it has so many samples that it answers versions that are over."""
    options: dict[str, object] = {}
    federation = federate(
        mosquitto_url, **{"algorithm": "fedavg", "options": options, "rounds": 6, "min_clients": 3, **rounds}
    )
    shards = {f"pi-{i}": toys.shard(i, 4000 if i == 2 else 30) for i in range(3)}
    devices = {client_id: federation.device(client_id, shard) for client_id, shard in shards.items()}
    federation.aggregator_killed_at_lines(derive_rng(seed, 0, "kills"), 4, 22)
    assert [device.end() for device in devices.values()] == [0, 0, 0], [
        device.said for device in devices.values()
    ]
    expected = replayed(federation, toys, shards, rounds.get("max_staleness", 1))
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert (state.round, state.phase) == (7, "done")
    for name, array in expected.items():
        assert state.models["global"][name].tobytes() == array.tobytes()
    assert [row["id"] for row in federation.result()["clients"]] == sorted(shards)


def first_asked(*puppets):
    """Return who was asked, and who was not, of puppets one of which gets a task."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for each in puppets:
            event = each.link.get(0.1)
            if isinstance(event, Message) and event.topic.endswith("/task"):
                [other] = [one for one in puppets if one is not each]
                return decode_json(Task, event.payload), each, other
    raise AssertionError("nobody was asked")


def test_a_client_cannot_let_another_one_into_a_round_by_its_task(federate, mosquitto_url, puppet, toys):
    """Late updates are asked for by no cohort: a client that was not drawn must not answer with the nonce of
    one that was.
    """
    federation = federate(
        mosquitto_url, rounds=2, clients_per_round=1, min_clients=2, quorum=1.0, late="keep"
    )
    aggregator = federation.aggregator()
    task, drawn, other = first_asked(puppet(federation, "pi-1"), puppet(federation, "pi-2"))
    blob = encode_models({"global": {name: 0 * array for name, array in toys.weights().items()}})
    assert drawn.send(task, blob).outcome == "ok"
    aggregator.wait_for("round 1/2")
    later, asked, _ = first_asked(drawn, other)
    assert later.round == 2
    receipt = other.send(task, blob)
    assert receipt.outcome == "rejected", "a client that was not drawn for round 1 answered it"
    assert "nonce" in receipt.reason
    assert asked.send(later, blob).outcome == "ok"

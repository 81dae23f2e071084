"""Over-selected, late and asynchronous rounds over a real broker. The accepted updates in the journal
explain every bit of the result.
"""

import time

import numpy as np
import pytest

from edgefl.base.config import FederationConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, ServerState
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.cohort import choose_task_clients
from edgefl.learning.checkpoint import decode_server_state
from edgefl.learning.client.local_training import derive_client_rng
from edgefl.protocol.server.events import OpenedRound
from edgefl.protocol.server.staleness import scale_late_update
from edgefl.protocol.transport.link import Message
from edgefl.protocol.wire.chunks import slice_chunk
from edgefl.protocol.wire.messages import Task
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.tensors import encode_models
from mqtt_broker.aggregator.journal import Journal
from tests.support.numpy_learner.softmax import SoftmaxLearner

ASYNC = {"mode": "async", "buffer": 2, "max_staleness": 3}


def make_update(toys, value):
    return encode_models(
        {"global": {name: np.full_like(array, value) for name, array in toys.weights().items()}}
    )


def measure_step(federation, toys):
    """Return the change of the global model, which is the same for all of its values."""
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    steps = {name: state.models["global"][name] - array for name, array in toys.weights().items()}
    first = next(iter(steps.values())).ravel()[0]
    assert all(np.allclose(step, first) for step in steps.values())
    return float(first)


def finish_federation(aggregator, *puppets):
    for each in puppets:
        while (task := each.next("task")).phase != "personalize":
            pass
        assert each.send(task, encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err


def test_round_closes_after_two_of_three_updates_and_rejects_the_third(federate, mosquitto_url, toys, puppet):
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
    cohort = choose_task_clients(config, ServerState(round=1, phase="federate", models={}), ids)
    assert len(cohort) == 3
    tasks = {client_id: ids[client_id].next("task") for client_id in cohort}
    for client_id, value in zip(cohort[:2], (1.0, 2.0), strict=True):
        assert ids[client_id].send(tasks[client_id], make_update(toys, value)).outcome == "ok"
    receipt = ids[cohort[2]].send(tasks[cohort[2]], make_update(toys, 9.0))
    assert (receipt.outcome, "stale" in receipt.reason) == ("rejected", True)
    finish_federation(aggregator, *ids.values())
    assert measure_step(federation, toys) == pytest.approx(1.5)
    assert federation.result()["dropped"] == [{"round": 1, "id": cohort[2], "reason": "too late"}]


def test_late_update_joins_the_next_round_once_and_scaled(federate, mosquitto_url, toys, puppet):
    """Round 1: 1 and 1. Round 2: 1, 1 and the late 3 / sqrt 2, with as many samples each."""
    federation = federate(
        mosquitto_url, algorithm="fedavg", rounds=2, min_clients=3, quorum=0.6, grace_s=0.0, late="keep"
    )
    aggregator = federation.aggregator()
    a, b, slow = (puppet(federation, client_id) for client_id in ("a", "b", "slow"))
    first = {each: each.next("task") for each in (a, b, slow)}
    assert {task.max_staleness for task in first.values()} == {1}
    slow.drop_connection()
    for each in (a, b):
        assert each.send(first[each], make_update(toys, 1.0)).outcome == "ok"
    second = {each: each.next("task") for each in (a, b)}
    assert {task.round for task in second.values()} == {2}
    again = puppet(federation, "slow")
    late = make_update(toys, 3.0)
    refused = again.send(first[slow], late, nonce=second[a].nonce)
    assert "a replayed update" in refused.reason, "each round has its own nonce"
    assert again.send(first[slow], late).outcome == "ok"
    assert again.send(first[slow], late).outcome == "ok", "sent again it is the same update"
    assert "duplicate: round 1 had update" in again.send(first[slow], make_update(toys, 4.0)).reason
    for each in (a, b):
        assert each.send(second[each], make_update(toys, 1.0)).outcome == "ok"
    finish_federation(aggregator, a, b, again)
    assert "round 2: slow reported late, for round 1 (0 of 2)" in aggregator.err
    assert "3 updates, 1 of them late" in aggregator.err
    assert measure_step(federation, toys) == pytest.approx(1 + (1 + 1 + 3 / np.sqrt(2)) / 3, rel=1e-6)


def test_update_completed_between_rounds_is_sent_again(federate, mosquitto_url, toys, puppet):
    """The round closes at the deadline, and no client is available for the next round when the last chunk
    arrives.
    """
    federation = federate(
        mosquitto_url, algorithm="fedavg", rounds=2, min_clients=3, quorum=0.6, deadline_s=2.0, late="keep"
    )
    aggregator = federation.aggregator()
    fast = [puppet(federation, client_id) for client_id in ("a", "b")]
    slow = puppet(federation, "slow")
    first = slow.next("task")
    late = make_update(toys, 3.0)
    announcement = slow.begin(first, late)
    assert slow.next("receipt").outcome == "missing"
    for each in fast:
        assert each.send(each.next("task"), make_update(toys, 1.0)).outcome == "ok"
        each.publish_status(paused="busy")
    slow.publish_status(paused="busy", draining=True)
    aggregator.wait_for("waiting for devices: 0 of 1 online, 3 paused")
    slow.publish(announcement.sha256, 0, slice_chunk(late, 0))
    receipt = slow.next("receipt")
    assert (receipt.outcome, receipt.reason) == ("wait", "no round is open")
    slow.publish_status()
    second = slow.next("task")
    assert second.round == 2
    assert slow.send(first, late).outcome == "ok"
    assert slow.send(second, make_update(toys, 1.0)).outcome == "ok"
    for each in fast:
        each.publish_status()
    finish_federation(aggregator, *fast, slow)
    assert "2 updates, 1 of them late" in aggregator.err


def test_async_buffer_of_two_updates_makes_a_version(federate, mosquitto_url, toys, puppet):
    """Version 1: a and b. Version 2: the answer of b to it, and the answer of c to version 1. Updates
    that were accepted before are not accepted again.
    """
    federation = federate(mosquitto_url, algorithm="fedavg", rounds=3, min_clients=3, **ASYNC)
    aggregator = federation.aggregator()
    a, b, c = (puppet(federation, client_id) for client_id in "abc")
    first = {each: each.next("task") for each in (a, b, c)}
    for each in (a, b):
        assert each.send(first[each], make_update(toys, 1.0)).outcome == "ok"
    second = b.next("task")
    assert (second.round, second.max_staleness) == (2, 3)
    assert b.send(second, make_update(toys, 2.0)).outcome == "ok"
    assert b.send(first[b], make_update(toys, 1.0)).outcome == "ok", "version 1 has it"
    assert "duplicate" in b.send(first[b], make_update(toys, 5.0)).reason
    assert c.send(first[c], make_update(toys, 3.0)).outcome == "ok"
    third = b.next("task")
    assert third.round == 3
    assert "duplicate: round 1 had update" in c.send(first[c], make_update(toys, 5.0)).reason
    assert b.send(third, make_update(toys, 0.0)).outcome == "ok"
    assert a.send(a.next("task"), make_update(toys, 2.0)).outcome == "ok", "it answers version 2"
    finish_federation(aggregator, a, b, c)
    assert measure_step(federation, toys) == pytest.approx(
        1 + (2 + 3 / np.sqrt(2)) / 2 + (0 + 2 / np.sqrt(2)) / 2, rel=1e-6
    )
    assert federation.result()["dropped"] == []


def replay_updates(federation, toys, shards, staleness):
    """Return the global model of the accepted updates. Each is recomputed from the version that it
    answers.
    """
    learner = SoftmaxLearner(federation.plan.spec)
    algorithm = make_algorithm(federation.algorithm, learner, federation.plan.spec.options)
    states = [algorithm.init(toys.weights(), derive_rng(1, 0, "init"))]
    seen = set()
    with Journal(federation.out) as journal:
        for number in range(1, federation.settings["rounds"] + 1):
            begins = journal.read_accepted(OpenedRound(number=number, phase="federate", nonce="", cohort=()))
            assert begins
            updates = []
            for begin in begins:
                assert (begin.client_id, begin.round) not in seen, "nothing is accepted twice"
                assert 0 <= number - begin.round <= staleness
                seen.add((begin.client_id, begin.round))
                broadcast = algorithm.broadcast(states[begin.round - 1], begin.client_id)
                rng = derive_client_rng(1, broadcast, begin.client_id)
                result, _ = algorithm.local_update(
                    broadcast, ClientState(), shards[begin.client_id], begin.client_id, rng
                )
                assert result.metrics["loss"] == begin.metrics["loss"]
                updates.append(scale_late_update(result, number))
            states.append(algorithm.aggregate(states[-1], updates))
    return states[-1].models["global"]


LATE = {"clients_per_round": 2, "over_selection": 1.5, "late": "keep"}


@pytest.mark.parametrize(
    ("seed", "rounds"),
    [(0, ASYNC), pytest.param(1, ASYNC, marks=pytest.mark.slow), (2, LATE)],
    ids=["async 0", "async 1", "over-selected and late"],
)
def test_killed_aggregator_accepts_no_update_twice_and_keeps_the_bits(
    seed, rounds, federate, mosquitto_url, toys
):
    """One device has many samples. It is slow and answers old versions."""
    options: dict[str, object] = {}
    federation = federate(
        mosquitto_url, **{"algorithm": "fedavg", "options": options, "rounds": 6, "min_clients": 3, **rounds}
    )
    shards = {f"pi-{i}": toys.shard(i, 4000 if i == 2 else 30) for i in range(3)}
    devices = {client_id: federation.device(client_id, shard) for client_id, shard in shards.items()}
    federation.run_aggregator_with_kills(derive_rng(seed, 0, "kills"), 4, 22)
    assert [device.end() for device in devices.values()] == [0, 0, 0], [
        device.err for device in devices.values()
    ]
    expected = replay_updates(federation, toys, shards, rounds.get("max_staleness", 1))
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert (state.round, state.phase) == (7, "done")
    for name, array in expected.items():
        assert state.models["global"][name].tobytes() == array.tobytes()
    assert [row["id"] for row in federation.result()["clients"]] == sorted(shards)


def find_asked_client(*puppets):
    """Wait until one of two puppets receives a task. Return the task, that puppet and the other one."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for each in puppets:
            event = each.link.get(0.1)
            if isinstance(event, Message) and event.topic.endswith("/task"):
                [other] = [puppet for puppet in puppets if puppet is not each]
                return decode_json(Task, event.payload), each, other
    raise AssertionError("nobody was asked")


def test_client_cannot_join_a_round_with_the_task_of_another(federate, mosquitto_url, puppet, toys):
    """No cohort limits late updates: a client that was not drawn must not answer with the nonce of a
    client that was.
    """
    federation = federate(
        mosquitto_url, rounds=2, clients_per_round=1, min_clients=2, quorum=1.0, late="keep"
    )
    aggregator = federation.aggregator()
    task, drawn, other = find_asked_client(puppet(federation, "pi-1"), puppet(federation, "pi-2"))
    blob = encode_models({"global": {name: 0 * array for name, array in toys.weights().items()}})
    assert drawn.send(task, blob).outcome == "ok"
    aggregator.wait_for("round 1/2")
    later, asked, _ = find_asked_client(drawn, other)
    assert later.round == 2
    receipt = other.send(task, blob)
    assert receipt.outcome == "rejected", "a client that was not drawn for round 1 answered it"
    assert "nonce" in receipt.reason
    assert asked.send(later, blob).outcome == "ok"

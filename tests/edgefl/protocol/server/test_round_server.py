"""The round server without a broker: rounds match the stored rounds despite any faults and crashes."""

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig
from edgefl.protocol.device.events import TaskReceived
from edgefl.protocol.server.events import StatusReceived, Stop
from edgefl.protocol.server.plausibility import list_left_out_clients, mark_left_out
from edgefl.protocol.wire.divergence_message import FederationDivergedError
from edgefl.protocol.wire.machine_events import Publish
from edgefl.protocol.wire.messages import DIVERGED_PREFIX, REFUSAL_PREFIX
from edgefl.protocol.wire.topics import parse_topic
from tests.edgefl.protocol.server.hostile_network import HostileNetwork

SCHEDULES = int(os.environ.get("EDGEFL_SCHEDULES", "100"))
KINDS = (
    "repeat",
    "repeat to client",
    "replay",
    "lose",
    "lose to client",
    "disconnect",
    "connect",
    "pause",
    "resume",
    "restart client",
    "crash client",
    "crash",
    "restart server",
    "link",
)
PROGRESS = ("to server", "to client", "drain", "train", "time")
MODES = {
    "sync": {},
    "half of them": {"clients_per_round": 2},
    "over-selected": {"clients_per_round": 2, "over_selection": 2.0, "late": "keep"},
    "async": {"mode": "async", "buffer": 2, "max_staleness": 2},
}
# Most steps make progress, so that schedules reach later rounds
steps = st.lists(
    st.tuples(st.sampled_from((*PROGRESS * 3, *KINDS)), st.integers(0, 10_000)),
    min_size=40,
    max_size=150,
)


def make_network(clients=3, **changes):
    values = {"rounds": 3, "min_clients": 2, "seed": 5, "deadline_s": 20.0, "grace_s": 2.0} | changes
    return HostileNetwork(FederationConfig(**values), clients)


@pytest.mark.parametrize("mode", MODES)
def test_federation_without_faults_personalizes_every_client(mode):
    network = make_network(**MODES[mode])
    network.finish()
    _, personal = network.check()
    assert {client_id for client_id, _ in personal} == set(network.clients)
    assert network.starts == 1


def test_no_round_opens_until_enough_clients_are_online():
    network = make_network(clients=1)
    for _ in range(10):
        if network.to_server:
            network.step("to server", 0)
        network.step("time", 99)
    assert network.memory.opened == {}
    assert not [event for _, event in network.to_clients if isinstance(event, TaskReceived)]


@pytest.mark.parametrize("mode", MODES)
@given(schedule=steps)
@example(schedule=[("crash", 0), ("to server", 0), ("to server", 0)])
@settings(
    max_examples=SCHEDULES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_any_schedule_ends_in_the_state_of_stored_rounds(mode, schedule):
    network = make_network(**MODES[mode])
    for kind, index in schedule:
        network.step(kind, index)
    network.finish()
    network.check()


def test_stopped_server_only_withdraws_messages_and_publishes_its_state():
    network = make_network()

    def fail():
        raise ValueError("no nonce")

    network.new_nonce = fail
    network.start_server()
    network.step("drain", 0)
    with pytest.raises(ValueError, match="no nonce"):
        network.step("time", 99)
    actions = network.server.stop({"reason": 1.0})
    assert all(isinstance(action, Publish) for action in actions), actions
    *withdrawn, last = actions
    assert withdrawn and all(action.message == b"" and action.is_retained for action in withdrawn)
    assert (last.message.phase, last.message.settings["reason"]) == ("stopped", 1.0)


def test_excluded_client_joins_no_asynchronous_round():
    network = make_network(**MODES["async"])
    network.memory.state = mark_left_out(network.first_state, ["c0"], 1)
    assert list_left_out_clients(network.memory.state) == {"c0"}
    network.start_server()
    for _ in range(3):
        network.step("drain", 0)
        network.step("time", 99)
    asked = {client_id for client_id, client in network.clients.items() if client.training}
    assert asked == {"c1", "c2"}


def test_client_revoked_before_a_restart_gets_no_task():
    network = make_network(clients=2)
    network.step("drain", 0)
    actions = network.make_server(network.memory.resume(network.config)).start(
        network.now, {"c1": "c1 was revoked"}
    )
    asked = {parse_topic(each.topic).client_id for each in actions if isinstance(each, Publish)}
    assert "c0" in asked and "c1" not in asked


def list_stops(reporters):
    """Return the errors that stop a federation of four when `reporters` clients report that they diverged."""
    network = make_network(clients=4, quorum=1.0, min_clients=4)
    network.step("drain", 0)
    errors = []
    for i in range(reporters):
        event = network.client_statuses[f"c{i}"]
        paused = f"{REFUSAL_PREFIX}round 1: {DIVERGED_PREFIX}the loss is nan"
        status = StatusReceived(replace(event.status, paused=paused))
        actions = network.server.handle(status, network.now)
        errors += [action.error for action in actions if isinstance(action, Stop)]
    return errors


def test_fewer_than_half_of_the_clients_end_no_federation_by_saying_that_they_diverged():
    assert list_stops(1) == []
    (error,) = list_stops(2)
    assert isinstance(error, FederationDivergedError) and error.divergence.clients == 2


def open_first_round(network):
    """Play until the first round is open, and return its cohort. No client has trained."""
    while not network.memory.opened:
        network.step("drain", 0)
        network.step("time", 1)
    return network.memory.opened[1, "federate"].cohort


@pytest.mark.parametrize("cohort_size", [1, 2])
def test_silent_cohort_is_completed_by_other_clients(cohort_size):
    """Without the other clients the round would end the federation, also after each restart."""
    network = make_network(clients=4, min_clients=4, clients_per_round=cohort_size, quorum=1.0)
    silent = open_first_round(network)[0]
    while not network.memory.opened[1, "federate"].is_closed:
        network.step("drain", 0)
        for client_id in network.clients.keys() - {silent}:
            network.train(network.clients[client_id])
        network.step("time", 30)
        assert network.starts == 1 and network.now < 60, "the round does not close"
    reporters = {client_id for client_id, _ in network.memory.accepted[1, "federate"]}
    assert reporters == network.clients.keys() - {silent}


def test_small_cohort_ends_no_federation_by_saying_that_it_diverged():
    network = make_network(clients=4, min_clients=4, clients_per_round=1)
    (first,) = open_first_round(network)
    errors = []
    for client_id in sorted(network.clients, key=lambda name: name != first):
        paused = f"{REFUSAL_PREFIX}round 1: {DIVERGED_PREFIX}the loss is nan"
        status = StatusReceived(replace(network.client_statuses[client_id].status, paused=paused))
        errors.append([a.error for a in network.server.handle(status, network.now) if isinstance(a, Stop)])
    assert errors[:3] == [[]] * 3
    ((error,),) = errors[3:]
    assert (error.divergence.clients, error.divergence.cohort) == (4, 4)

"""How often a round commits its updates, and who gets a task again after the link was down."""

import pytest

from edgefl.config import FederationConfig
from edgefl.server.events import CommitUpdates, LinkRestored, TimePassed
from edgefl.server.update_collector import GROUP_COMMIT_DELAY_S
from edgefl.wire.messages import Task
from tests.edgefl.server.hostile_network import HostileNetwork


@pytest.fixture
def network():
    made = HostileNetwork(FederationConfig(algorithm="fedavg", rounds=1, min_clients=3), clients=3)
    made.commits = []
    apply = made.memory.apply

    def recorded(action):
        if isinstance(action, CommitUpdates):
            made.commits.append(sorted(begin.client_id for begin in action.begins))
        apply(action)

    made.memory.apply = recorded
    made.step("drain", 0)
    made.step("drain", 0)
    return made


def test_updates_that_close_a_round_are_committed_together(network):
    for index in range(3):
        network.step("train", index)
    network.step("drain", 0)
    assert network.commits == [["c0", "c1", "c2"]]


def test_an_update_waits_a_moment_for_others_and_no_longer(network):
    network.step("train", 1)
    network.step("drain", 0)
    assert network.commits == []
    assert network.server.get_timer() <= network.now + GROUP_COMMIT_DELAY_S
    network.now = network.server.get_timer()
    network.handle(TimePassed())
    assert network.commits == [["c1"]]


def test_clients_that_are_missing_get_their_task_again_when_the_link_is_restored(network):
    network.step("train", 0)
    network.step("drain", 0)
    network.now += GROUP_COMMIT_DELAY_S
    network.handle(TimePassed())
    network.to_clients.clear()
    network.handle(LinkRestored())
    asked = [client_id for client_id, message in network.to_clients if isinstance(message, Task)]
    assert sorted(asked) == ["c1", "c2"]

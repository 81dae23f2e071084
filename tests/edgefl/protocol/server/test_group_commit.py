"""How often a round commits its updates, and which clients get a task again after a lost link."""

import pytest

from edgefl.base.config import FederationConfig
from edgefl.protocol.device.events import TaskReceived
from edgefl.protocol.server.events import CommitUpdates
from edgefl.protocol.server.update_collector import GROUP_COMMIT_DELAY_S
from edgefl.protocol.wire.machine_events import LinkRestored, TimePassed
from tests.edgefl.protocol.server.hostile_network import HostileNetwork


@pytest.fixture
def network():
    made = HostileNetwork(FederationConfig(algorithm="fedavg", rounds=1, min_clients=3), clients=3)
    made.commits = []
    apply = made.memory.apply

    def record_commits(action):
        if isinstance(action, CommitUpdates):
            made.commits.append(sorted(begin.client_id for begin in action.begins))
        apply(action)

    made.memory.apply = record_commits
    for _ in range(10):
        made.step("drain", 0)
    assert all(client.training for client in made.clients.values())
    return made


def test_updates_that_close_a_round_are_committed_together(network):
    for index in range(3):
        network.step("train", index)
    network.step("drain", 0)
    assert network.commits == [["c0", "c1", "c2"]]


def test_update_is_committed_after_the_group_commit_delay(network):
    network.step("train", 1)
    network.step("drain", 0)
    assert network.commits == []
    assert network.server.get_timer() <= network.now + GROUP_COMMIT_DELAY_S
    network.now = network.server.get_timer()
    network.handle(TimePassed())
    assert network.commits == [["c1"]]


def test_missing_clients_get_their_task_again_when_link_is_restored(network):
    network.step("train", 0)
    network.step("drain", 0)
    network.now += GROUP_COMMIT_DELAY_S
    network.handle(TimePassed())
    network.to_clients.clear()
    network.handle(LinkRestored())
    asked = [client_id for client_id, message in network.to_clients if isinstance(message, TaskReceived)]
    assert sorted(asked) == ["c1", "c2"]

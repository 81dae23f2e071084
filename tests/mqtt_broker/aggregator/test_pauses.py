"""Pauses over a real broker: by conditions, by the operator of a board and by the operator of the
aggregator, and their effects on a round.
"""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from devices.availability import pause_device, resume_device
from devices.conditions import TimeWindow
from devices.store import read_last_round
from edgefl.base.errors import ConfigError, StateError
from edgefl.protocol.server import rounds
from edgefl.protocol.server.presence import Presence
from edgefl.protocol.wire.messages import Status
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.tensors import encode_models
from mqtt_broker.aggregator.pauses import pause_clients, read_paused_clients, resume_clients
from mqtt_broker.commands import aggregator as aggregator_command


def make_status(client_id="pi-1", *, online=True, paused="", draining=False):
    return Status(
        client_id=client_id,
        boot_id="b",
        online=online,
        born=0.0,
        num_samples=1,
        version="0",
        ts=0.0,
        paused=paused,
        draining=draining,
    )


def make_presence(*statuses):
    made = Presence()
    for each in statuses:
        made.update(each)
    return made


def make_update(toys):
    return encode_models({"global": {name: np.zeros_like(array) for name, array in toys.weights().items()}})


def list_cohort_sizes(messages):
    return [
        json.loads(message.payload)["cohort_size"] for message in messages if message.topic.endswith("/state")
    ]


def make_future_window():
    """Return a window of one hour that begins five hours from now."""
    now = time.localtime()
    start = (60 * now.tm_hour + now.tm_min + 300) % 1440
    return str(TimeWindow(start, (start + 60) % 1440))


def test_presence_lists_available_and_resting_clients():
    seen = make_presence(
        make_status("a"),
        make_status("b", paused="busy"),
        make_status("c", paused="operator"),
        make_status("d", online=False),
        make_status("e"),
        make_status("f", paused="busy", draining=True),
        make_status("g", online=False, paused="busy"),
    )
    paused_clients = frozenset({"e"})
    assert seen.list_online() == ("a", "b", "c", "e", "f")
    assert seen.list_available(paused_clients) == ("a",)
    assert seen.list_for_personalization(paused_clients) == ("a", "b", "f")
    assert [client_id for client_id in "abcdefg" if seen.is_resting(client_id)] == ["b", "c"]
    refuses = make_status("h", paused="refuses the plan: it names a module")
    assert [seen.describe(client_id) for client_id in "abdx"] == [
        "online",
        "paused (busy)",
        "offline",
        "offline",
    ]
    seen.update(refuses)
    assert seen.list_for_personalization(paused_clients) == ("a", "b", "f"), "it may refuse for ever"


def test_waiting_for_a_paused_client_does_not_count_as_an_extension():
    round = rounds.open_round(1, ("a",), quorum=1.0, deadline_s=1.0, grace_s=0.0, now=0.0)
    for turn in range(10):
        round = rounds.extend_round(round, float(turn), counts=False)
    assert (round.extensions, round.closes) == (0, 10.0)


def test_paused_clients_are_stored_in_the_directory(tmp_path):
    assert read_paused_clients(tmp_path) == frozenset()
    pause_clients(tmp_path, ["pi-2", "pi-1"])
    (tmp_path / "paused" / ".pi-3.x1").touch()  # an unfinished write
    assert read_paused_clients(tmp_path) == {"pi-1", "pi-2"}
    resume_clients(tmp_path, ["pi-1", "pi-9"])
    assert read_paused_clients(tmp_path) == {"pi-2"}
    with pytest.raises(ConfigError, match="client id"):
        pause_clients(tmp_path, ["../pi-1"])
    with pytest.raises(StateError, match="no directory"):
        pause_clients(tmp_path / "none", ["pi-1"])
    asked = CliRunner().invoke(aggregator_command, ["status", "--out", str(tmp_path), "--json"])
    assert json.loads(asked.stdout) == {"paused": ["pi-2"]}
    mistaken = CliRunner().invoke(aggregator_command, ["status", "--out", str(tmp_path / "none")])
    assert "no directory" in str(mistaken.exception)


def test_board_outside_its_hours_stays_connected_and_is_not_chosen(federate, mosquitto_url, toys, listen):
    federation = federate(mosquitto_url, rounds=2, min_clients=2, grace_s=0.0)
    listener = listen(federation, federation.topics.format_device("pi-3", "status"))
    waiting = federation.device("pi-3", toys.shard(3), "--between", make_future_window())
    status = json.loads(listener.wait_until_online()[-1].payload)
    assert status["paused"].startswith("outside ")
    listener = listen(federation, federation.topics.state)
    aggregator = federation.aggregator()
    aggregator.wait_for("pi-3 is paused (outside")
    aggregator.wait_for("waiting for devices: 0 of 2 online, 1 paused")
    devices = [federation.device(f"pi-{i}", toys.shard(i)) for i in (1, 2)]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0]
    # the last phase sends it a task too, and continues without it as without an offline device
    assert list_cohort_sizes(listener.wait_for_phase("done"))[-4:] == [2, 2, 3, 0]
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-1", "pi-2"]
    dropped = federation.result()["dropped"]
    assert [(d["round"], d["id"]) for d in dropped] == [(3, "pi-3")]
    assert dropped[0]["reason"].startswith("paused (outside ")
    assert waiting.end() == 1
    assert "the federation ended while this device was away" in waiting.err


def test_board_paused_during_a_round_finishes_it_and_pauses_until_resumed(
    federate, mosquitto_url, toys, puppet, listen
):
    """The test plays the other client, which keeps the first and the second round open while the board
    trains and pauses.
    """
    federation = federate(mosquitto_url, rounds=3, min_clients=2, quorum=1.0)
    listener = listen(federation, federation.topics.state)
    aggregator = federation.aggregator()
    other = puppet(federation, "pi-2")
    device = federation.device("pi-1", toys.shard(1))
    first = other.next("task")
    state = federation.directory / "state-pi-1"
    aggregator.wait_for("round 1: pi-1 reported")
    pause_device(state)
    aggregator.wait_for("pi-1 is paused (operator)")
    other.send(first, make_update(toys))
    second = other.next("task")
    assert second.round == 2
    resume_device(state)
    device.wait_for("accepts tasks again")
    # otherwise the aggregator may receive the update of the other client first
    aggregator.wait_for("pi-1 is online", times=2)
    other.send(second, make_update(toys))
    third = other.next("task")
    device.wait_for("round 3 federate")
    other.send(third, make_update(toys))
    other.send(other.next("task"), encode_models({}))
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0
    assert "paused: operator" in device.err
    assert list_cohort_sizes(listener.wait_for_phase("done"))[-5:] == [2, 1, 2, 2, 0]
    assert federation.result()["dropped"] == []


def test_board_paused_in_training_reports_it_before_its_update(federate, mosquitto_url, toys, listen):
    """The board is alone in its federation. If it reported the pause after its update, the next round
    would open with it.
    """
    federation = federate(mosquitto_url, rounds=2, min_clients=1, quorum=1.0, options={"epochs": 4})
    state_listener = listen(federation, federation.topics.state)
    status_listener = listen(federation, federation.topics.format_device("pi-1", "status"))
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1, 20_000))
    device.wait_for("; learner numpy")  # the device trains now
    state = federation.directory / "state-pi-1"
    pause_device(state)
    aggregator.wait_for("round 1/2 federate: 1 updates")
    aggregator.wait_for("waiting for devices: 0 of 1 online, 1 paused")
    device.wait_for("paused: operator")
    status_messages = [
        json.loads(message.payload)
        for message in status_listener.wait_for(
            lambda m: json.loads(m.payload)["paused"] == "operator" and m.retained is False
        )
    ]
    assert (status_messages[-1]["paused"], status_messages[-1]["draining"]) == ("operator", True)
    assert read_last_round(state).round == 1
    device.popen.terminate()
    assert device.end() == 0
    again = federation.device("pi-1", toys.shard(1, 20_000))  # the pause remains after the process ended
    again.wait_for("paused: operator")
    resume_device(state)
    assert aggregator.end() == 0, aggregator.err
    assert again.end() == 0
    assert federation.result()["dropped"] == []
    assert list_cohort_sizes(state_listener.wait_for_phase("done"))[-4:] == [1, 1, 1, 0]


def test_client_paused_at_the_aggregator_finishes_its_task_only(
    federate, mosquitto_url, toys, puppet, listen
):
    """The aggregator is restarted in between, and the pause remains."""
    federation = federate(mosquitto_url, rounds=3, min_clients=2, quorum=1.0)
    listener = listen(federation)
    aggregator = federation.aggregator()
    first_client = puppet(federation, "pi-1")
    second_client = puppet(federation, "pi-2")
    first = first_client.next("task")
    second_task = second_client.next("task")
    ran = CliRunner().invoke(aggregator_command, ["pause", "--out", str(federation.out), "pi-2"])
    assert ran.exit_code == 0, ran.output
    first_client.send(first, make_update(toys))
    assert second_client.send(second_task, make_update(toys)).outcome == "ok"
    second = first_client.next("task")
    assert second.round == 2
    aggregator.popen.terminate()
    assert aggregator.end() == 0
    again = federation.aggregator()
    first_client.send(first_client.next("task"), make_update(toys))
    # the task of an open round is sent again to online clients
    while (third := first_client.next("task")).round == 2:
        pass
    first_client.send(third, make_update(toys))
    last = first_client.next("task")
    # pi-2 publishes a status in the last phase, which accepts new clients, and is not accepted
    changed_status = encode_json(replace(second_client.status, paused="busy", draining=True))
    second_client.link.publish(
        second_client.topics.format_device("pi-2", "status"), changed_status, retain=True
    )
    again.wait_for("pi-2 is paused (busy)")
    first_client.send(last, encode_models({}))
    assert again.end() == 0, again.err
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-1"]
    assert federation.result()["dropped"] == []
    messages = listener.wait_for_phase("done")
    assert list_cohort_sizes(messages)[-4:] == [1, 1, 1, 0]
    assert (
        len(
            [
                message
                for message in messages
                if message.topic == second_client.topics.format_device("pi-2", "task")
            ]
        )
        == 1
    )


def test_open_round_waits_for_a_paused_client_and_resends_its_task(federate, mosquitto_url, toys, puppet):
    """The pause and the task cross. Without this client there is no quorum, deadlines pass, and the round
    is not given up.
    """
    federation = federate(mosquitto_url, rounds=1, min_clients=1, quorum=1.0, deadline_s=0.2)
    aggregator = federation.aggregator()
    client = puppet(federation, "pi-1")
    client.next("task")

    def publish_status(paused):
        changed_status = replace(client.status, paused=paused)
        client.link.publish(
            client.topics.format_device("pi-1", "status"), encode_json(changed_status), retain=True
        )

    publish_status("busy")
    # without the pause, four deadlines would end the federation with an error after seven lines
    aggregator.wait_for_lines(10)
    assert aggregator.popen.poll() is None, aggregator.err
    client.inbox["task"].clear()
    publish_status("")
    client.send(client.next("task"), make_update(toys))
    client.send(client.next("task"), encode_models({}))
    assert aggregator.end() == 0, aggregator.err


def refuse(each):
    each.publish_status(paused="refuses the plan: it names no algorithm that this device has")


def test_personalization_does_not_wait_for_refusing_devices_and_names_them(
    federate, mosquitto_url, toys, puppet
):
    """Three of four devices refuse, two of them from the start, which is more than half of the online
    devices.
    """
    federation = federate(mosquitto_url, rounds=1, min_clients=2, quorum=0.5, deadline_s=3.0, grace_s=0.1)
    refusing = [puppet(federation, f"pi-{number}") for number in (3, 4)]
    for each in refusing:
        refuse(each)
    aggregator = federation.aggregator()
    for each in refusing:
        aggregator.wait_for(f"{each.client_id} is paused (refuses the plan")
    first_client = puppet(federation, "pi-1")
    second_client = puppet(federation, "pi-2")
    task = first_client.next("task")
    second_client.next("task")
    refuse(second_client)
    assert first_client.send(task, make_update(toys)).outcome == "ok"
    assert first_client.send(first_client.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end(30.0) == 0, aggregator.err
    result = federation.result()
    assert [row["id"] for row in result["clients"]] == ["pi-1"]
    named = [(each["round"], each["id"]) for each in result["dropped"]]
    assert named == [(1, "pi-2"), (2, "pi-2"), (2, "pi-3"), (2, "pi-4")]
    assert all(each["reason"].startswith("paused (refuses the plan") for each in result["dropped"])


def test_round_ends_when_all_its_clients_refuse(federate, mosquitto_url, puppet):
    federation = federate(mosquitto_url, rounds=1, min_clients=1, quorum=1.0, deadline_s=0.5, grace_s=0.1)
    aggregator = federation.aggregator()
    client = puppet(federation, "pi-1")
    client.next("task")
    refuse(client)
    assert aggregator.end(30.0) == 1
    assert (
        "round 1 has 0 of 1 updates" in aggregator.err
        and "pi-1 is paused (refuses the plan" in aggregator.err
    )

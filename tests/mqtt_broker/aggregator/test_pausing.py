"""Pauses over a real broker: by conditions, by the board's operator, by the aggregator's; what a pause must
not do to a round.
"""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from devices.availability import pause_device, resume_device
from devices.conditions import TimeWindow
from edgefl.errors import ConfigError, StateError
from edgefl.server import rounds
from edgefl.server.presence import Presence
from edgefl.wire.messages import Status
from edgefl.wire.strict_json import encode_json
from edgefl.wire.tensors import encode_models
from mqtt_broker.aggregator.pauses import pause_clients, read_paused_clients, resume_clients
from mqtt_broker.commands import aggregator as aggregator_command


def status(client_id="pi-1", *, online=True, paused="", draining=False):
    return Status(client_id, "b", online, 0.0, 1, "0", 0.0, paused, draining)


def presence(*statuses):
    made = Presence()
    for each in statuses:
        made.update(each)
    return made


def update(toys):
    return encode_models({"global": {name: np.zeros_like(array) for name, array in toys.weights().items()}})


def cohorts(said):
    return [
        json.loads(message.payload)["cohort_size"] for message in said if message.topic.endswith("/state")
    ]


def hours_away():
    """A window of an hour that begins five hours from now."""
    now = time.localtime()
    start = (60 * now.tm_hour + now.tm_min + 300) % 1440
    return str(TimeWindow(start, (start + 60) % 1440))


def test_who_is_available_by_hand():
    seen = presence(
        status("a"),
        status("b", paused="busy"),
        status("c", paused="operator"),
        status("d", online=False),
        status("e"),
        status("f", paused="busy", draining=True),
        status("g", online=False, paused="busy"),
    )
    held = frozenset({"e"})
    assert seen.list_online() == ("a", "b", "c", "e", "f")
    assert seen.list_available(held) == ("a",)
    assert seen.list_for_personalization(held) == ("a", "b", "f")
    assert [client_id for client_id in "abcdefg" if seen.is_resting(client_id)] == ["b", "c"]
    refuses = status("h", paused="refuses the plan: it names a module")
    assert [seen.describe(client_id) for client_id in "abdx"] == [
        "online",
        "paused (busy)",
        "offline",
        "offline",
    ]
    seen.update(refuses)
    assert seen.list_for_personalization(held) == ("a", "b", "f"), "it may refuse for ever"


def test_waiting_for_a_paused_client_does_not_count_as_an_extension():
    round = rounds.open_round(1, ("a",), quorum=1.0, deadline_s=1.0, grace_s=0.0, now=0.0)
    for turn in range(10):
        round = rounds.extend_round(round, float(turn), counts=False)
    assert (round.extensions, round.closes) == (0, 10.0)


def test_the_pauses_of_a_directory(tmp_path):
    assert read_paused_clients(tmp_path) == frozenset()
    pause_clients(tmp_path, ["pi-2", "pi-1"])
    (tmp_path / "paused" / ".pi-3.x1").touch()  # a write that is under way
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


def test_a_board_outside_its_hours_stays_connected_and_is_not_chosen(federate, mosquitto_url, toys, listen):
    federation = federate(mosquitto_url, rounds=2, min_clients=2, grace_s=0.0)
    heard = listen(federation, federation.topics.format_device("pi-3", "status"))
    waiting = federation.device("pi-3", toys.shard(3), "--between", hours_away())
    status = json.loads(heard.until_online()[-1].payload)
    assert status["paused"].startswith("outside ")
    heard = listen(federation, federation.topics.state)
    aggregator = federation.aggregator()
    aggregator.wait_for("pi-3 is paused (outside")
    aggregator.wait_for("waiting for devices: 0 of 2 online, 1 paused")
    devices = [federation.device(f"pi-{i}", toys.shard(i)) for i in (1, 2)]
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in devices] == [0, 0]
    # the last phase asks it too, and goes on without it as without one that is offline
    assert cohorts(heard.until_phase("done"))[-4:] == [2, 2, 3, 0]
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-1", "pi-2"]
    dropped = federation.result()["dropped"]
    assert [(d["round"], d["id"]) for d in dropped] == [(3, "pi-3")]
    assert dropped[0]["reason"].startswith("paused (outside ")
    assert waiting.end() == 1
    assert "the federation ended while this device was away" in waiting.said


def test_a_board_paused_in_mid_round_finishes_it_and_is_left_out_until_it_resumes(
    federate, mosquitto_url, toys, puppet, listen
):
    """The other client is the test's: it holds the first round open, and the second, while the board trains
    and rests.
    """
    federation = federate(mosquitto_url, rounds=3, min_clients=2, quorum=1.0)
    heard = listen(federation, federation.topics.state)
    aggregator = federation.aggregator()
    other = puppet(federation, "pi-2")
    device = federation.device("pi-1", toys.shard(1))
    first = other.next("task")
    state = federation.directory / "state-pi-1"
    aggregator.wait_for("round 1: pi-1 reported")
    pause_device(state)
    aggregator.wait_for("pi-1 is paused (operator)")
    other.send(first, update(toys))
    second = other.next("task")
    assert second.round == 2
    resume_device(state)
    device.wait_for("accepts tasks again")
    aggregator.wait_for("pi-1 is online", times=2)  # else it may hear the other client's update first
    other.send(second, update(toys))
    third = other.next("task")
    device.wait_for("round 3 federate")
    other.send(third, update(toys))
    other.send(other.next("task"), encode_models({}))
    assert aggregator.end() == 0, aggregator.said
    assert device.end() == 0
    assert "paused: operator" in device.said
    assert cohorts(heard.until_phase("done"))[-5:] == [2, 1, 2, 2, 0]
    assert federation.result()["dropped"] == []


def test_a_board_paused_while_it_trains_says_so_before_its_update(federate, mosquitto_url, toys, listen):
    """Alone in its federation: had it said so after its update, the next round would have been opened with
    it.
    """
    federation = federate(mosquitto_url, rounds=2, min_clients=1, quorum=1.0, options={"epochs": 4})
    states = listen(federation, federation.topics.state)
    said = listen(federation, federation.topics.format_device("pi-1", "status"))
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1, 20_000))
    device.wait_for("; learner numpy")  # it trains now
    state = federation.directory / "state-pi-1"
    pause_device(state)
    aggregator.wait_for("round 1/2 federate: 1 updates")
    aggregator.wait_for("waiting for devices: 0 of 1 online, 1 paused")
    device.wait_for("paused: operator")
    words = [
        json.loads(message.payload)
        for message in said._until(
            lambda m: json.loads(m.payload)["paused"] == "operator" and m.retained is False
        )
    ]
    assert (words[-1]["paused"], words[-1]["draining"]) == ("operator", True)
    assert json.loads((state / "progress.json").read_text())["round"] == 1
    device.popen.terminate()
    assert device.end() == 0
    again = federation.device("pi-1", toys.shard(1))  # the pause outlives the process
    again.wait_for("paused: operator")
    resume_device(state)
    assert aggregator.end() == 0, aggregator.said
    assert again.end() == 0
    assert federation.result()["dropped"] == []
    assert cohorts(states.until_phase("done"))[-4:] == [1, 1, 1, 0]


def test_a_client_paused_at_the_aggregator_finishes_its_task_and_is_in_no_other(
    federate, mosquitto_url, toys, puppet, listen
):
    """The aggregator is ended and started again in between; the pause stays."""
    federation = federate(mosquitto_url, rounds=3, min_clients=2, quorum=1.0)
    heard = listen(federation)
    aggregator = federation.aggregator()
    one = puppet(federation, "pi-1")
    two = puppet(federation, "pi-2")
    first = one.next("task")
    own = two.next("task")
    ran = CliRunner().invoke(aggregator_command, ["pause", "--out", str(federation.out), "pi-2"])
    assert ran.exit_code == 0, ran.output
    one.send(first, update(toys))
    assert two.send(own, update(toys)).outcome == "ok"
    second = one.next("task")
    assert second.round == 2
    aggregator.popen.terminate()
    assert aggregator.end() == 0
    again = federation.aggregator()
    one.send(one.next("task"), update(toys))
    while (third := one.next("task")).round == 2:  # an open round's task comes again to who is online
        pass
    one.send(third, update(toys))
    last = one.next("task")
    # it speaks up in the last phase, which takes in whoever comes, and is not taken in
    told = encode_json(replace(two.status, paused="busy", draining=True))
    two.link.publish(two.topics.format_device("pi-2", "status"), told, retain=True)
    again.wait_for("pi-2 is paused (busy)")
    one.send(last, encode_models({}))
    assert again.end() == 0, again.said
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-1"]
    assert federation.result()["dropped"] == []
    said = heard.until_phase("done")
    assert cohorts(said)[-4:] == [1, 1, 1, 0]
    assert (
        len([message for message in said if message.topic == two.topics.format_device("pi-2", "task")]) == 1
    )


def test_a_round_that_is_open_waits_for_a_paused_client_and_sends_its_task_when_it_resumes(
    federate, mosquitto_url, toys, puppet
):
    """The pause crosses the task on its way: no quorum without this client, deadlines pass, and it is not
    given up.
    """
    federation = federate(mosquitto_url, rounds=1, min_clients=1, quorum=1.0, deadline_s=0.2)
    aggregator = federation.aggregator()
    one = puppet(federation, "pi-1")
    one.next("task")

    def say(paused):
        told = replace(one.status, paused=paused)
        one.link.publish(one.topics.format_device("pi-1", "status"), encode_json(told), retain=True)

    say("busy")
    aggregator.wait_for_lines(10)  # four deadlines would have ended it with an error after seven
    assert aggregator.popen.poll() is None, aggregator.said
    one.inbox["task"].clear()
    say("")
    one.send(one.next("task"), update(toys))
    one.send(one.next("task"), encode_models({}))
    assert aggregator.end() == 0, aggregator.said


def refuse(each):
    each.say(paused="refuses the plan: it names no algorithm that this device has")


def test_personalization_does_not_wait_for_who_refuses_and_names_it(federate, mosquitto_url, toys, puppet):
    """Three of four refuse, two of them from the start: more than half of who is online."""
    federation = federate(mosquitto_url, rounds=1, min_clients=2, quorum=0.5, deadline_s=3.0, grace_s=0.1)
    refusing = [puppet(federation, f"pi-{number}") for number in (3, 4)]
    for each in refusing:
        refuse(each)
    aggregator = federation.aggregator()
    for each in refusing:
        aggregator.wait_for(f"{each.client_id} is paused (refuses the plan")
    one = puppet(federation, "pi-1")
    two = puppet(federation, "pi-2")
    task = one.next("task")
    two.next("task")
    refuse(two)
    assert one.send(task, update(toys)).outcome == "ok"
    assert one.send(one.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end(30.0) == 0, aggregator.said
    result = federation.result()
    assert [row["id"] for row in result["clients"]] == ["pi-1"]
    named = [(each["round"], each["id"]) for each in result["dropped"]]
    assert named == [(1, "pi-2"), (2, "pi-2"), (2, "pi-3"), (2, "pi-4")]
    assert all(each["reason"].startswith("paused (refuses the plan") for each in result["dropped"])


def test_a_round_whose_clients_all_refuse_ends(federate, mosquitto_url, puppet):
    federation = federate(mosquitto_url, rounds=1, min_clients=1, quorum=1.0, deadline_s=0.5, grace_s=0.1)
    aggregator = federation.aggregator()
    one = puppet(federation, "pi-1")
    one.next("task")
    refuse(one)
    assert aggregator.end(30.0) == 1
    assert (
        "round 1 has 0 of 1 updates" in aggregator.said
        and "pi-1 is paused (refuses the plan" in aggregator.said
    )

"""Processes that leave and return: a device killed during a round, a broker killed between rounds, a
device that returns after the end.
"""

import json
import os
import signal

import numpy as np

from edgefl.protocol.wire.tensors import encode_models
from tests.support.ports import choose_port


def make_update(toys):
    return encode_models({"global": {name: np.zeros_like(array) for name, array in toys.weights().items()}})


def test_device_killed_during_a_round_is_dropped_and_rejoins(federate, mosquitto_url, toys, listen):
    """The victim has so much data that it is still training when it is killed, and little data after its
    return.
    """
    federation = federate(
        mosquitto_url, rounds=3, min_clients=3, quorum=0.5, grace_s=0.2, options={"epochs": 40}
    )
    listener = listen(federation, federation.topics.format_device("pi-2", "+"))
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", toys.shard(i)) for i in range(2)]
    victim = federation.device("pi-2", toys.shard(2, 40_000))
    assert any(message.topic.endswith("/task") for message in listener.wait_for_topic("task"))
    os.kill(victim.popen.pid, signal.SIGKILL)
    aggregator.wait_for("pi-2 is offline")
    aggregator.wait_for("round 1/3 federate: 2 updates")
    os.kill(aggregator.popen.pid, signal.SIGSTOP)
    again = federation.device("pi-2", toys.shard(2))
    listener.wait_until_online()
    os.kill(aggregator.popen.pid, signal.SIGCONT)
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in (*devices, again)] == [0, 0, 0]
    result = federation.result()
    assert result["dropped"][0] == {"round": 1, "id": "pi-2", "reason": "offline"}
    assert [row["id"] for row in result["clients"]] == ["pi-0", "pi-1", "pi-2"]


def test_federation_survives_a_broker_restart_without_stored_messages(federate, start, toys):
    port = choose_port()
    broker = start("broker", "start", "--port", port, "--kind", "mosquitto")
    broker.first_line()
    federation = federate(
        f"mqtt://127.0.0.1:{port}", rounds=4, min_clients=2, quorum=1.0, options={"epochs": 100}
    )
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", toys.shard(i, 200)) for i in range(2)]
    aggregator.wait_for("round 1/4 federate: 2 updates")
    os.kill(broker.popen.pid, signal.SIGKILL)
    broker.popen.wait()
    again = start("broker", "start", "--port", port, "--kind", "mosquitto")
    again.first_line()
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0]
    assert "the link to the broker is up again" in aggregator.err
    assert federation.result()["dropped"] == []


def test_device_that_returns_after_the_end_reports_it_and_leaves(
    federate, mosquitto_url, toys, puppet, listen
):
    """The device took part in the first round, was away in the last phase, and finds the federation done."""
    federation = federate(mosquitto_url, rounds=1, min_clients=2, grace_s=0.0)
    listener = listen(federation, federation.topics.format_device("pi-1", "status"))
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    other = puppet(federation, "pi-2")
    task = other.next("task")
    aggregator.wait_for("round 1: pi-1 reported")
    os.kill(device.popen.pid, signal.SIGKILL)
    aggregator.wait_for("pi-1 is offline")
    other.send(task, make_update(toys))
    other.send(other.next("task"), encode_models({}))
    assert aggregator.end() == 0
    listener.wait_until_offline()
    again = federation.device("pi-1")
    assert again.end() == 1
    assert "the federation ended while this device was away" in again.err
    listener.wait_until_online()
    listener.wait_until_offline()
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-2"]


def test_finished_device_prints_its_result_again(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    assert (aggregator.end(), device.end()) == (0, 0)
    again = federation.device("pi-1")
    assert again.end() == 0
    assert again.out == device.out


def test_delayed_last_will_takes_the_device_offline_only_briefly(federate, mosquitto_url, toys, listen):
    """As in a cluster, where the server that a device left publishes its will late."""
    federation = federate(mosquitto_url, min_clients=2)
    topic = federation.topics.format_device("pi-1", "status")
    listener = listen(federation, topic)
    aggregator = federation.aggregator()
    federation.device("pi-1", toys.shard(1))
    status = json.loads(listener.wait_until_online()[-1].payload)
    aggregator.wait_for("pi-1 is online (1 online)")
    # the device receives its own status from here on
    listener.link.publish(topic, json.dumps({**status, "online": False}).encode(), retain=True)
    listener.wait_until_offline()
    listener.wait_until_online()
    aggregator.wait_for("pi-1 is offline")
    other = federation.device("pi-2", toys.shard(2))
    assert aggregator.end() == 0, aggregator.err
    assert other.end() == 0

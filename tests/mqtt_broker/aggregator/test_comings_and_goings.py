"""Who goes and comes back: a device killed in mid-round, a broker killed between rounds, a device that is
late for the end.
"""

import json
import os
import signal

import numpy as np

from edgefl.wire.tensors import encode_models
from tests.support.ports import choose_port


def update(toys):
    return encode_models({"global": {name: np.zeros_like(array) for name, array in toys.weights().items()}})


def test_a_device_killed_in_mid_round_is_dropped_by_quorum_and_joins_again(
    federate, mosquitto_url, toys, listen
):
    """The victim has so much data that it is training when it is killed, and little when it comes back."""
    federation = federate(
        mosquitto_url, rounds=3, min_clients=3, quorum=0.5, grace_s=0.2, options={"epochs": 40}
    )
    heard = listen(federation, federation.topics.format_device("pi-2", "+"))
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", toys.shard(i)) for i in range(2)]
    victim = federation.device("pi-2", toys.shard(2, 40_000))
    assert any(message.topic.endswith("/task") for message in heard.until("task"))
    os.kill(victim.popen.pid, signal.SIGKILL)
    aggregator.wait_for("pi-2 is offline")
    aggregator.wait_for("round 1/3 federate: 2 updates")
    os.kill(aggregator.popen.pid, signal.SIGSTOP)
    again = federation.device("pi-2", toys.shard(2))
    heard.until_online()
    os.kill(aggregator.popen.pid, signal.SIGCONT)
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in (*devices, again)] == [0, 0, 0]
    result = federation.result()
    assert result["dropped"][0] == {"round": 1, "id": "pi-2", "reason": "offline"}
    assert [row["id"] for row in result["clients"]] == ["pi-0", "pi-1", "pi-2"]


def test_a_broker_that_is_killed_and_comes_back_empty_loses_no_round(federate, start, toys):
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
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in devices] == [0, 0]
    assert "the link to the broker is up again" in aggregator.said
    assert federation.result()["dropped"] == []


def test_a_device_that_comes_when_all_is_over_says_so_and_leaves_as_offline(
    federate, mosquitto_url, toys, puppet, listen
):
    """It took part in the first round, was away for the last phase, and finds the federation done."""
    federation = federate(mosquitto_url, rounds=1, min_clients=2, grace_s=0.0)
    heard = listen(federation, federation.topics.format_device("pi-1", "status"))
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    other = puppet(federation, "pi-2")
    task = other.next("task")
    aggregator.wait_for("round 1: pi-1 reported")
    os.kill(device.popen.pid, signal.SIGKILL)
    aggregator.wait_for("pi-1 is offline")
    other.send(task, update(toys))
    other.send(other.next("task"), encode_models({}))
    assert aggregator.end() == 0
    heard.until_offline()
    again = federation.device("pi-1")
    assert again.end() == 1
    assert "the federation ended while this device was away" in again.said
    heard.until_online()
    heard.until_offline()
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-2"]


def test_a_device_that_has_its_model_already_says_where_it_lies(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    assert (aggregator.end(), device.end()) == (0, 0)
    again = federation.device("pi-1")
    assert again.end() == 0
    assert again.out == device.out


def test_a_will_that_comes_after_its_device_is_back_takes_it_offline_for_a_moment_only(
    federate, mosquitto_url, toys, listen
):
    """As in a cluster, where the machine that a device left publishes its will late."""
    federation = federate(mosquitto_url, min_clients=2)
    topic = federation.topics.format_device("pi-1", "status")
    heard = listen(federation, topic)
    aggregator = federation.aggregator()
    federation.device("pi-1", toys.shard(1))
    status = json.loads(heard.until_online()[-1].payload)
    aggregator.wait_for("pi-1 is online (1 online)")
    # the device hears its own status from here on
    heard.link.publish(topic, json.dumps({**status, "online": False}).encode(), retain=True)
    heard.until_offline()
    heard.until_online()
    aggregator.wait_for("pi-1 is offline")
    other = federation.device("pi-2", toys.shard(2))
    assert aggregator.end() == 0, aggregator.said
    assert other.end() == 0

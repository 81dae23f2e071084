"""How long an aggregator waits for an online device that never answers."""

import pytest

from edgefl.protocol.wire.tensors import encode_models


@pytest.fixture
def zero_update(toys):
    """An update that changes nothing."""
    return encode_models({"global": {name: 0 * array for name, array in toys.weights().items()}})


def test_deadline_for_a_silent_device_follows_the_measured_rounds(
    federate, mosquitto_url, puppet, zero_update
):
    """With 10 samples, 200 steps are 200 epochs. The local model takes the 2 epochs of the round and 200
    more, up to three times. The fine-tuning, the algorithm's personal model and its gate take 200 each.
    Everything happens twice: 2,412 epochs of 2 ms. The deadline is twice as long, for safety.
    """
    federation = federate(mosquitto_url, rounds=1, min_clients=2, deadline_s=5.0)
    aggregator = federation.aggregator()
    clients = [puppet(federation, name) for name in ("one", "two")]
    for client in clients:
        task = client.next("task")
        assert task.deadline_s == 5.0
        assert client.send(task, zero_update, metrics={"loss": 1.0, "seconds": 0.004}).outcome == "ok"
    task = clients[0].next("task")
    assert (task.phase, task.deadline_s) == ("personalize", pytest.approx(9.648))
    aggregator.wait_for("waits at most 10 s")
    assert clients[0].send(task, encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err
    assert [each["reason"] for each in federation.result()["dropped"]] == ["too late"]


def test_restart_applies_a_changed_personalization_deadline(federate, mosquitto_url, puppet, zero_update):
    federation = federate(
        mosquitto_url, rounds=1, min_clients=2, tables="[personalization]\ndeadline_s = 3600\n"
    )
    aggregator = federation.aggregator()
    clients = [puppet(federation, name) for name in ("one", "two")]
    for client in clients:
        assert client.send(client.next("task"), zero_update).outcome == "ok"
    task = clients[0].next("task")
    assert (task.phase, task.deadline_s) == ("personalize", 3600.0)
    assert clients[0].send(task, encode_models({})).outcome == "ok"
    aggregator.wait_for("one reported (1 of 2)", times=2)
    aggregator.popen.kill()
    aggregator.popen.wait()
    federation.tables = "[personalization]\ndeadline_s = 1\n"
    again = federation.aggregator()
    assert again.end() == 0, again.err
    assert [row["id"] for row in federation.result()["clients"]] == ["one"]


def test_without_quorum_the_deadline_is_extended_three_times(federate, mosquitto_url, puppet, zero_update):
    federation = federate(
        mosquitto_url,
        rounds=1,
        min_clients=1,
        deadline_s=0.5,
        tables="[personalization]\ndeadline_s = 2\n",
    )
    aggregator = federation.aggregator()
    client = puppet(federation, "one")
    task = client.next("task")
    assert client.send(task, zero_update).outcome == "ok"
    assert aggregator.end() == 1
    assert "0 of 1 updates, expected 1, after a deadline of 2 s and 3 more of 0.5 s" in aggregator.err

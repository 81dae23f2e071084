"""How long an aggregator waits for a device that is online and never answers."""

import pytest

from edgefl.wire.tensors import encode_models


@pytest.fixture
def still(toys):
    """An update that changes nothing."""
    return encode_models({"global": {name: 0 * array for name, array in toys.weights().items()}})


def test_a_silent_device_holds_the_end_by_what_the_rounds_took(federate, mosquitto_url, puppet, still):
    """Of 10 samples, 200 steps are 200 epochs. There are 2 epochs of the round for the local model, 200 more
    of it, and 200 each for the fine-tuning, the algorithm's personal model and its gate. All happen twice:
    1,604 epochs of 2.5 ms. The deadline is twice as long, for safety.
    """
    federation = federate(mosquitto_url, rounds=1, min_clients=2, deadline_s=5.0)
    aggregator = federation.aggregator()
    dolls = [puppet(federation, name) for name in ("one", "two")]
    for doll in dolls:
        task = doll.next("task")
        assert task.deadline_s == 5.0
        assert doll.send(task, still, metrics={"loss": 1.0, "seconds": 0.005}).outcome == "ok"
    task = dolls[0].next("task")
    assert (task.phase, task.deadline_s) == ("personalize", pytest.approx(8.02))
    aggregator.wait_for("waits at most 8 s")
    assert dolls[0].send(task, encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.said
    assert [each["reason"] for each in federation.result()["dropped"]] == ["too late"]


def test_a_restart_changes_how_long_the_aggregator_waits(federate, mosquitto_url, puppet, still):
    federation = federate(
        mosquitto_url, rounds=1, min_clients=2, tables="[personalization]\ndeadline_s = 3600\n"
    )
    aggregator = federation.aggregator()
    dolls = [puppet(federation, name) for name in ("one", "two")]
    for doll in dolls:
        assert doll.send(doll.next("task"), still).outcome == "ok"
    task = dolls[0].next("task")
    assert (task.phase, task.deadline_s) == ("personalize", 3600.0)
    assert dolls[0].send(task, encode_models({})).outcome == "ok"
    aggregator.wait_for("one reported (1 of 2)", times=2)
    aggregator.popen.kill()
    aggregator.popen.wait()
    federation.tables = "[personalization]\ndeadline_s = 1\n"
    again = federation.aggregator()
    assert again.end() == 0, again.said
    assert [row["id"] for row in federation.result()["clients"]] == ["one"]


def test_without_quorum_a_silent_device_is_asked_for_three_more_rounds(
    federate, mosquitto_url, puppet, still
):
    federation = federate(
        mosquitto_url,
        rounds=1,
        min_clients=1,
        deadline_s=0.5,
        tables="[personalization]\ndeadline_s = 2\n",
    )
    aggregator = federation.aggregator()
    doll = puppet(federation, "one")
    task = doll.next("task")
    assert doll.send(task, still).outcome == "ok"
    assert aggregator.end() == 1
    assert "0 of 1 updates, expected 1, after a deadline of 2 s and 3 more of 0.5 s" in aggregator.said

"""A federation ends with a verdict: in result.json, in the last log lines, and for monitors that start
later.
"""

import json
from dataclasses import replace

import pytest

from edgefl.base.verdict import from_dict, judge_federation, render_device_lines, render_verdict_table
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire import messages
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.tensors import encode_models


@pytest.fixture
def read_retained():
    """Return a function that reads the retained message of a topic."""
    made = []

    def read(url, topic):
        link = Link(url, f"late-{len(made)}")
        made.append(link)
        link.subscribe(topic)
        event = link.get(2.0)
        return event.payload if isinstance(event, Message) else None

    yield read
    for link in made:
        link.close(1.0)


def run_federation(federation, shards, *more):
    aggregator = federation.aggregator(*more)
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0] * len(shards), [device.err for device in devices]
    return aggregator, devices


def test_monitor_started_after_the_end_shows_the_verdict(mosquitto_url, federate, toys, start, read_retained):
    federation = federate(mosquitto_url, rounds=2, min_clients=2)
    shards = {name: toys.shard(i) for i, name in enumerate(("one", "two"))}
    aggregator, devices = run_federation(federation, shards)

    result = federation.result()
    verdict = judge_federation(result["clients"], algorithm="pfl-mfe", num_classes=3)
    assert from_dict(result["verdict"]) == verdict
    assert (verdict.devices, len(verdict.rows)) == (2, 2)
    assert all(row.shipped is not None for row in verdict.rows)
    lines = aggregator.err.splitlines()
    assert lines[-1] == verdict.sentence
    assert lines[-6:-1] == render_verdict_table(verdict).splitlines()
    assert "done in" in lines[-7]

    clients = sorted(result["clients"], key=lambda item: item["id"])
    for device, client, in_table in zip(devices, clients, verdict.rows, strict=True):
        (row,) = judge_federation([client]).rows  # a device knows only its own figures
        assert replace(row, comparison=in_table.comparison) == in_table
        printed = [line for line in device.err.splitlines() if line.startswith(f"{row.id} ")]
        assert printed[-2:] == render_device_lines(row)[-2:]

    message = decode_json(messages.Verdict, read_retained(mosquitto_url, federation.topics.verdict))
    assert (message.session, message.sentence) == (result["session"], verdict.sentence)
    assert [row[0] for row in message.rows] == ["one", "two"]
    names = ("monitor", "--broker", mosquitto_url, "--federation", federation.name)
    once = start(*names, "--once")
    assert once.end() == 0, once.err
    assert " ".join(once.out.split()).count(" ".join(verdict.sentence.split())) == 1
    assert [line for line in once.out.splitlines() if line.startswith("mean ")] == [
        line for line in lines if line.startswith("mean ")
    ]
    as_json = start(*names, "--json")
    assert as_json.end() == 0, as_json.err
    found = json.loads(as_json.out)["verdict"]
    assert (found["better"], found["rows"][0]["id"]) == (verdict.better, "one")

    again = federation.aggregator()
    assert again.end() == 0
    assert again.err.splitlines()[-1] == verdict.sentence


def test_verdict_table_of_two_known_devices(mosquitto_url, federate, toys, puppet, start):
    """One device gains 8 test samples and loses 1 (p = 10/512), the other one 4 and 0 (1/16)."""
    federation = federate(mosquitto_url, rounds=1, min_clients=2)
    aggregator = federation.aggregator()
    clients = [puppet(federation, name) for name in ("one", "two")]
    zero_update = encode_models({"global": {name: 0 * array for name, array in toys.weights().items()}})
    for client in clients:
        assert client.send(client.next("task"), zero_update).outcome == "ok"
    figures = {"accuracy_local": 0.75, "accuracy_federated": 0.5, "accuracy_shipped": 0.9}
    figures |= {"accuracy_shipped_int8": 0.85, "n_test": 40.0}
    counts = [(8.0, 1.0, 3.0), (4.0, 0.0, 1.0)]
    for client, (gained, lost, shipped) in zip(clients, counts, strict=True):
        metrics = {**figures, "test_gained": gained, "test_lost": lost, "shipped": shipped}
        task = client.next("task")
        assert task.phase == "personalize"
        assert client.send(task, encode_models({}), metrics=metrics).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err
    expected = [
        "device  local  federated  shipped   int8  model      against local",
        "one     75.0%      50.0%    90.0%  85.0%  mixture    better",
        "two     75.0%      50.0%    90.0%  85.0%  federated  as good",
        "mean    75.0%      50.0%    90.0%  85.0%",
        "worst   75.0%      50.0%    90.0%  85.0%",
        "The federation was worth it for 1 of 2 devices: its model is better than training alone (as good "
        "for 1, worse for none). On average accuracy rises by 15.0 points.",
    ]
    assert aggregator.err.splitlines()[-6:] == expected
    once = start("monitor", "--broker", mosquitto_url, "--federation", federation.name, "--once")
    assert once.end() == 0, once.err
    assert once.out.splitlines()[1:6] == expected[:5]


def test_next_federation_clears_the_verdict(mosquitto_url, federate, toys, read_retained, start):
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    run_federation(federation, {"one": toys.shard(1)})
    assert read_retained(mosquitto_url, federation.topics.verdict)
    federation.aggregator("--fresh").wait_for("waiting for devices: 0 of 1")
    assert read_retained(mosquitto_url, federation.topics.verdict) is None
    names = ("monitor", "--broker", mosquitto_url, "--federation", federation.name)
    as_json = start(*names, "--json")
    assert as_json.end() == 0, as_json.err
    assert json.loads(as_json.out)["verdict"] is None


FIGURES_AT_THE_END = {"n_train", "n_validation", "n_test", "accuracy_shipped", "shipped"}


def test_masked_federation_publishes_a_verdict_without_single_devices(
    mosquitto_url, federate, toys, read_retained, listen
):
    """The figures of a device at the end are not masked, as docs/explanation/privacy.md explains."""
    tables = "[privacy]\nsecure_aggregation = true\n"
    federation = federate(mosquitto_url, rounds=1, min_clients=3, tables=tables)
    listener = listen(federation)
    run_federation(federation, {f"pi-{i}": toys.shard(i) for i in range(3)})
    message = decode_json(messages.Verdict, read_retained(mosquitto_url, federation.topics.verdict))
    assert (message.devices, message.rows) == (3, ())
    assert message.means["shipped"] > 0
    assert len(federation.result()["verdict"]["rows"]) == 3
    metrics = [
        decode_json(messages.Metrics, each.payload)
        for each in listener.wait_for_phase("done")
        if each.topic.endswith("/metrics")
    ]
    at_the_end = [set(each.values) for each in metrics if each.round == 2]
    assert len(at_the_end) == 3
    assert all(names >= FIGURES_AT_THE_END for names in at_the_end)
    documented = FIGURES_AT_THE_END | {"seconds", "peak_rss_mb", "bytes_up", "bytes_down"}
    documented |= {"test_gained", "test_lost"}
    others = {name for names in at_the_end for name in names - documented}
    assert others
    assert all(name.startswith("accuracy_") for name in others)
    assert not any(set(each.values) & FIGURES_AT_THE_END for each in metrics if each.round == 1)


def test_private_federation_publishes_no_verdict(mosquitto_url, federate, toys, read_retained, listen, start):
    """The figures have no noise, so the aggregator does not publish them. A monitor shows the reason."""
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    tables = "[privacy]\nclip = 0.5\nnoise_multiplier = 0.8\npopulation = 2\ndelta = 1e-5\n"
    federation = federate(mosquitto_url, rounds=1, min_clients=2, tables=tables)
    listener = listen(federation)
    aggregator, _ = run_federation(federation, {f"pi-{i}": toys.shard(i) for i in range(2)})
    received = listener.wait_for_phase("done")
    assert not any(each.payload for each in received if each.topic == federation.topics.verdict)
    assert read_retained(mosquitto_url, federation.topics.verdict) is None
    once = start("monitor", "--broker", mosquitto_url, "--federation", federation.name, "--once")
    assert once.end() == 0, once.err
    assert "Differential privacy is on" in once.out
    assert federation.result()["verdict"]["sentence"] == aggregator.err.splitlines()[-1]

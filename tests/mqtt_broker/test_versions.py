"""The version of the protocol on one broker, and the order of an aggregator's runs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from edgefl.protocol.wire.tensors import encode_models
from edgefl.protocol.wire.topics import TOPIC_PREFIX
from mqtt_broker.aggregator.journal import FederationStart, Journal

ROOT = Path(__file__).parents[2]
FILES_WITH_OTHER_VERSIONS = {
    "tests/mqtt_broker/test_versions.py",
    "CHANGELOG.md",
    "tests/mqtt_broker/broker/test_nats_cluster.py",
}


def test_all_project_files_use_the_same_protocol_version():
    suffixes = {".py", ".md", ".conf", ".json", ".toml", ".yml", ".yaml", ".html", ".js"}
    files = [
        path
        for top in ("edgefl", "devices", "mqtt_broker", "tests", "docs")
        for path in (ROOT / top).rglob("*")
    ]
    other_versions = {}
    for path in [*files, ROOT / "README.md", ROOT / "CHANGELOG.md"]:
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and path.suffix in suffixes and name not in FILES_WITH_OTHER_VERSIONS:
            found = set(re.findall(r"edgefl[./]v\d+", path.read_text())) - {
                TOPIC_PREFIX,
                TOPIC_PREFIX.replace("/", "."),
            }
            if found and "edgefl/v3/home" not in path.read_text():
                other_versions[name] = found
    assert not other_versions


@pytest.mark.parametrize("named", [pytest.param(True, marks=pytest.mark.slow), False], ids=["named", "found"])
def test_device_that_starts_before_aggregator_warns_of_nothing(own_broker, federate, toys, listen, named):
    federation = federate(f"mqtt://127.0.0.1:{own_broker.port}", rounds=1, min_clients=1)
    listener = listen(federation, "edgefl/#")
    device = federation.device("pi-1", toys.shard(1), *(() if named else ("--federation", "")))
    device.wait_for("joined" if named else "waiting for an aggregator")
    aggregator = federation.aggregator()
    assert (aggregator.end(), device.end()) == (0, 0), device.err
    assert "warning" not in device.err
    topics = {message.topic for message in listener.wait_for_phase("done")}
    assert {topic for topic in topics if not topic.startswith(f"{TOPIC_PREFIX}/")} == set()


def test_access_list_of_another_version_is_refused_with_remedy(secured_broker, federate):
    path = secured_broker.directory / "acl"
    path.write_text(path.read_text().replace("edgefl/v2", "edgefl/v1"))
    aggregator = federate(secured_broker.url).aggregator("--security", secured_broker.directory)
    assert aggregator.end() == 1
    assert "edgefl broker init" in aggregator.err


def test_chunk_size_setting_applies_in_both_directions(mosquitto_url, federate, toys, puppet, listen):
    federation = federate(
        mosquitto_url, rounds=1, min_clients=2, quorum=1.0, chunk_bytes=2048, algorithm="fedavg", wide=True
    )
    listener = listen(federation)
    aggregator = federation.aggregator()
    federation.device("pi-1", toys.shard(1))
    other = puppet(federation, "pi-2")
    task = other.next("task")
    assert task.chunk_bytes == 2048
    blob = encode_models({"global": {name: 0 * array for name, array in toys.weights(10_000).items()}})
    receipt = other.send(task, blob)
    assert receipt.outcome == "rejected"
    assert "chunks of 245760 bytes, expected the task's 2048" in receipt.reason
    aggregator.wait_for("pi-1 reported")
    # receipts are sent at QoS 0 and overtake the chunks, so listen until the last chunk of the device's
    # update arrived
    begin = json.loads(listener.wait_for_topic("begin")[-1].payload)
    while begin["client_id"] != "pi-1":
        begin = json.loads(listener.wait_for_topic("begin")[-1].payload)
    sizes = {}
    for message in listener.wait_for_topic(f"up/{begin['sha256']}/{begin['count'] - 1}"):
        leaf = message.topic.rpartition("/")[2]
        if leaf.isdigit():
            sizes.setdefault("up" if "/up/" in message.topic else "down", []).append(len(message.payload))
    assert {way: max(found) for way, found in sizes.items()} == {"down": 2048, "up": 2048}


def test_each_aggregator_run_has_a_later_start_time(tmp_path):
    """The start time is also later when the clock stands still or goes back, and when the federation
    starts afresh.
    """
    with Journal(tmp_path) as journal:
        assert [journal.begin_run(now) for now in (1000, 2000, 2000, 1500)] == [1000, 2000, 2001, 2002]
        journal.start(FederationStart(session="s", settings="{}", started=0.0))
    with Journal(tmp_path) as journal:
        assert journal.begin_run(0) == 2003


def test_restarted_aggregator_sends_a_later_start_time(mosquitto_url, federate, puppet):
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    aggregator = federation.aggregator()
    client = puppet(federation, "pi-1")
    first = client.next("task")
    aggregator.popen.kill()
    aggregator.popen.wait()
    federation.aggregator()
    second = client.next("task")
    assert (second.session, second.round) == (first.session, first.round)
    assert first.started < second.started
    assert replace(second, started=0, ts=0.0) == replace(first, started=0, ts=0.0)

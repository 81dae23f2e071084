"""Programs of version 1 and version 2 of the protocol on one broker, and the additions of version 2."""

import base64
import json
import re
import secrets
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edgefl.security.enrolment import load_enrolment
from edgefl.transport.link import Link, Message
from edgefl.wire import version1
from edgefl.wire.messages import Status
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.tensors import encode_models
from edgefl.wire.topics import TOPIC_PREFIX
from mqtt_broker.aggregator.journal import FederationStart, Journal

ROOT = Path(__file__).parents[2]
V1_STATE_FIELDS = [
    "federation",
    "session",
    "phase",
    "round",
    "rounds",
    "cohort_size",
    "deadline_s",
    "plan",
    "ts",
    "signature",
]
FILES_WITH_VERSION_1 = {
    "mqtt_broker/broker/clusters/nats-access.conf",
    "docs/protocol.md",
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
        if path.is_file() and path.suffix in suffixes and name not in FILES_WITH_VERSION_1:
            found = set(re.findall(r"edgefl[./]v\d+", path.read_text())) - {
                TOPIC_PREFIX,
                TOPIC_PREFIX.replace("/", "."),
            }
            if found and "edgefl/v3/home" not in path.read_text():
                other_versions[name] = found
    assert not other_versions


@pytest.fixture
def version1_link():
    made = []

    def make(federation, client_id):
        link = Link(federation.url, f"edgefl-{client_id}-{secrets.token_hex(8)}")
        made.append(link)
        return link

    yield make
    for link in made:
        link.close()


def wait_for_message(link, predicate):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        event = link.get(1.0)
        if isinstance(event, Message) and predicate(event):
            return event
    raise AssertionError("the message did not come")


def test_version_1_device_is_asked_to_update_and_named(mosquitto_url, federate, toys, version1_link):
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    aggregator = federation.aggregator()
    old = version1_link(federation, "old-pi")
    status = Status("old-pi", "0" * 16, True, time.time(), 9, "0.1.0", time.time())
    topic = f"edgefl/v1/{federation.name}/device/old-pi/status"
    old.publish(topic, encode_json(status), retain=True)
    aggregator.wait_for("old-pi speaks version 1 of the protocol")
    assert "update edgefl on that device" in aggregator.err

    # a version 1 device reads exactly these fields and prints the phase
    old.subscribe(f"edgefl/v1/{federation.name}/state")
    answer = json.loads(wait_for_message(old, lambda event: event.payload).payload)
    assert list(answer) == V1_STATE_FIELDS
    assert "update edgefl on this device" in answer["phase"]
    assert re.fullmatch("[0-9a-f]{64}", answer["plan"])

    device = federation.device("pi-1", toys.shard(1))
    # The answer is removed at the end
    assert wait_for_message(old, lambda event: event.topic.endswith("/state") and not event.payload)
    assert (aggregator.end(), device.end()) == (0, 0), aggregator.err
    assert aggregator.err.count("old-pi") == 1
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-1"]
    old.publish(topic, b"", retain=True)


@pytest.mark.parametrize("named", [True, False], ids=["named", "found"])
def test_device_keeps_waiting_for_the_update_of_version_1_aggregator(
    own_broker, federate, toys, version1_link, named
):
    federation = federate(f"mqtt://127.0.0.1:{own_broker.port}", rounds=1, min_clients=1)
    old = version1_link(federation, "old-aggregator")
    state = version1.State(federation.name, "0" * 16, "joining", 0, 3, 0, 30.0, "0" * 64, time.time())
    assert list(asdict(state)) == V1_STATE_FIELDS
    old.publish(f"edgefl/v1/{federation.name}/state", encode_json(state), retain=True)
    device = federation.device("pi-1", toys.shard(1), *(() if named else ("--federation", "")))
    device.wait_for("update edgefl on the aggregator's machine")
    aggregator = federation.aggregator()  # the machine was updated
    assert (aggregator.end(), device.end()) == (0, 0), device.err
    assert device.err.count("speaks version 1") == 1


def test_access_list_allows_only_the_version_1_answer(secured_broker, federate, tmp_path):
    federation = federate(secured_broker.url, rounds=1, min_clients=9)
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    own = secured_broker.enrol("old-pi", tmp_path / "old-pi.enrol")
    leader = secured_broker.link(load_enrolment(secured_broker.directory / "aggregator.enrol"), "test-leader")
    old = secured_broker.link(own, "test-old")
    leader.subscribe(
        *(
            f"edgefl/v1/{federation.name}/{each}"
            for each in ("state", "device/+/status", "device/+/task", "blob/+/+")
        )
    )
    old.subscribe("edgefl/v1/#")
    answer = wait_for_message(old, lambda event: event.payload)
    assert answer.topic == f"edgefl/v1/{federation.name}/state"
    state = decode_json(version1.State, answer.payload)
    # signed like version 1, with the key in the enrolment of the device
    text = answer.payload.replace(state.signature.encode(), b"")
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(own.aggregator_key))
    key.verify(base64.b64decode(state.signature), f"edgefl/v1 {federation.name} State \n".encode() + text)

    root = f"edgefl/v1/{federation.name}"
    for topic in (
        "state",
        "device/other/status",
        "device/old-pi/task",
        "device/old-pi/metrics",
        f"blob/{'a' * 64}/0",
    ):
        old.publish(f"{root}/{topic}", b"forged")
    for topic in ("device/old-pi/task", f"blob/{'a' * 64}/0"):
        leader.publish(f"{root}/{topic}", b"of the aggregator")
    status = Status("old-pi", "0" * 16, True, time.time(), 9, "0.1.0", time.time())
    old.publish(f"{root}/device/old-pi/status", encode_json(status), retain=True)
    heard = wait_for_message(leader, lambda event: not event.topic.endswith("/state"))
    assert heard.topic == f"{root}/device/old-pi/status"
    aggregator.wait_for("old-pi speaks version 1 of the protocol")
    assert old.get(0.3) is None, "a version 1 device reads the state alone"
    for each in (leader, old):
        each.close()


def test_access_list_of_version_1_is_refused_with_remedy(secured_broker, federate):
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
        journal.start(FederationStart("s", "{}", 0.0))
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

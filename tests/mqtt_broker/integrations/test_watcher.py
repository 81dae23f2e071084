"""The watcher account on a broker with keys: it reads messages about rounds and devices, no model and no
update, and cannot publish.
"""

import json

import pytest
from click.testing import CliRunner

from devices.commands import device as device_commands
from edgefl.base.errors import LinkError
from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.topics import FederationTopics
from edgefl.watch.monitor.view import list_view_subscriptions
from mqtt_broker.broker.dev_broker import find_mosquitto
from mqtt_broker.commands import broker as broker_commands

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
TOPICS = FederationTopics("f")
SHA = "ab" * 32


@pytest.fixture
def watcher(secured_broker, tmp_path):
    path = tmp_path / "watcher.enrol"
    made = CliRunner().invoke(
        broker_commands, ["watcher", "--security", str(secured_broker.directory), "-o", str(path)]
    )
    assert made.exit_code == 0, made.output
    assert path.stat().st_mode & 0o777 == 0o600
    return path


@pytest.fixture
def connect(secured_broker):
    made = []

    def link(path, will=None, protocol=""):
        enrolment = load_enrolment(path)
        made.append(
            Link(
                secured_broker.url + protocol,
                f"test-{len(made)}",
                context=make_tls_context(enrolment),
                will=will,
            )
        )
        return made[-1]

    yield link
    for each in made:
        each.close(1.0)


READ = [
    TOPICS.state,
    TOPICS.clusters,
    TOPICS.verdict,
    TOPICS.format_summary(3),
    *(TOPICS.format_device("pi-1", leaf) for leaf in ("status", "metrics", "anomaly", "task", "receipt")),
    TOPICS.format_upload("pi-1", SHA, "begin"),
]
HIDDEN = [
    TOPICS.format_blob(SHA, 0),
    TOPICS.format_manifest(SHA),
    TOPICS.format_upload("pi-1", SHA, 0),
    TOPICS.format_upload("pi-1", SHA, "end"),
    TOPICS.format_device("pi-1", "want"),
    TOPICS.format_device("pi-1", "claim"),
    "other/topic",
]


def test_watcher_reads_monitor_topics_but_no_model_or_update(secured_broker, watcher, connect):
    leader = connect(secured_broker.directory / "aggregator.enrol")
    watcher_link = connect(watcher)
    watcher_link.subscribe("#")
    watcher_link.subscribe(*list_view_subscriptions("f"))
    for topic in [*HIDDEN, *READ]:
        leader.publish(topic, b"said")
    received = set()
    while READ[-1] not in received:
        event = watcher_link.get(20.0)
        assert event is not None, received
        received.add(event.topic)
    while (event := watcher_link.get(0.5)) is not None:
        received.add(event.topic)
    assert received == set(READ)


@pytest.mark.parametrize("protocol", ["", "?protocol=5"])
def test_watcher_cannot_publish_even_under_its_own_name(secured_broker, watcher, connect, protocol):
    leader = connect(secured_broker.directory / "aggregator.enrol")
    leader.subscribe("edgefl/v2/f/#")
    will = Message(topic=TOPICS.format_device("watcher", "status"), payload=b"will", retained=True)
    watcher_link = connect(watcher, will=will, protocol=protocol)
    own_topics = [
        TOPICS.format_device("watcher", leaf)
        for leaf in ("status", "metrics", "anomaly", "want", "claim", "task")
    ]
    for topic in [
        *READ,
        *HIDDEN,
        *own_topics,
        TOPICS.format_upload("watcher", SHA, "begin"),
        TOPICS.format_upload("watcher", SHA, 0),
    ]:
        watcher_link.publish(topic, b"forged", retain=True)
    assert watcher_link.wait_in_flight(1, 20.0)
    if protocol:  # MQTT 5 reports the refusal
        with pytest.raises(LinkError, match=r"refused to publish .*check the broker's access list"):
            watcher_link.get(0.0)
    watcher_link._client.socket().shutdown(2)  # the broker does not publish its will either
    leader.publish(TOPICS.state, b"last")
    assert leader.get(20.0) == Message(topic=TOPICS.state, payload=b"last")
    assert leader.get(1.0) is None


def test_watcher_commands_report_errors(secured_broker, watcher, tmp_path):
    run = CliRunner().invoke
    security = ["--security", str(secured_broker.directory)]
    for command, arguments, error in (
        (broker_commands, ["watcher", *security, "-o", str(watcher)], "already exists"),
        (
            broker_commands,
            ["watcher", *security, "-o", str(tmp_path / "second")],
            "the watcher is enrolled already; copy its file",
        ),
        (
            broker_commands,
            ["watcher", "--security", str(tmp_path / "none"), "-o", str(tmp_path / "x")],
            "edgefl broker init",
        ),
        (device_commands, ["enrol", "watcher", *security], "reserved for the watcher"),
    ):
        assert error in str(run(command, arguments).exception)
    assert json.loads((secured_broker.directory / "devices.json").read_text())["watcher"]["signing_key"] == ""
    assert run(device_commands, ["revoke", "watcher", *security]).exit_code == 0
    assert run(broker_commands, ["watcher", *security, "-o", str(tmp_path / "second")]).exit_code == 0
    acl = secured_broker.directory / "acl"
    acl.write_text(acl.read_text().replace("user watcher", "user somebody"))
    assert run(device_commands, ["revoke", "watcher", *security]).exit_code == 0
    failed = run(broker_commands, ["watcher", *security, "-o", str(tmp_path / "third")])
    assert "has no account for watchers" in str(failed.exception)

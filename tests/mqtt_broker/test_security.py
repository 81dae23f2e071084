"""A broker with keys: enrolled devices take part and can act only for themselves. In MQTT 3.1.1, and in
MQTT 5, which reports denied messages.
"""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from devices.commands import device as device_commands
from edgefl.base.errors import LinkError
from edgefl.protocol.security.authority import create_enrolment, create_key_directory, revoke_enrolment
from edgefl.protocol.security.enrolment import load_enrolment
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.messages import State
from edgefl.protocol.wire.strict_json import decode_json
from mqtt_broker.broker.dev_broker import find_mosquitto
from mqtt_broker.commands import broker as broker_commands

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


@pytest.fixture
def links(secured):
    made = []

    def make(enrolment, name="", will=None):
        made.append(secured.link(enrolment, name, will))
        return made[-1]

    yield make
    for link in made:
        link.close(1.0)


def test_device_warns_about_unencrypted_connection_with_enrolment(
    secured, federate, mosquitto_url, toys, tmp_path
):
    secured.enrol("open", tmp_path / "open")
    device = federate(mosquitto_url).device("open", toys.shard(1), "--enrol", tmp_path / "open")
    device.wait_for("is not mqtts: anyone on the network can read the signed messages")


@pytest.mark.parametrize("absent", ["cryptography", "nacl"])
def test_enrolled_devices_complete_a_federation(secured, federate, toys, absent, without):
    """Aggregator and device do not load `cryptography`, which takes five times the memory, unless the
    other package is missing.
    """
    without(absent)
    federation = federate(secured.url, rounds=2)
    aggregator = federation.aggregator("--security", secured.directory, "--broker", secured.url)
    devices = []
    ids = [f"one-without-{absent}", f"two-without-{absent}"]
    for client_id in ids:
        path = federation.directory / f"{client_id}.enrol"
        secured.enrol(client_id, path)
        devices.append(federation.device(client_id, toys.shard(len(client_id)), "--enrol", path))
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    assert [row["id"] for row in federation.result()["clients"]] == ids
    secrets = [
        line for line in (federation.directory / f"{ids[0]}.enrol").read_text().splitlines() if "key" in line
    ]
    for line in secrets:
        value = line.split('"')[3]
        assert value[:40] not in aggregator.err + "".join(device.err for device in devices)


def test_device_can_publish_and_subscribe_only_for_itself(secured, links, tmp_path):
    """The broker drops forbidden messages, in MQTT 3.1.1 without an error. The aggregator and the other
    device do not receive these messages.
    """
    thief, victim = (secured.enrol(name, tmp_path / name) for name in ("thief", "victim"))
    root = "edgefl/v2/f/device"
    leader = links(load_enrolment(secured.directory / "aggregator.enrol"))
    leader.subscribe("edgefl/v2/f/#")
    victim_link = links(victim)
    victim_link.subscribe(f"{root}/victim/task")
    thief_link = links(thief)
    for topic in (
        "victim/status",
        "victim/up/aa/begin",
        "victim/metrics",
        "victim/want",
        "victim/task",
        "thief/task",
        "thief/receipt",
    ):
        thief_link.publish(f"{root}/{topic}", b"forged")
    for topic in ("state", "blob/aa/0", "round/1/summary", "verdict"):
        thief_link.publish(f"edgefl/v2/f/{topic}", b"forged")
    thief_link.publish("other/topic", b"forged")
    thief_link.publish(f"{root}/thief/status", b"own")
    assert thief_link.wait_in_flight(1, 10.0)
    if secured.protocol == 5:
        denied = rf"refused to publish {root}/victim/status \(Not authorized\), .*victim/metrics .* and more; check the broker's access list"  # noqa: E501
        with pytest.raises(LinkError, match=denied):
            thief_link.get(0.0)
    assert [leader.get(5.0).topic, leader.get(0.5)] == [f"{root}/thief/status", None]

    thief_link.subscribe(f"{root}/thief/task", f"{root}/+/task", "edgefl/v2/f/#", "#")
    leader.publish(f"{root}/victim/task", b"secret")
    leader.publish(f"{root}/thief/task", b"mine")
    leader.publish("edgefl/v2/f/verdict", b"figures of each device")
    leader.publish("edgefl/v2/f/state", b"state")
    assert victim_link.get(5.0) == Message(topic=f"{root}/victim/task", payload=b"secret")
    heard = set()
    while not {f"{root}/thief/task", "edgefl/v2/f/state"} <= heard:
        heard.add(thief_link.get(5.0).topic)
    while (more := thief_link.get(0.3)) is not None:
        heard.add(more.topic)
    # a device may learn that other federations exist
    assert {topic for topic in heard if not topic.endswith("/state")} == {f"{root}/thief/task"}


def test_device_cannot_disconnect_another_device(secured, federate, toys, links, tmp_path):
    """A broker ends a connection when another one uses its client id, so the id is a secret. Claims and
    wills are allowed only for the device itself.
    """
    federation = federate(secured.url)
    status = federation.topics.format_device("target", "status")
    leader = links(load_enrolment(secured.directory / "aggregator.enrol"))
    leader.subscribe(status)
    thief = secured.enrol("burglar", tmp_path / "burglar")
    forged = json.dumps({"boot_id": "0" * 16, "ts": 1.0}).encode()
    eavesdropper = links(thief, "ear", will=Message(topic=status, payload=b"", retained=True))
    eavesdropper.subscribe("#", "$SYS/#", f"{federation.topics.root}/device/+/+", status)
    secured.enrol("target", tmp_path / "target")
    victim = federation.device("target", toys.shard(1), "--enrol", tmp_path / "target")
    statuses = [json.loads(leader.get(20.0).payload)]
    boot_id = statuses[0]["boot_id"]
    assert statuses[0]["online"]
    for name in ("target", "edgefl-target", "edgefl-target-"):
        links(thief, name).publish(federation.topics.format_device("target", "claim"), forged)
        # the second connection of this name ends the first one of the thief
        links(thief, name).publish(status, b"")
    heard = []
    while (message := eavesdropper.get(0.5)) is not None:
        heard.append(message)
    assert not [
        message for message in heard if boot_id.encode() in message.payload or boot_id in message.topic
    ]
    eavesdropper._client.socket().shutdown(socket.SHUT_RDWR)  # the broker does not publish its will
    assert leader.get(1.0) is None
    victim.popen.terminate()
    assert victim.end() == 0
    statuses.append(json.loads(leader.get(20.0).payload))
    assert [(each["boot_id"], each["online"]) for each in statuses] == [(boot_id, True), (boot_id, False)]
    assert "up again" not in victim.err


def test_broker_refuses_foreign_expired_and_missing_certificates(secured, tmp_path):
    fine = secured.enrol("fine", tmp_path / "fine")
    create_key_directory(tmp_path / "foreign", ["localhost"], secured.port, 30)
    foreign = create_enrolment(tmp_path / "foreign", "fine", 30)
    expired = create_enrolment(secured.directory, "expired", 0)
    secured.link(fine).close()
    with pytest.raises(LinkError, match=r"cannot prove its identity.*enrol again"):
        secured.link(foreign, timeout_s=2.0)
    for refused in (replace(foreign, ca=fine.ca), expired):
        with pytest.raises(LinkError, match=r"no broker|refused|did not answer in MQTT"):
            secured.link(refused, timeout_s=2.0)
    with pytest.raises(LinkError, match=r"no broker|refused|did not answer in MQTT"):
        Link(f"mqtt://localhost:{secured.port}", "plain", timeout_s=2.0)


def test_revoked_device_is_refused_and_can_be_replaced(secured, tmp_path):
    before = secured.enrol("lost", tmp_path / "lost")
    secured.link(before).close()
    revoke_enrolment(secured.directory, "lost")
    secured.popen.send_signal(1)
    for line in secured.popen.stderr:
        if "Reloading" in line or "reload" in line.lower():
            break
    with pytest.raises(LinkError):
        secured.link(before, timeout_s=2.0)
    again = secured.enrol("lost", tmp_path / "again")
    secured.popen.send_signal(1)
    secured.link(again).close()


def test_unsigned_state_is_ignored_and_unsigned_update_rejected(secured, federate, toys, links):
    """The forger has the aggregator's right to publish, but not its signing key."""
    federation = federate(secured.url, rounds=1, min_clients=1)
    path = federation.directory / "signed.enrol"
    own = secured.enrol("signed", path)
    leader = links(load_enrolment(secured.directory / "aggregator.enrol"))
    device = federation.device("signed", toys.shard(1), "--enrol", path, "--federation", federation.name)
    device.wait_for("joined")
    root = f"edgefl/v2/{federation.name}"
    state = {
        "federation": federation.name,
        "session": "x",
        "phase": "federate",
        "round": 1,
        "rounds": 1,
        "cohort_size": 1,
        "deadline_s": 9.0,
        "plan": "0" * 64,
        "ts": 0.0,
        "signature": "",
        "started": 0,
    }
    leader.publish(f"{root}/state", json.dumps(state).encode())
    device.wait_for("ignored: State is not signed")
    leader.publish(f"{root}/state", json.dumps({**state, "signature": own.signing_key}).encode())
    device.wait_for("ignored: State has a wrong signature")
    leader.subscribe(f"{root}/state", f"{root}/device/signed/receipt", f"{root}/device/signed/task")
    aggregator = federation.aggregator("--security", secured.directory, "--broker", secured.url)
    task = leader.get(20.0)
    while "/task" not in task.topic:
        if task.topic.endswith("/state") and decode_json(State, task.payload).signature:
            session = decode_json(State, task.payload).session
        task = leader.get(20.0)
    begin = {
        "client_id": "signed",
        "session": session,
        "round": 1,
        "plan": "0" * 64,
        "sha256": "ab" * 32,
        "size": 1,
        "count": 1,
        "chunk_bytes": 245760,
        "num_samples": 5,
        "metrics": {},
        "nonce": "n",
        "ts": 0.0,
        "signature": "",
        "follows": False,
    }
    leader.publish(f"{root}/device/signed/up/{'ab' * 32}/begin", json.dumps(begin).encode())
    aggregator.wait_for("rejected from signed: Begin is not signed")
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0, device.err


def test_enrol_and_revoke_commands_report_errors(tmp_path, secured):
    out = tmp_path / "pi.enrol"
    run = CliRunner().invoke
    args = ["enrol", "pi-9", "--security", str(secured.directory), "-o", str(out)]
    made = run(device_commands, args)
    assert made.exit_code == 0, made.output
    assert out.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in made.output
    assert (load_enrolment(out).masked_only, load_enrolment(out).least_clients) == (False, 0)
    strict = tmp_path / "strict.enrol"
    made = run(
        device_commands,
        ["enrol", "pi-8", *args[2:4], "-o", str(strict), "--masked-only", "--least-clients", "7"],
    )
    assert made.exit_code == 0, made.output
    assert (load_enrolment(strict).masked_only, load_enrolment(strict).least_clients) == (True, 7)
    for name in ("ca.key", "server.key", "aggregator.enrol"):
        assert (secured.directory / name).stat().st_mode & 0o777 == 0o600
    for more, error in (
        (args, "already exists"),
        ([*args[:-1], str(tmp_path / "b")], "pi-9 is enrolled already"),
        (["enrol", "PI", "--security", str(secured.directory)], "client id 'PI'"),
        (["enrol", "aggregator", "--security", str(secured.directory)], "reserved for the aggregator"),
        (["enrol", "pi-1", "--security", str(tmp_path / "none")], "edgefl broker init"),
        (["revoke", "pi-1", "--security", str(secured.directory)], "is not enrolled"),
    ):
        failed = run(device_commands, more)
        assert error in str(failed.exception), failed.exception
    revoked = run(device_commands, ["revoke", "pi-9", "--security", str(secured.directory)])
    assert "revoked pi-9" in revoked.output and "systemctl restart" in revoked.output
    again = run(broker_commands, ["init", str(secured.directory), "--host", "x"])
    assert "already contains an authority" in str(again.exception)
    out.chmod(0o644)
    start = run(
        device_commands, ["start", "--enrol", str(out), "--data", "x", "--state", str(tmp_path / "s")]
    )
    assert "can be read by others" in str(start.exception)
    unit = Path(secured.directory / "mosquitto.service").read_text().splitlines()
    assert f"ReadWritePaths={secured.directory.resolve()}/data" in unit
    assert next(line for line in unit if line.startswith("ExecStart=")).endswith(
        f"-c {secured.directory.resolve()}/mosquitto.conf"
    )

"""Limits on what one enrolled board can make the broker store: mosquitto as `edgefl broker init`
configures it, with small limits.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from click.testing import CliRunner

from edgefl.base.errors import LinkError
from edgefl.protocol.security.authority import create_enrolment, revoke_enrolment
from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context
from edgefl.protocol.transport.link import Link
from mqtt_broker.broker.dev_broker import find_mosquitto
from mqtt_broker.commands import broker as broker_commands
from tests.support.ports import choose_port

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
MIB = 2**20
MESSAGE_BYTES = 255 * 1024
TIMEOUT_S = 30.0
OVERHEAD_MB = 48
"""mosquitto itself, the messages in transfer, and the buffers of TLS."""


class Broker:
    """A mosquitto with the project's configuration. `limits` replace values of existing limits in it."""

    def __init__(self, directory, **limits):
        self.directory = directory
        self.port = choose_port()
        arguments = [
            "init",
            str(directory),
            "--host",
            "localhost",
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
        ]
        made = CliRunner().invoke(broker_commands, arguments)
        assert made.exit_code == 0, made.output
        conf = directory / "mosquitto.conf"
        text = conf.read_text()
        for name, value in limits.items():
            text = re.sub(rf"^{name} \d+$", f"{name} {value}", text, flags=re.MULTILINE)
        conf.write_text(text)
        self.log = (directory / "log").open("w+")
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [find_mosquitto(), "-c", str(self.directory / "mosquitto.conf")], stderr=self.log
        )
        deadline = time.monotonic() + TIMEOUT_S
        leader = make_tls_context(load_enrolment(self.directory / "aggregator.enrol"))
        while True:
            with contextlib.suppress(LinkError):
                self.leader = Link(f"mqtts://localhost:{self.port}", "leader", context=leader)
                break
            assert time.monotonic() < deadline and self.process.poll() is None
        self.leader.subscribe("edgefl/+/f/device/+/status")

    def enrol(self, client_id):
        return make_tls_context(create_enrolment(self.directory, client_id, 30))

    def read_resident_mb(self):
        return (
            int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024
        )

    def restart_without_stored_messages(self):
        """Restart the broker without its stored messages, as the page for operators advises when the
        memory is full.
        """
        self.leader.close(0.0)
        self.process.terminate()
        self.process.wait()
        (self.directory / "data/mosquitto.db").unlink()
        self.start()

    def can_deliver(self, context, client_id, payload=b"still here"):
        """Return whether a message of this board reaches the aggregator."""
        link = Link(f"mqtts://localhost:{self.port}", "other", context=context)
        try:
            link.publish(f"{get_topic_prefix()}/f/device/{client_id}/status", payload)
            return self.leader.get(TIMEOUT_S).payload == payload
        finally:
            link.close(1.0)

    def close(self):
        self.leader.close(0.0)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()


def get_topic_prefix():
    """Return the first two levels of every topic."""
    from edgefl.protocol.wire.topics import FederationTopics

    return "/".join(FederationTopics("f").state.split("/")[:2])


@pytest.fixture
def small_broker(tmp_path):
    made = []

    def make(**limits):
        made.append(Broker(tmp_path / "keys", **limits))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Flooder:
    """A board that publishes what its certificate allows, as fast as it can."""

    def __init__(self, port, context, name, *, clean=True):
        self.connected = threading.Event()
        self.ended = threading.Event()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, clean_session=clean)
        self.client.tls_set_context(context)
        self.client.max_inflight_messages_set(100)
        self.client.on_connect = lambda *_: self.connected.set()
        self.client.on_disconnect = lambda *_: self.ended.set()
        self.client.connect("localhost", port)
        self.client.loop_start()
        assert self.connected.wait(TIMEOUT_S)

    def publish(self, topics, *, retain=False):
        """Publish a message of 255 KB on each topic. Return when all are acknowledged or the broker ended
        the connection.
        """
        payload = os.urandom(MESSAGE_BYTES)
        for sent in [self.client.publish(topic, payload, qos=1, retain=retain) for topic in topics]:
            while not sent.is_published() and not self.ended.wait(0.01):
                pass

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


def test_board_cannot_fill_broker_memory_with_retained_messages(small_broker):
    """600 retained messages of 255 KB are 149 MB. Without a limit they arrive in less than a second."""
    broker = small_broker(memory_limit=64 * MIB)
    thief = broker.enrol("thief")
    other = broker.enrol("other")
    flooder = Flooder(broker.port, thief, "flooder")
    flooder.publish([f"{get_topic_prefix()}/f/device/thief/up/{i:064x}/0" for i in range(600)], retain=True)
    assert broker.read_resident_mb() < 64 + OVERHEAD_MB
    assert flooder.ended.is_set()
    flooder.close()
    assert broker.can_deliver(other, "other")
    log = (broker.directory / "log").read_text()
    # The log tells the operator which board to revoke
    assert "flooder disconnected due to out of memory" in log and "u'thief'" in log
    revoke_enrolment(broker.directory, "thief")
    broker.restart_without_stored_messages()
    assert broker.can_deliver(other, "other", bytes(MESSAGE_BYTES))
    with pytest.raises(LinkError):
        Link(f"mqtts://localhost:{broker.port}", "flooder", timeout_s=2.0, context=thief)


def test_board_cannot_fill_broker_memory_with_queues(small_broker):
    """Messages are queued for sessions whose client is absent. Above `max_queued_bytes` the broker drops
    them, and other clients are not affected.
    """
    broker = small_broker(max_queued_bytes=16 * MIB)
    thief = broker.enrol("thief")
    other = broker.enrol("other")
    topic = f"{get_topic_prefix()}/q/device/thief/status"
    for number in range(3):
        absent = Flooder(broker.port, thief, f"away-{number}", clean=False)
        subscribed = threading.Event()
        absent.client.on_subscribe = lambda *_, done=subscribed: done.set()
        absent.client.subscribe(topic, 1)
        assert subscribed.wait(TIMEOUT_S)
        absent.close()
    flooder = Flooder(broker.port, thief, "flooder")
    for _ in range(4):
        flooder.publish([topic] * 100)
    assert broker.read_resident_mb() < 16 + OVERHEAD_MB
    flooder.close()
    assert broker.can_deliver(other, "other")


def test_connections_are_limited_and_sessions_expire(small_broker):
    broker = small_broker(max_connections=3)
    context = broker.enrol("thief")
    links = []
    try:
        with pytest.raises(LinkError):
            for number in range(3):
                links.append(Link(f"mqtts://localhost:{broker.port}", f"link-{number}", context=context))
        assert len(links) == 2  # the aggregator has the third
    finally:
        for link in links:
            link.close(0.0)
    assert "persistent_client_expiration 1h" in (broker.directory / "mosquitto.conf").read_text().splitlines()

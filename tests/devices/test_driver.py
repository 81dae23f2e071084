"""The driver of a client machine over a real broker, while a worker trains and never ends."""

import threading
import time
from contextlib import contextmanager

import pytest

from devices.driver import ClientDriver
from devices.messages import read_client_event
from edgefl.base.errors import WireError
from edgefl.protocol.device import machine as machine_module
from edgefl.protocol.device.events import PlanOpened, SavedClient, Train
from edgefl.protocol.device.machine import ClientMachine, ClientSettings
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.messages import Claim, Manifest, Status, Task
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.protocol.wire.topics import FederationTopics
from mqtt_broker.broker.dev_broker import LOOPBACK_HOST, find_mosquitto
from tests.edgefl.protocol.device.machines import make_task
from tests.support.broker import mosquitto
from tests.support.ports import choose_port

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
TOPICS = FederationTopics("lab")
DEADLINE_S = 30.0


class NoStorage:
    """Finds every blob, and stores nothing."""

    def find_blobs(self, digests):
        return dict.fromkeys(digests, b"blob")

    def read_answer(self, sha256):
        return b""

    def apply(self, action):
        pass


@contextmanager
def drive(port, find_pause_reason=lambda refresh: ""):
    """Run a driver in a thread. Yield an event that is set when a training begins."""
    link = Link(f"mqtt://{LOOPBACK_HOST}:{port}", "pi-1")
    now = time.time()
    status = Status(
        client_id="pi-1", boot_id="boot", online=False, born=now, num_samples=10, version="0", ts=now
    )
    settings = ClientSettings(broker=link.url)
    trains = threading.Event()

    def begin_work(work):
        if isinstance(work, Train):
            trains.set()
        else:
            driver.add_event(PlanOpened(work.sha256, 1000))

    driver = ClientDriver(
        machine=ClientMachine(topics=TOPICS, status=status, settings=settings, saved=SavedClient()),
        link=link,
        topics=TOPICS,
        trust=Trust(federation="lab"),
        storage=NoStorage(),
        begin_work=begin_work,
        find_pause_reason=find_pause_reason,
    )
    thread = threading.Thread(target=driver.run)
    thread.start()
    try:
        yield trains
    finally:
        driver.stop()
        thread.join(DEADLINE_S)
        link.close(0.0)
    assert not thread.is_alive(), "stop ends the driver"


def receive_status(link, accepts):
    until = time.monotonic() + DEADLINE_S
    while (left := until - time.monotonic()) > 0:
        message = link.get(left)
        if message and accepts(status := decode_json(Status, message.payload)):
            return status
    raise AssertionError("no such status arrived")


def test_device_in_training_answers_claims_and_reports_a_pause():
    port = choose_port()
    paused = threading.Event()
    with (
        mosquitto(port),
        drive(port, lambda refresh: "busy" if paused.is_set() else "") as trains,
    ):
        other = Link(f"mqtt://{LOOPBACK_HOST}:{port}", "other")
        other.subscribe(TOPICS.format_device("pi-1", "status"))
        receive_status(other, lambda status: status.online)
        other.publish(TOPICS.format_device("pi-1", "task"), encode_json(make_task(1)))
        assert trains.wait(DEADLINE_S)
        other.publish(TOPICS.format_device("pi-1", "claim"), encode_json(Claim("another", time.time())))
        assert receive_status(other, lambda status: status.online).paused == ""
        paused.set()
        assert receive_status(other, lambda status: bool(status.paused)).draining
        other.close(0.0)


@pytest.mark.parametrize(("access", "lines"), [("topic read #", 1), ("topic readwrite #", 0)])
def test_device_whose_status_is_not_delivered_logs_one_warning(access, lines, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(machine_module, "STATUS_TIMEOUT_S", 0.3)
    (tmp_path / "acl").write_text(f"{access}\n")
    port = choose_port()
    checks = []
    several_checks = threading.Event()

    def find_pause_reason(refresh):
        checks.append(time.monotonic())
        if checks[-1] - checks[0] > 0.6:
            several_checks.set()
        return ""

    with (
        mosquitto(port, f"user {tmp_path.owner()}\nacl_file {tmp_path}/acl"),
        drive(port, find_pause_reason),
    ):
        assert several_checks.wait(DEADLINE_S)
    warnings = [record.message for record in caplog.records if "does not deliver" in record.message]
    assert len(warnings) == lines
    assert all("access list" in line and "edgefl doctor --broker mqtt://" in line for line in warnings)


def test_malformed_message_is_ignored_with_a_warning(caplog):
    port = choose_port()
    with mosquitto(port), drive(port) as trains:
        other = Link(f"mqtt://{LOOPBACK_HOST}:{port}", "other")
        other.subscribe(TOPICS.format_device("pi-1", "status"))
        receive_status(other, lambda status: status.online)
        for payload in (
            b"no json",
            encode_json(Manifest(sha256="0" * 64, size=1, count=1, chunk_bytes=1024, ts=0.0)),
            encode_json(make_task(1)),
        ):
            other.publish(TOPICS.format_device("pi-1", "task"), payload)
        assert trains.wait(DEADLINE_S), "the valid task is taken up"
        other.close(0.0)
    lines = [record.message for record in caplog.records if record.message.startswith("ignored: ")]
    assert len(lines) == 2 and all(Task.__name__ in line for line in lines)


def test_manifest_of_another_blob_than_its_topic_is_refused():
    manifest = Manifest(sha256="0" * 64, size=1, count=1, chunk_bytes=1024, ts=0.0)
    message = Message(topic=TOPICS.format_manifest("1" * 64), payload=encode_json(manifest))
    with pytest.raises(WireError, match="names the blob 00000000, expected 11111111"):
        read_client_event(message, Trust(federation="lab"), "pi-1", None)

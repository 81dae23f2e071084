"""The session of a device on brokers that do not deliver its messages."""

import time
from dataclasses import replace

import pytest

from devices import session as session_module
from devices.order import TaskOrder
from devices.session import Session
from edgefl.security.trust import Trust
from edgefl.transport.link import Link
from edgefl.wire.messages import Status
from edgefl.wire.topics import FederationTopics
from mqtt_broker.broker.dev_broker import LOOPBACK_HOST, find_mosquitto
from tests.support.broker import mosquitto
from tests.support.ports import choose_port

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
STATUS = Status("pi-1", "boot", True, time.time(), 10, "0", time.time())


@pytest.mark.parametrize(("access", "lines"), [("topic read #", 1), ("topic readwrite #", 0)])
def test_device_whose_status_is_not_delivered_logs_one_warning(access, lines, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(session_module, "STATUS_TIMEOUT_S", 0.3)
    (tmp_path / "acl").write_text(f"{access}\n")
    port = choose_port()
    with mosquitto(port, f"user {tmp_path.owner()}\nacl_file {tmp_path}/acl"):
        link = Link(f"mqtt://{LOOPBACK_HOST}:{port}", "pi-1")
        session = Session(link, FederationTopics("lab"), replace(STATUS), Trust("lab"), TaskOrder("lab"))
        session.start()
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            session.pump(0.1)
        link.close(0.0)
    warnings = [record.message for record in caplog.records if "does not deliver" in record.message]
    assert len(warnings) == lines
    assert all("access list" in line and "edgefl doctor --broker mqtt://" in line for line in warnings)

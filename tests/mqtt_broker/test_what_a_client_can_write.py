"""What a client can write into the aggregator's log and directory, who may take part, and who can read
the figures of clients.
"""

import stat

import pytest

from edgefl.base.config import FederationConfig, parse_config
from edgefl.base.errors import ConfigError
from edgefl.protocol.wire.tensors import encode_models
from mqtt_broker.broker.dev_broker import find_mosquitto

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
FORGED = "rejected from pi-9: pi-9 was revoked"


def test_client_status_cannot_forge_log_lines_or_control_codes(federate, mosquitto_url, puppet):
    federation = federate(mosquitto_url, min_clients=3)
    aggregator = federation.aggregator()
    writer = puppet(federation, "pi-1")
    other = puppet(federation, "pi-2")
    aggregator.wait_for("pi-1 is online")
    writer.publish_status(paused=f"busy)\n{FORGED}\r\x1b[2J\x1b]0;title\x07\u202e(")
    aggregator.wait_for("pi-1 is paused (busy)")
    other.publish_status(online=False)
    aggregator.wait_for("pi-2 is offline")
    assert FORGED not in aggregator.err.splitlines()
    assert not [letter for letter in aggregator.err if not letter.isprintable() and letter != "\n"]
    assert "\\x0a" in aggregator.err  # the log shows that characters were replaced


def test_client_cannot_flood_the_log(federate, mosquitto_url, puppet):
    """The aggregator logs each status change and each rejected message, but only a limited number per
    minute.
    """
    federation = federate(mosquitto_url, min_clients=3)
    aggregator = federation.aggregator()
    writer = puppet(federation, "pi-1")
    other = puppet(federation, "pi-2")
    aggregator.wait_for("pi-1 is online")
    for number in range(150):
        writer.publish_status(paused=f"reason {number}")
        writer.publish("ab" * 32, "begin", b"no message of the protocol")
    assert writer.link.wait_in_flight(1, 30.0)
    other.publish_status(paused="after the flood")
    aggregator.wait_for("after the flood")
    lines = [line for line in aggregator.err.splitlines() if "pi-1" in line]
    assert len(lines) <= 21
    assert "left out for a minute" in lines[-1]


def test_unlisted_client_takes_no_part(federate, mosquitto_url, puppet, toys):
    federation = federate(mosquitto_url, rounds=1, min_clients=1, clients=["pi-1"], algorithm="fedavg")
    stranger = puppet(federation, "pi-2")
    aggregator = federation.aggregator()
    listed = puppet(federation, "pi-1")
    assert listed.send(listed.next("task"), encode_models({"global": toys.weights()})).outcome == "ok"
    assert listed.send(listed.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-1"]
    assert "pi-2 is not one of [federation] clients" in aggregator.err
    assert stranger.link.get(0.2) is None  # no task, and no receipt


def test_client_list_is_validated():
    assert parse_config('[federation]\nclients = ["pi-1", "pi-2"]\n').clients == ("pi-1", "pi-2")
    with pytest.raises(
        ConfigError, match=r"min_clients is 2, expected at most the number of clients listed, 1"
    ):
        FederationConfig(clients=("pi-1",))
    with pytest.raises(ConfigError, match=r"clients is \[1\], expected ids"):
        FederationConfig(clients=(1,), min_clients=1)


def test_only_the_owner_can_read_the_aggregators_files(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    federation.out.parent.chmod(0o755)
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    assert (aggregator.end(), device.end()) == (0, 0), aggregator.err
    assert stat.S_IMODE(federation.out.stat().st_mode) == 0o700
    files = sorted(
        path
        for name in ("journal.sqlite*", "rounds.jsonl", "result.json")
        for path in federation.out.glob(name)
    )
    assert len(files) >= 3
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []

"""docs/protocol.md is enough to write a device: one that knows nothing of edgefl's code takes part, with keys and without."""

import importlib.util
import json
import ssl
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from edgefl.errors import WireError
from edgefl.wire import messages
from edgefl.wire.masked import Advertised
from edgefl.wire.strict_json import decode_json

SPEC = importlib.util.spec_from_file_location("edgefl_tests_foreign", Path(__file__).with_name("foreign_device.py"))
assert SPEC
foreign = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(foreign)

TYPES = {
    str: "text", int: "integer", float: "number", bool: "boolean", messages.Ranges: "ranges", tuple[str, ...]: "list of text",
    Mapping[str, float]: "map of number", Mapping[str, str]: "map of text",
}  # fmt: skip


def spoken():
    """Every message of the wire. `Clusters` is for those who watch, and no part of what devices and aggregator say to each other."""
    found = {name: each for name, each in vars(messages).items() if isinstance(each, type) and each.__module__ == messages.__name__}
    return {**found, "Advertised": Advertised}


@pytest.mark.parametrize("name", sorted(spoken().keys() - {"Clusters"}))
def test_the_page_has_every_field_in_the_order_that_is_signed(name):
    told = [(field.name, TYPES[field.type]) for field in fields(spoken()[name])]
    assert list(foreign.TABLES[name].items()) == told


def test_the_page_has_no_message_that_there_is_not():
    assert foreign.TABLES.keys() - {"Clusters"} <= spoken().keys()


def port_of(url):
    return urlsplit(url).port


@pytest.fixture
def stranger():
    made = []

    def make(*arguments):
        made.append(foreign.ForeignDevice(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_device_written_from_the_page_takes_part(mosquitto_url, federate, toys, stranger):
    federation = federate(mosquitto_url, rounds=2, codec="int8+deflate")
    aggregator = federation.aggregator()
    own = federation.device("own", toys.shard(1))
    other = stranger(port_of(mosquitto_url), federation.name, "stranger")
    other.run()
    assert aggregator.end() == 0, aggregator.said
    assert own.end() == 0, own.said
    result = federation.result()
    assert {row["id"]: row.get("accuracy_mixture") for row in result["clients"]}["stranger"] == 0.5
    assert not result["dropped"]
    assert {"State", "Task", "Receipt"} <= set(other.heard)


def test_with_keys_too(secured_broker, federate, toys, stranger, tmp_path):
    federation = federate(secured_broker.url, rounds=2, codec="int8+deflate")
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    secured_broker.enrol("own", tmp_path / "own.enrol")
    own = federation.device("own", toys.shard(1), "--enrol", tmp_path / "own.enrol")
    secured_broker.enrol("stranger", tmp_path / "stranger.enrol")
    enrolment = json.loads((tmp_path / "stranger.enrol").read_text())
    (tmp_path / "pair.pem").write_text(enrolment["certificate"] + enrolment["key"])
    context = ssl.create_default_context(cadata=enrolment["ca"])
    context.load_cert_chain(tmp_path / "pair.pem")
    other = stranger(secured_broker.port, federation.name, "stranger", enrolment, context)
    other.run()
    assert aggregator.end() == 0, aggregator.said
    assert own.end() == 0, own.said
    assert not federation.result()["dropped"]


def test_a_field_too_many_or_too_few_is_refused():
    """What the page says of JSON, by one message."""
    end = {"sha256": "ab", "count": 1, "ts": 1.0}
    assert decode_json(messages.End, json.dumps(end).encode()) == messages.End("ab", 1, 1.0)
    for payload in ({**end, "more": 1}, {"sha256": "ab", "count": 1}, {**end, "count": 1.0}, {**end, "sha256": "x" * 1025}):
        with pytest.raises(WireError):
            decode_json(messages.End, json.dumps(payload).encode())
    with pytest.raises(WireError):
        decode_json(messages.End, b'{"sha256":"ab","sha256":"ab","count":1,"ts":1.0}')

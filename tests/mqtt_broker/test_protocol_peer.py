"""docs/protocol.md is enough to write a device: one that knows nothing of edgefl's code takes part, with keys
and without.
"""

import importlib.util
import json
import ssl
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from safetensors.numpy import load_file

from edgefl.errors import WireError
from edgefl.storage.checkpoint import decode_server_state
from edgefl.wire import messages
from edgefl.wire.masked import Advertised, Agreed
from edgefl.wire.strict_json import decode_json


def load(name):
    spec = importlib.util.spec_from_file_location(
        f"edgefl_tests_{name}", Path(__file__).with_name(f"{name}.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


foreign = load("foreign_device")
foreign_masked = load("foreign_masked")

TYPES = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    messages.Ranges: "ranges",
    tuple[str, ...]: "list of text",
    Mapping[str, float]: "map of number",
    Mapping[str, str]: "map of text",
    Mapping[str, int]: "map of integer",
    tuple[tuple[float, ...], ...]: "rows of number",
    tuple[tuple[int, int, float, int], ...]: "rows `[one, other, height, size]`",
    tuple[tuple[str, float, float, float, float, str, str], ...]: (
        "rows `[id, local, federated, shipped, int8, kind, comparison]`"
    ),
}


def spoken():
    """Every message of the wire."""
    found = {
        name: each
        for name, each in vars(messages).items()
        if isinstance(each, type) and each.__module__ == messages.__name__
    }
    return {**found, "Advertised": Advertised, "Agreed": Agreed}


@pytest.mark.parametrize("name", sorted(spoken()))
def test_the_page_has_every_field_in_the_order_that_is_signed(name):
    told = [(field.name, TYPES[field.type]) for field in fields(spoken()[name])]
    assert list(foreign.TABLES[name].items()) == told


def test_the_page_has_no_message_that_there_is_not():
    assert foreign.TABLES.keys() <= spoken().keys()


def port_of(url):
    return urlsplit(url).port


@pytest.fixture
def stranger():
    made = []

    def make(*arguments, kind=foreign.ForeignDevice):
        made.append(kind(*arguments))
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


def enrolled(secured_broker, directory, client_id):
    """Return the fields of an enrolment, and the TLS context that they make."""
    secured_broker.enrol(client_id, directory / f"{client_id}.enrol")
    enrolment = json.loads((directory / f"{client_id}.enrol").read_text())
    (directory / "pair.pem").write_text(enrolment["certificate"] + enrolment["key"])
    context = ssl.create_default_context(cadata=enrolment["ca"])
    context.load_cert_chain(directory / "pair.pem")
    return enrolment, context


def test_with_keys_too(secured_broker, federate, toys, stranger, tmp_path):
    federation = federate(secured_broker.url, rounds=2, codec="int8+deflate")
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    secured_broker.enrol("own", tmp_path / "own.enrol")
    own = federation.device("own", toys.shard(1), "--enrol", tmp_path / "own.enrol")
    other = stranger(
        secured_broker.port, federation.name, "stranger", *enrolled(secured_broker, tmp_path, "stranger")
    )
    other.run()
    assert aggregator.end() == 0, aggregator.said
    assert own.end() == 0, own.said
    assert not federation.result()["dropped"]


@pytest.mark.parametrize("keys", [False, True], ids=["open", "enrolled"])
def test_its_words_are_in_a_masked_sum(request, mosquitto_url, federate, toys, stranger, tmp_path, keys):
    broker = request.getfixturevalue("secured_broker") if keys else None
    url = broker.url if broker else mosquitto_url
    federation = federate(
        url,
        rounds=1,
        min_clients=3,
        grace_s=20.0,  # The round needs all three, also on a busy machine
        tables="[privacy]\nsecure_aggregation = true\n",
        algorithm="fedavg",
    )
    aggregator = federation.aggregator(*(("--security", broker.directory, "--broker", url) if broker else ()))
    devices = []
    for client_id in ("one", "two"):
        if broker:
            broker.enrol(client_id, tmp_path / f"{client_id}.enrol")
        more = ("--enrol", tmp_path / f"{client_id}.enrol") if broker else ()
        devices.append(federation.device(client_id, toys.shard(len(devices)), *more))
    secret = enrolled(broker, tmp_path, "stranger") if broker else ()
    other = stranger(
        port_of(url), federation.name, "stranger", *secret, kind=foreign_masked.MaskedForeignDevice
    )
    other.run()
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in devices] == [0, 0], [device.said for device in devices]
    assert "dropped out" not in aggregator.said
    assert not federation.result()["dropped"]
    told = [
        (
            7,
            {
                name: np.sin(np.arange(array.size) + 1).reshape(array.shape) * 1e-3
                for name, array in initial_of(federation).items()
            },
        )
    ]
    told += [kept_by(tmp_path / f"state-{client_id}") for client_id in ("one", "two")]
    after = decode_server_state((federation.out / "server_state.safetensors").read_bytes()).models["global"]
    for name, before in initial_of(federation).items():
        mean = sum(samples * delta[name].astype(np.float64) for samples, delta in told) / sum(
            samples for samples, _ in told
        )
        np.testing.assert_allclose(after[name], before + mean, atol=1e-6)


def initial_of(federation):
    return load_file(federation.directory / "plan" / "initial.safetensors")


def kept_by(state):
    """Return samples and delta of the update before a device's last answer, which was its personalization."""
    before = json.loads((state / "progress.before.json").read_text())
    return before["num_samples"], {
        name.removeprefix("global/"): array for name, array in load_file(state / before["update"]).items()
    }


def test_a_field_too_many_or_too_few_is_refused():
    """What the page says of JSON, by one message."""
    end = {"sha256": "ab", "count": 1, "ts": 1.0}
    assert decode_json(messages.End, json.dumps(end).encode()) == messages.End("ab", 1, 1.0)
    for payload in (
        {**end, "more": 1},
        {"sha256": "ab", "count": 1},
        {**end, "count": 1.0},
        {**end, "sha256": "x" * 1025},
    ):
        with pytest.raises(WireError):
            decode_json(messages.End, json.dumps(payload).encode())
    with pytest.raises(WireError):
        decode_json(messages.End, b'{"sha256":"ab","sha256":"ab","count":1,"ts":1.0}')

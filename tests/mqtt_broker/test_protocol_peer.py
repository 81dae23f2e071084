"""docs/protocol.md is enough to write a device: a device without code of edgefl takes part, with keys and
without.
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
from safetensors.numpy import load, load_file

from edgefl.base.errors import WireError
from edgefl.learning.checkpoint import decode_server_state
from edgefl.protocol.wire import messages
from edgefl.protocol.wire.masked import Advertised, Agreed
from edgefl.protocol.wire.strict_json import decode_json


def load_module(name):
    spec = importlib.util.spec_from_file_location(
        f"edgefl_tests_{name}", Path(__file__).with_name(f"{name}.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


foreign = load_module("foreign_device")
foreign_masked = load_module("foreign_masked")

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


def list_messages():
    """Return every message of the wire protocol by name."""
    found = {
        name: each
        for name, each in vars(messages).items()
        if isinstance(each, type) and each.__module__ == messages.__name__
    }
    return {**found, "Advertised": Advertised, "Agreed": Agreed}


@pytest.mark.parametrize("name", sorted(list_messages()))
def test_protocol_page_lists_all_fields_in_signing_order(name):
    expected_fields = [(field.name, TYPES[field.type]) for field in fields(list_messages()[name])]
    assert list(foreign.TABLES[name].items()) == expected_fields


def test_protocol_page_documents_only_existing_messages():
    assert foreign.TABLES.keys() <= list_messages().keys()


def get_port(url):
    return urlsplit(url).port


@pytest.fixture
def start_foreign_device():
    made = []

    def make(*arguments, kind=foreign.ForeignDevice):
        made.append(kind(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_device_written_from_the_page_completes_a_federation(
    mosquitto_url, federate, toys, start_foreign_device
):
    federation = federate(mosquitto_url, rounds=2, codec="int8+deflate")
    aggregator = federation.aggregator()
    own = federation.device("own", toys.shard(1))
    other = start_foreign_device(get_port(mosquitto_url), federation.name, "stranger")
    other.run()
    assert aggregator.end() == 0, aggregator.err
    assert own.end() == 0, own.err
    result = federation.result()
    assert {row["id"]: row.get("accuracy_mixture") for row in result["clients"]}["stranger"] == 0.5
    assert not result["dropped"]
    assert {"State", "Task", "Receipt"} <= set(other.verified_kinds)


def enrol_device(secured_broker, directory, client_id):
    """Return the fields of a new enrolment and its TLS context."""
    secured_broker.enrol(client_id, directory / f"{client_id}.enrol")
    enrolment = json.loads((directory / f"{client_id}.enrol").read_text())
    (directory / "pair.pem").write_text(enrolment["certificate"] + enrolment["key"])
    context = ssl.create_default_context(cadata=enrolment["ca"])
    context.load_cert_chain(directory / "pair.pem")
    return enrolment, context


def test_enrolled_foreign_device_completes_a_federation(
    secured_broker, federate, toys, start_foreign_device, tmp_path
):
    federation = federate(secured_broker.url, rounds=2, codec="int8+deflate")
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    secured_broker.enrol("own", tmp_path / "own.enrol")
    own = federation.device("own", toys.shard(1), "--enrol", tmp_path / "own.enrol")
    other = start_foreign_device(
        secured_broker.port, federation.name, "stranger", *enrol_device(secured_broker, tmp_path, "stranger")
    )
    other.run()
    assert aggregator.end() == 0, aggregator.err
    assert own.end() == 0, own.err
    assert not federation.result()["dropped"]


@pytest.mark.parametrize("keys", [False, True], ids=["open", "enrolled"])
def test_masked_sum_includes_the_foreign_devices_update(
    request, mosquitto_url, federate, toys, start_foreign_device, tmp_path, keys
):
    broker = request.getfixturevalue("secured_broker") if keys else None
    url = broker.url if broker else mosquitto_url
    federation = federate(
        url,
        rounds=1,
        min_clients=3,
        grace_s=20.0,  # The round needs all three clients, also on a busy machine
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
    secret = enrol_device(broker, tmp_path, "stranger") if broker else ()
    other = start_foreign_device(
        get_port(url), federation.name, "stranger", *secret, kind=foreign_masked.MaskedForeignDevice
    )
    other.run()
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    assert "dropped out" not in aggregator.err
    assert not federation.result()["dropped"]
    updates = [
        (
            7,
            {
                name: np.sin(np.arange(array.size) + 1).reshape(array.shape) * 1e-3
                for name, array in load_initial(federation).items()
            },
        )
    ]
    updates += [load_previous_update(tmp_path / f"state-{client_id}") for client_id in ("one", "two")]
    after = decode_server_state((federation.out / "server_state.safetensors").read_bytes()).models["global"]
    for name, before in load_initial(federation).items():
        mean = sum(samples * delta[name].astype(np.float64) for samples, delta in updates) / sum(
            samples for samples, _ in updates
        )
        np.testing.assert_allclose(after[name], before + mean, atol=1e-6)


def load_initial(federation):
    return load_file(federation.directory / "plan" / "initial.safetensors")


def load_previous_update(state):
    """Return number of samples and delta of the update before the last answer of a device, which was its
    personalization.
    """
    _, path = sorted(state.glob("round-*"), key=lambda path: -int(path.name.split("-")[1]))
    header, _, blobs = path.read_bytes().partition(b"\n")
    before = json.loads(header)
    arrays = load(blobs[: before["update_bytes"]])
    return before["num_samples"], {name.removeprefix("global/"): array for name, array in arrays.items()}


def test_message_with_extra_or_missing_field_is_rejected():
    """One message stands for the JSON rules of the page."""
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

"""Masked rounds of an enrolled fleet: keys are signed, and clients refuse the keys of a device that the
authority does not vouch for.
"""

import json

import pytest

from edgefl.base.config import FederationConfig, PrivacyConfig
from edgefl.learning.checkpoint import encode_server_state
from edgefl.protocol.security.authority import renew_vouchers
from edgefl.simulation.simulate import simulate
from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.support.numpy_learner.softmax import SoftmaxLearner

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
IDS = ("pi-0", "pi-1", "pi-2")


def start_devices(secured, federate, toys):
    federation = federate(
        secured.url,
        rounds=1,
        min_clients=3,
        seed=5,
        quorum=1.0,
        tables="[privacy]\nsecure_aggregation = true\n",
        algorithm="fedavg",
    )
    devices = []
    shards = {client_id: toys.shard(i) for i, client_id in enumerate(IDS)}
    for client_id, shard in shards.items():
        path = federation.directory / f"{client_id}.enrol"
        secured.enrol(client_id, path)
        devices.append(federation.device(client_id, shard, "--enrol", path))
    return federation, devices, shards


def test_enrolled_masked_devices_match_the_simulator(secured_broker, federate, toys, masked):
    federation, devices, shards = start_devices(secured_broker, federate, toys)
    renew_vouchers(secured_broker.directory, 13)
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    assert aggregator.end() == 0, aggregator.err
    assert (
        "vouchers for pi-0, pi-1, pi-2 expired, or expire within 14 days; renew them with `edgefl broker "
        "vouch`" in aggregator.err
    )
    assert [device.end() for device in devices] == [0, 0, 0], [device.err for device in devices]
    config = FederationConfig(
        rounds=1, seed=5, algorithm="fedavg", privacy=PrivacyConfig(secure_aggregation=True)
    )
    end = simulate(
        federation.plan,
        toys.weights(),
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
    )
    assert encode_server_state(masked.load_server_state(federation)) == encode_server_state(end.state)


def test_keys_without_a_valid_voucher_end_the_federation(secured_broker, federate, toys):
    """As if the aggregator had replaced the keys of a device."""
    federation, devices, _ = start_devices(secured_broker, federate, toys)
    path = secured_broker.directory / "devices.json"
    directory_entries = json.loads(path.read_text())
    directory_entries["pi-1"]["voucher"] = directory_entries["pi-2"]["voucher"]
    path.write_text(json.dumps(directory_entries))
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    assert aggregator.end() == 1
    assert (
        "0 of 3 clients answered the step share, expected 3, without an answer from pi-0, pi-1, pi-2; the "
        "round is played again" in aggregator.err
    )
    assert "round 1 has no sum after 4 attempts" in aggregator.err
    for device in devices:
        device.wait_for("the authority does not vouch for the key of pi-1")

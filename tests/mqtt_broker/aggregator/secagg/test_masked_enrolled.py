"""Masked rounds of an enrolled fleet: keys are signed, and nobody takes keys of a device that the authority
does not vouch for.
"""

import json

import pytest

from edgefl.config import FederationConfig, PrivacyConfig
from edgefl.security.authority import renew_vouchers
from edgefl.simulation.simulate import simulate
from edgefl.storage.checkpoint import encode_server_state
from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.support.numpy_learner.softmax import SoftmaxLearner

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
IDS = ("pi-0", "pi-1", "pi-2")


def begin(secured, federate, toys):
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


def test_enrolled_devices_come_to_the_simulators_bits(secured_broker, federate, toys, masked):
    federation, devices, shards = begin(secured_broker, federate, toys)
    renew_vouchers(secured_broker.directory, 13)
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    assert aggregator.end() == 0, aggregator.said
    assert (
        "vouchers for pi-0, pi-1, pi-2 expired, or expire within 14 days; renew them with `edgefl broker "
        "vouch`" in aggregator.said
    )
    assert [device.end() for device in devices] == [0, 0, 0], [device.said for device in devices]
    config = FederationConfig(
        rounds=1, seed=5, algorithm="fedavg", privacy=PrivacyConfig(secure_aggregation=True)
    )
    end = simulate(
        federation.plan, toys.weights(), shards, config, learner=SoftmaxLearner(federation.plan.spec)
    )
    assert encode_server_state(masked.state_of(federation)) == encode_server_state(end.state)


def test_keys_that_the_authority_does_not_vouch_for_end_the_federation(secured_broker, federate, toys):
    """As if the aggregator had put keys of its own in the place of a device's."""
    federation, devices, _ = begin(secured_broker, federate, toys)
    path = secured_broker.directory / "devices.json"
    known = json.loads(path.read_text())
    known["pi-1"]["voucher"] = known["pi-2"]["voucher"]
    path.write_text(json.dumps(known))
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    assert aggregator.end() == 1
    assert (
        "0 of 3 clients answered the step share, expected 3, without an answer from pi-0, pi-1, pi-2; the "
        "round is played again" in aggregator.said
    )
    assert "round 1 has no sum after 4 attempts" in aggregator.said
    for device in devices:
        device.wait_for("the authority does not vouch for the key of pi-1")

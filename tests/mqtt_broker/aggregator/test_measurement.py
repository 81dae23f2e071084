"""The aggregator measures mean and std over the devices before round 1, also if it is killed meanwhile."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from edgefl.learning.algorithms.measurement import MEAN, STD, combine_moments, measure_moments
from edgefl.program.plan.normalization import make_placeholders
from edgefl.program.plan.spec import save_plan


@pytest.fixture
def federate_unmeasured(federate):
    """Return a function that makes a toy federation whose plan has no mean and std yet."""

    def make(url, **settings):
        federation = federate(url, **settings)
        placeholders = dict(zip(("mean", "std"), map(list, make_placeholders(4)), strict=True))
        spec = replace(federation.plan.spec, model_options=placeholders)
        federation.plan = replace(federation.plan, spec=spec)
        save_plan(federation.plan, federation.directory / "plan")
        return federation

    return make


def combine_shards(shards):
    """Return mean and std of the shards as result.json has them."""
    combined = combine_moments([measure_moments(shard.x_train) for shard in shards])
    return {"mean": combined[MEAN].tolist(), "std": combined[STD].tolist()}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_aggregator_measures_once(seed, federate_unmeasured, mosquitto_url, toys):
    federation = federate_unmeasured(mosquitto_url, rounds=2)
    shards = [toys.shard(0, 20), toys.shard(1, 30)]
    devices = [federation.device(f"pi-{i}", shard) for i, shard in enumerate(shards)]
    federation.run_aggregator_with_kills(np.random.default_rng(seed), 2, 7)
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    result = federation.result()
    assert result["normalization"] == combine_shards(shards)
    assert (len(result["losses"]), result["dropped"]) == (2, [])


def test_restart_uses_what_was_measured_and_fresh_measures_again(
    federate_unmeasured, mosquitto_url, toys, listen
):
    federation = federate_unmeasured(mosquitto_url, rounds=2)
    shards = [toys.shard(0, 20), toys.shard(1, 30)]
    first = federation.aggregator()
    devices = [federation.device(f"pi-{i}", shard) for i, shard in enumerate(shards)]
    first.wait_for("measured over the devices")
    first.popen.kill()
    first.popen.wait()
    second = federation.aggregator()
    assert second.end() == 0, second.err
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    assert "measure:" not in second.err
    assert federation.result()["normalization"] == combine_shards(shards)
    for i in range(2):
        shutil.rmtree(federation.directory / f"state-pi-{i}")
    others = [toys.shard(5, 25), toys.shard(6, 25)]
    third = federation.aggregator("--fresh")
    devices = [federation.device(f"pi-{i}", shard) for i, shard in enumerate(others)]
    assert third.end() == 0, third.err
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    assert federation.result()["normalization"] == combine_shards(others)


def test_devices_with_masks_only_send_no_mean(federate_unmeasured, mosquitto_url, toys, listen):
    """The measurement has no masks, so a device that sends only masked updates refuses it."""
    federation = federate_unmeasured(mosquitto_url, rounds=1)
    listener = listen(federation)
    aggregator = federation.aggregator()
    device = federation.device("pi-0", toys.shard(0, 20), "--masked-only")
    federation.device("pi-1", toys.shard(1, 20), "--masked-only")
    device.wait_for("masked")
    listener.wait_for(lambda message: message.topic.endswith("pi-0/status") and b"masked" in message.payload)
    assert not any("/up/" in message.topic for message in listener.messages)
    assert json.loads(listener.messages[-1].payload)["online"]
    assert aggregator.popen.poll() is None


def test_all_devices_that_are_online_are_measured(federate_unmeasured, mosquitto_url, toys, listen):
    """`min_clients` is 2, and three devices wait for the aggregator."""
    federation = federate_unmeasured(mosquitto_url, rounds=1)
    listener = listen(federation, f"{federation.topics.root}/device/+/status")
    shards = [toys.shard(i, 20) for i in range(3)]
    devices = [federation.device(f"pi-{i}", shard) for i, shard in enumerate(shards)]
    listener.wait_for(lambda message: len({each.topic for each in listener.messages}) == 3)
    aggregator = federation.aggregator()
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0] * 3, [device.err for device in devices]
    assert federation.result()["normalization"] == combine_shards(shards)
    assert len(federation.result()["clients"]) == 3


def test_second_aggregator_ends_no_measurement(federate_unmeasured, mosquitto_url, toys):
    federation = federate_unmeasured(mosquitto_url, rounds=2)
    shards = [toys.shard(0, 20), toys.shard(1, 30)]
    first = federation.aggregator()
    devices = [federation.device("pi-0", shards[0])]
    first.wait_for("pi-0 is online")
    other = federation.aggregator("--out", federation.directory / "other")
    assert other.end() == 1
    assert "has an aggregator on this broker (phase joining" in other.err
    devices.append(federation.device("pi-1", shards[1]))
    assert first.end() == 0, first.err
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    assert federation.result()["normalization"] == combine_shards(shards)


def test_lost_measurement_of_a_running_federation_is_an_error(federate_unmeasured, mosquitto_url, toys):
    federation = federate_unmeasured(mosquitto_url, rounds=40)
    first = federation.aggregator()
    devices = [federation.device(f"pi-{i}", toys.shard(i, 20)) for i in range(2)]
    first.wait_for("round 2/40")
    first.popen.kill()
    first.popen.wait()
    shutil.rmtree(federation.out / "measurement")
    second = federation.aggregator()
    assert second.end() == 1
    assert "measurement is missing" in second.err and "--fresh" in second.err
    assert all(device.popen.poll() is None for device in devices)

"""Secure aggregation over MQTT: the bits match the simulator whichever client drops out at any time, and
no topic reveals an update.
"""

import json

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, PrivacyConfig
from edgefl.base.rng import derive_rng
from edgefl.learning.checkpoint import encode_server_state
from edgefl.protocol.wire.tensors import encode_models
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner

SECURE = PrivacyConfig(secure_aggregation=True)
SETTINGS = {"min_clients": 3, "seed": 5, "tables": "[privacy]\nsecure_aggregation = true\n"}


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("pfl-mfe", {}),
        pytest.param("ifca", {"num_experts": 2}, marks=pytest.mark.slow),
        ("aem", {"num_experts": 2}),
    ],
)
def test_masked_federation_matches_the_simulator_and_reveals_no_update(
    algorithm, options, federate, mosquitto_url, toys, listen, masked
):
    federation = federate(
        mosquitto_url, rounds=2, quorum=1.0, algorithm=algorithm, options=options, **SETTINGS
    )
    listener = listen(federation, "#")
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    aggregator = federation.aggregator()
    devices = {client_id: federation.device(client_id, shard) for client_id, shard in shards.items()}
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices.values()] == [0, 0, 0], [
        device.err for device in devices.values()
    ]
    messages = listener.wait_for_phase("done", federation.topics.state)

    config = FederationConfig(rounds=2, seed=5, privacy=SECURE)
    initial = toys.weights(more=federation.plan.spec.weights)
    learner = SoftmaxLearner(federation.plan.spec)
    end = simulate(federation.plan, initial, shards, config, open_learner=lambda plan: learner)
    plain = simulate(
        federation.plan,
        initial,
        shards,
        FederationConfig(rounds=2, seed=5),
        open_learner=lambda plan: learner,
    )
    assert encode_server_state(masked.load_server_state(federation)) == encode_server_state(end.state)
    assert encode_server_state(end.state) != encode_server_state(plain.state)

    assert len({(each.seal, each.mask) for each in masked.list_advertised_keys(messages)}) == 3 * 2
    payloads = b"\0".join(message.payload for message in messages)
    for client_id in shards:
        update, blob = masked.load_update(federation, client_id, 2)
        # The search would find them on a topic
        assert len([each for each in masked.list_revealing_bytes(update) if each in blob]) > 2
        assert not [each for each in masked.list_revealing_bytes(update) if each in payloads]
        assert blob not in payloads
    begins = [json.loads(message.payload) for message in messages if message.topic.endswith("/begin")]
    metrics = [
        json.loads(message.payload)["values"] for message in messages if message.topic.endswith("/metrics")
    ]
    assert not [each for each in begins if "expert" in each["metrics"]] + [
        each for each in metrics if "expert" in each
    ]
    result = federation.result()
    assert (len(result["losses"]), result["dropped"]) == (2, [])
    assert all(loss is not None for loss in result["losses"])
    assert not (federation.out / "masked.sum").exists()


@pytest.mark.parametrize(
    "vanishes_before", [*(pytest.param(step, marks=pytest.mark.slow) for step in ("mask", "agree")), "unmask"]
)
def test_client_that_vanishes_after_sharing_keys_is_recovered(
    vanishes_before, federate, mosquitto_url, toys, masked_puppet, masked
):
    """If the client vanishes before its vector arrives, the sum contains the vectors of the other clients.
    Otherwise the sum contains its vector too.
    """
    federation = federate(mosquitto_url, rounds=1, **{**SETTINGS, "min_clients": 4})
    aggregator = federation.aggregator()
    other = masked_puppet(federation, "pi-9")
    ids = [f"pi-{i}" for i in range(3)]
    devices = [federation.device(client_id, toys.shard(i, 20 + 10 * i)) for i, client_id in enumerate(ids)]
    other.advertise()
    other.answer("share")
    if vanishes_before != "mask":
        other.answer("mask")  # the other three clients are enough to agree
    other.next(vanishes_before)
    other.puppet.drop_connection()
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0, 0], [device.err for device in devices]
    updates = [masked.load_update(federation, client_id)[0] for client_id in ids]
    is_included = vanishes_before != "mask"
    expected = masked.aggregate_updates(
        federation, toys.weights(), updates + [masked.make_zero_update("pi-9", toys.weights())] * is_included
    )
    masked.check_models(federation, expected)
    assert ("pi-9 dropped out; shares of the other clients removed the masks" in aggregator.err) == (
        not is_included
    )
    assert [row["id"] for row in federation.result()["dropped"] if row["round"] == 1] == (
        [] if is_included else ["pi-9"]
    )


def finish_and_check(federation, aggregator, device, others, toys, masked):
    """Let the others personalize, check that all end without an error, and that the model has the update
    of the device and the zero updates of the others.
    """
    for other in others:
        assert other.puppet.send(other.next("personalize"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0, device.err
    expected = masked.aggregate_updates(
        federation,
        toys.weights(),
        [
            masked.load_update(federation, "pi-1")[0],
            masked.make_zero_update("pi-2", toys.weights()),
            masked.make_zero_update("pi-3", toys.weights()),
        ],
    )
    masked.check_models(federation, expected)


def test_round_below_the_threshold_is_repeated_with_new_masks(
    federate, mosquitto_url, toys, masked_puppet, listen, masked
):
    federation = federate(mosquitto_url, rounds=1, **SETTINGS)
    listener = listen(federation)
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    others = [masked_puppet(federation, client_id) for client_id in ("pi-2", "pi-3")]
    first = {other.advertise().nonce for other in others}
    for other in others:
        other.answer("share")
    for other in others:
        other.refuse("mask")
    aggregator.wait_for(
        "1 of 3 clients answered the step mask, expected 2, without an answer from pi-2, pi-3; the round is "
        "played again with other masks"
    )
    assert {other.advertise().nonce for other in others}.isdisjoint(first)
    for step in ("share", "mask"):
        for other in others:
            other.answer(step)
    for step in ("agree", "unmask"):
        others[0].answer(step)  # with the answer of the device, two of three clients
    finish_and_check(federation, aggregator, device, others, toys, masked)
    keys = [
        (each.seal, each.mask)
        for each in masked.list_advertised_keys(listener.wait_for_phase("done"))
        if each.client_id == "pi-1"
    ]
    assert len(set(keys)) == 2


def test_sum_with_a_remaining_mask_is_not_used(federate, mosquitto_url, toys, masked_puppet, masked):
    federation = federate(mosquitto_url, rounds=1, **SETTINGS)
    aggregator = federation.aggregator()
    clients = [masked_puppet(federation, client_id) for client_id in ("pi-1", "pi-2", "pi-3")]
    make_honest_vector = clients[0].make_vector
    for make_vector in (lambda: make_honest_vector() + np.uint64(10**15), make_honest_vector):
        clients[0].make_vector = make_vector
        for each in clients:
            each.advertise()
        for step, asked in (
            ("share", clients),
            ("mask", clients),
            ("agree", clients[:2]),
            ("unmask", clients[:2]),
        ):
            for each in asked:
                each.answer(step)
    aggregator.wait_for("mask was not removed; the round is played again with other masks")
    for each in clients:
        assert each.puppet.send(each.next("personalize"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err
    zeros = [masked.make_zero_update(client_id, toys.weights()) for client_id in ("pi-1", "pi-2", "pi-3")]
    masked.check_models(federation, masked.aggregate_updates(federation, toys.weights(), zeros))


def test_killed_aggregator_repeats_or_resumes_a_masked_round(
    federate, mosquitto_url, toys, masked_puppet, masked
):
    federation = federate(mosquitto_url, rounds=1, **SETTINGS)
    others = []

    def restart_aggregator(aggregator=None):
        if aggregator:
            aggregator.popen.kill()
            aggregator.popen.wait()
        return federation.aggregator()

    aggregator = restart_aggregator()
    device = federation.device("pi-1", toys.shard(1))
    others = [masked_puppet(federation, client_id) for client_id in ("pi-2", "pi-3")]
    first = {other.advertise().nonce for other in others}
    for step in ("share", "mask"):
        others[0].answer(step) if step == "mask" else [other.answer(step) for other in others]
    aggregator = restart_aggregator(aggregator)
    second = {other.advertise().nonce for other in others}
    assert second.isdisjoint(first)
    for step in ("share", "mask"):
        for other in others:
            other.answer(step)
    for step in ("agree", "unmask"):
        asked = others[0].next(step)
        aggregator = restart_aggregator(aggregator)
        same = others[0].answer(step)
        assert (same.nonce, same.models) == (asked.nonce, asked.models)
    finish_and_check(federation, aggregator, device, others, toys, masked)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_killed_aggregator_gives_the_same_bits_in_masked_rounds(
    seed, federate, mosquitto_url, toys, listen, masked
):
    federation = federate(mosquitto_url, rounds=3, quorum=1.0, **SETTINGS)
    listener = listen(federation)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    devices = {client_id: federation.device(client_id, shard) for client_id, shard in shards.items()}
    federation.run_aggregator_with_kills(derive_rng(seed, 0, "kills"), 4, 24)
    assert [device.end() for device in devices.values()] == [0, 0, 0], [
        device.err for device in devices.values()
    ]
    config = FederationConfig(rounds=3, seed=5, privacy=SECURE)
    end = simulate(
        federation.plan,
        toys.weights(),
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
    )
    assert encode_server_state(masked.load_server_state(federation)) == encode_server_state(end.state)
    assert (len(federation.result()["losses"]), federation.result()["dropped"]) == (3, [])
    by_keys = {}
    for each in masked.list_advertised_keys(listener.wait_for_phase("done")):
        by_keys.setdefault((each.seal, each.mask), set()).add(each.context)
    assert all(len(contexts) == 1 for contexts in by_keys.values())


def test_device_killed_in_a_masked_round_reports_lost_keys(
    federate, mosquitto_url, toys, masked_puppet, masked
):
    federation = federate(mosquitto_url, rounds=1, **{**SETTINGS, "min_clients": 4})
    aggregator = federation.aggregator()
    other = masked_puppet(federation, "pi-9")
    ids = [f"pi-{i}" for i in range(3)]
    devices = {
        client_id: federation.device(client_id, toys.shard(i, 20 + 10 * i)) for i, client_id in enumerate(ids)
    }
    other.advertise()
    asked = other.next("share")  # the client does not answer, so the others wait
    [aggregator.wait_for(f"{client_id} reported") for client_id in ids]
    devices["pi-0"].popen.kill()
    devices["pi-0"].popen.wait()
    aggregator.wait_for("pi-0 is offline")
    devices["pi-0"] = federation.device("pi-0")
    devices["pi-0"].wait_for("the federation is in phase federate")
    other.answer_task(asked)
    devices["pi-0"].wait_for("this device has no keys of the attempt")
    for step in ("mask", "agree", "unmask"):
        other.answer(step)
    assert other.puppet.send(other.next("personalize"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices.values()] == [0, 0, 0], [
        device.err for device in devices.values()
    ]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"min_clients": 2}, "min_clients is 2, expected 3 or more for secure_aggregation"),
        ({"algorithm": "clustered"}, "secure_aggregation does not work with clustered"),
        ({"codec": "int8"}, "codec is 'int8', expected 'fp32' for secure_aggregation"),
        (
            {
                "tables": "[privacy]\nsecure_aggregation = true\nclip = 1.0\nnoise_multiplier = "
                "1.0\npopulation = 5\n"
            },
            "expected one of them",
        ),
    ],
)
def test_invalid_secure_aggregation_settings_are_refused_at_start(
    settings, error, federate, mosquitto_url, masked
):
    aggregator = federate(mosquitto_url, **{**SETTINGS, **settings}).aggregator()
    assert aggregator.end() == 1
    assert error in aggregator.err

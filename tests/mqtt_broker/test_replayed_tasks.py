"""Replayed tasks, and a federation that turns masks off: over a broker with keys, with real aggregators
and devices.

The attacker of these tests has the aggregator's right to publish, like the host of the broker. In some
tests it also has the aggregator's key.
"""

import hashlib
import time
from dataclasses import replace
from functools import partial

import pytest

from devices.store import read_last_round
from edgefl.protocol.security.enrolment import load_enrolment, save_enrolment
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.transport.link import Message
from edgefl.protocol.wire.messages import Begin, Task
from edgefl.protocol.wire.strict_json import decode_json
from tests.mqtt_broker.masked_actor import load_update

MASKED = "[privacy]\nsecure_aggregation = true\n"
CLIENTS = ("pi-1", "pi-2", "pi-3")


class Relay:
    """Receives all messages of devices, and publishes tasks to the victim."""

    def __init__(self, broker, name):
        self.enrolment = load_enrolment(broker.directory / "aggregator.enrol")
        self.name = name
        self.link = broker.link(self.enrolment, f"relay-{name}")
        self.messages = []

    def listen(self, federation):
        self.topics = federation.topics
        self.link.subscribe(
            self.topics.format_device("pi-1", "task"), f"{self.topics.root}/device/pi-1/up/+/+"
        )

    def next(self, predicate, ended=lambda: False, deadline_s=40):
        """Return the first message that satisfies the predicate, or None if `ended` is true and no
        message follows.
        """
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            is_over = ended()
            event = self.link.get(0.3)
            if isinstance(event, Message):
                self.messages.append(event)
                if predicate(event):
                    return event
            elif is_over:
                return None
        return None

    def task(self, predicate=lambda task: True):
        """Return the payload of the next task of the victim that satisfies the predicate."""
        found = self.next(
            lambda each: each.topic.endswith("/task") and predicate(decode_json(Task, each.payload))
        )
        assert found, "no such task came"
        return found.payload

    def publish_task(self, payload):
        self.link.publish(self.topics.format_device("pi-1", "task"), payload)

    def sign(self, task):
        """Return the encoded task with the signature of the aggregator's key."""
        trust = Trust(federation=self.topics.federation, key=self.enrolment.signing_key)
        return trust.encode(replace(task, signature="", ts=time.time()), "pi-1")


def make_begin_predicate(predicate):
    return lambda each: each.topic.endswith("/begin") and predicate(decode_json(Begin, each.payload))


@pytest.fixture
def scene(secured_broker, federate, toys, tmp_path):
    """Return a class that makes federations of one name, the enrolled devices, and the relay."""
    relays = []

    class Scene:
        def __init__(self):
            self.name = ""
            self.broker = secured_broker
            for number, client_id in enumerate(CLIENTS):
                secured_broker.enrol(client_id, tmp_path / f"{client_id}.enrol")
                toys.save(tmp_path / f"{client_id}.npz", toys.shard(number))
            self.relay = Relay(secured_broker, "r")
            relays.append(self.relay)

        def federation(self, **settings):
            made = federate(secured_broker.url, algorithm="fedavg", **settings)
            if self.name:
                made.name, made.topics = self.name, replace(made.topics, federation=self.name)
                made.out = made.out.with_name(f"out-{len(list(tmp_path.iterdir()))}")
            self.name = made.name
            self.relay.listen(made)
            return made

        def aggregator(self, federation):
            return federation.aggregator(
                "--security", secured_broker.directory, "--broker", secured_broker.url
            )

        def devices(self, federation, *ids, more=()):
            return [
                federation.device(each, None, "--enrol", tmp_path / f"{each}.enrol", *more) for each in ids
            ]

        def progress(self):
            return read_last_round(tmp_path / "state-pi-1")

    yield Scene
    for relay in relays:
        relay.link.close()


def test_replayed_task_of_an_unmasked_federation_is_refused(scene):
    """This holds for a task that grants the upload in advance, and after a restart of the device."""
    stage = scene()
    relay = stage.relay
    open_federation = stage.federation(rounds=1, min_clients=1)
    aggregator = stage.aggregator(open_federation)
    [device] = stage.devices(open_federation, "pi-1")
    recorded = relay.task(lambda task: task.phase != "personalize")
    old = decode_json(Task, recorded)
    assert old.granted
    assert (aggregator.end(), device.end()) == (0, 0), device.err

    masked = stage.federation(rounds=1, min_clients=3, tables=MASKED)
    aggregator = stage.aggregator(masked)
    # Until then the retained state is done, and a device would end
    aggregator.wait_for("waiting for devices")
    victim, *others = stage.devices(masked, *CLIENTS)
    relay.task(lambda task: task.codec == "fp32+masked")
    aggregator.popen.kill()  # so that the masked round stays open during the replay
    session = decode_json(Task, relay.messages[-1].payload).session
    assert relay.next(make_begin_predicate(lambda begin: begin.session == session)), (
        "the victim takes part in the masked round"
    )
    progress = stage.progress()
    relay.messages.clear()
    relay.publish_task(recorded)
    leaked = relay.next(
        make_begin_predicate(lambda begin: begin.session == old.session),
        lambda: "refused a Task of round 1" in victim.err,
    )
    assert leaked is None, "an update left in clear for a task that was replayed without any key"
    assert stage.progress() == progress, "the device's progress in the running session is gone"

    for process in (victim, *others):
        process.popen.kill()
        process.popen.wait()
    [victim] = stage.devices(masked, "pi-1")
    victim.wait_for("joined")
    relay.publish_task(recorded)
    leaked = relay.next(
        make_begin_predicate(lambda begin: begin.session == old.session),
        lambda: "refused a Task of round 1" in victim.err,
    )
    assert leaked is None, "an update left in clear for a task that was replayed after the device's restart"
    assert stage.progress() == progress
    relay.publish_task(recorded)
    relay.publish_task(recorded)
    assert not [
        each for each in relay.messages if "/up/" in each.topic and decode_session(each) == old.session
    ]
    assert victim.err.count("refused a Task of round 1") == 1, "a refused task is logged once"
    assert "replays a recording" in victim.err


def has_logged(process, text):
    return text in process.err


def decode_session(message):
    return decode_json(Begin, message.payload).session if message.topic.endswith("/begin") else ""


def test_masked_session_gets_no_plain_update_even_with_valid_signature(scene):
    stage = scene()
    relay = stage.relay
    masked = stage.federation(rounds=1, min_clients=3, tables=MASKED)
    aggregator = stage.aggregator(masked)
    victim, *others = stage.devices(masked, *CLIENTS)
    task = decode_json(Task, relay.task(lambda task: task.codec == "fp32+masked"))
    aggregator.popen.kill()
    assert relay.next(make_begin_predicate(lambda begin: begin.nonce == task.nonce)), "keys were advertised"
    _, update = load_update(masked, "pi-1")
    kept = hashlib.sha256(update).hexdigest()

    for attempt in ("before", "after"):
        clear = replace(task, codec="fp32", nonce=f"c{attempt}", granted=True)
        relay.publish_task(relay.sign(clear))
        leaked = relay.next(
            make_begin_predicate(lambda begin: begin.sha256 == kept),
            partial(has_logged, victim, "this session was masked before"),
        )
        assert leaked is None, f"the trained update left in clear, {attempt} a restart"
        # the answer to a task to personalize has no tensor, so it cannot reveal the update of the round
        models = {**task.models, "initial": task.models["global"]}
        relay.publish_task(
            relay.sign(replace(clear, phase="personalize", nonce=f"p{attempt}", models=models))
        )
        answer = relay.next(make_begin_predicate(lambda begin, nonce=f"p{attempt}": begin.nonce == nonce))
        assert decode_json(Begin, answer.payload).size <= 64, (
            f"a task to personalize got the update of its round, {attempt} a restart"
        )
        for process in (victim, *others):
            process.close()
        others, [victim] = (), stage.devices(masked, "pi-1")
        victim.wait_for("joined")
    assert not [each for each in relay.messages if each.topic.endswith(f"/up/{kept}/0")]


def test_masked_only_device_waits_for_a_masked_federation(scene):
    stage = scene()
    relay = stage.relay
    open_federation = stage.federation(rounds=1, min_clients=2, grace_s=0.1)
    aggregator = stage.aggregator(open_federation)
    fixed = open_federation.directory / "pi-1.enrol"  # as `edgefl device enrol --masked-only` writes it
    save_enrolment(replace(load_enrolment(fixed), masked_only=True), fixed)
    first, second = stage.devices(open_federation, "pi-1", "pi-2")
    aggregator.wait_for("pi-1 is paused (refuses this federation: it is not masked")
    first.wait_for("this device has --masked-only; set secure_aggregation in [privacy]")
    assert aggregator.end() == 0, aggregator.err
    assert second.end() == 0, second.err
    assert relay.next(lambda each: "/up/" in each.topic, lambda: True) is None, "nothing was sent"
    assert first.popen.poll() is None, "it does not end"

    masked = stage.federation(rounds=1, min_clients=3, tables=MASKED)
    aggregator = stage.aggregator(masked)
    aggregator.wait_for("pi-1 is online")
    others = stage.devices(masked, "pi-2", "pi-3")
    assert aggregator.end() == 0, aggregator.err
    assert [each.end() for each in (first, *others)] == [0, 0, 0], first.err
    assert [row["id"] for row in masked.result()["clients"]] == list(CLIENTS)

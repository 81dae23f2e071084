"""A device in masked rounds against an aggregator that the test plays, with two other clients of its own."""

import hashlib
import time

import pytest

from devices.training import make_work_item
from edgefl.security.secagg.participant import Participant
from edgefl.security.trust import Trust
from edgefl.transport.link import Message
from edgefl.types import ClientState
from edgefl.wire.masked import (
    MASKED_CODEC,
    SEALED_BYTES,
    Advertised,
    Agreed,
    Introduced,
    encode_agreed,
    encode_inbox,
    encode_keys,
    encode_lists,
    hash_binding,
    hash_context,
    split_blob,
)
from edgefl.wire.messages import Begin, Task
from edgefl.wire.strict_json import decode_json

IDS = ("pi-1", "pi-2", "pi-3")


class Round:
    """One attempt, with `pi-1` a process and the others objects."""

    def __init__(self, federation, lead, attempt):
        self.lead = lead
        self.attempt = attempt
        lead.task(1, codec=MASKED_CODEC, nonce=f"{attempt}-advertise")
        self.own = decode_json(Advertised, lead.take(lead.next("begin")))
        task = Task(
            lead.session,
            1,
            "federate",
            lead.plan,
            {"global": lead.model},
            {},
            1,
            30.0,
            MASKED_CODEC,
            0,
            0.0,
            f"{attempt}-advertise",
            0.0,
        )
        self.context = hash_context(federation.name, task)
        self.others = {
            client_id: Participant(client_id, self.context, Trust(federation.name)) for client_id in IDS[1:]
        }

    def step(self, phase, content):
        """Ask for a step; returns what the device announces."""
        name = {"share": "keys", "mask": "inbox", "agree": "lists", "unmask": "agreed"}[phase]
        self.lead.task(
            1, phase, f"{self.attempt}-{phase}", codec=MASKED_CODEC, models={name: self.lead.offer(content)}
        )
        return self.lead.next("begin")

    def share(self):
        told = [self.own, *(decode_json(Advertised, each.advertise()) for each in self.others.values())]
        keys = encode_keys([Introduced(each) for each in told])
        sealed = {client_id: each.answer("share", keys, list) for client_id, each in self.others.items()}
        self.keys = keys
        sealed["pi-1"] = self.lead.take(self.step("share", keys))
        self.sealed = {client_id: split_blob(blob, 3, SEALED_BYTES) for client_id, blob in sealed.items()}

    def agreed(self, lists):
        """Return the blob of `unmask`: the two others, threshold enough, agreed to these lists."""
        binding = hash_binding(self.context, self.keys)
        digest = hashlib.sha256(lists).hexdigest()
        return encode_agreed(lists, [Agreed(client_id, binding, digest) for client_id in IDS[:2]])

    def inbox(self, *shared):
        return encode_inbox({client_id: self.sealed[client_id][0] for client_id in shared})


def test_a_device_masks_once_and_reveals_once_whatever_it_is_asked_again(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    first = Round(federation, aggregator, "a")
    first.share()
    begin = first.step("mask", first.inbox(*IDS))
    masked = aggregator.take(begin)
    assert len(masked) == 8 * (sum(array.size for array in toys.weights().values()) + 1)
    assert (begin.nonce, set(begin.metrics)) == ("a-mask", {"loss", "seconds", "peak_rss_mb"})
    again = first.step("mask", first.inbox(*IDS))
    assert aggregator.take(again) == masked
    other = first.step("mask", first.inbox("pi-1", "pi-2"))
    assert other.size == 0
    aggregator.receipt(other, "rejected", reason="cannot")
    device.wait_for("asked to mask for other clients than before, with the same keys; nothing is sent")

    lists = encode_lists(IDS, IDS)
    others = encode_lists(IDS, IDS[:2])
    agreed = aggregator.take(first.step("agree", lists))
    assert aggregator.take(first.step("agree", lists)) == agreed
    revealed = aggregator.take(first.step("unmask", first.agreed(lists)))
    assert len(revealed) == 66 * 3
    assert aggregator.take(first.step("unmask", first.agreed(lists))) == revealed
    for step, asked in (("agree", others), ("unmask", first.agreed(others))):
        other = first.step(step, asked)
        assert other.size == 0
        aggregator.receipt(other, "rejected", reason="cannot")
        device.wait_for(f"asked to {step} for other clients than before")

    kept = sorted(path.name for path in (federation.directory / "state-pi-1").iterdir())
    second = Round(federation, aggregator, "b")
    assert {second.own.seal, second.own.mask}.isdisjoint({first.own.seal, first.own.mask})
    second.share()
    assert aggregator.take(second.step("mask", second.inbox(*IDS))) != masked
    # it has not trained again
    assert sorted(path.name for path in (federation.directory / "state-pi-1").iterdir()) == kept


def test_a_device_has_no_keys_for_more_than_8_attempts_at_a_round(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    for attempt in range(8):
        Round(federation, aggregator, f"{attempt}")
    aggregator.task(1, codec=MASKED_CODEC, nonce="8-advertise")
    begin = aggregator.next("begin")
    assert begin.size == 0, "keys for a ninth attempt at one round"
    aggregator.receipt(begin, "rejected", reason="cannot")
    device.wait_for("requests keys for more than 8 attempts")
    aggregator.task(2, codec=MASKED_CODEC, nonce="9-advertise")
    assert aggregator.next("begin").size > 0


def test_a_device_that_is_started_again_has_no_keys_and_says_so(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    attempt = Round(federation, aggregator, "a")
    attempt.share()
    device.popen.kill()
    assert not aggregator.next("status").online
    again = federation.device("pi-1")
    while not aggregator.next("status").online:
        pass
    begin = attempt.step("mask", attempt.inbox(*IDS))
    assert (begin.size, begin.nonce, dict(begin.metrics)) == (0, "a-mask", {})
    aggregator.receipt(begin, "rejected", reason="cannot")
    again.wait_for("this device has no keys of the attempt")


def begin_or(aggregator, device, text):
    """Return the next Begin; None when the device has said this text before one came."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        is_over = text in device.said
        event = aggregator.link.get(0.3)
        if isinstance(event, Message) and event.topic.endswith("/begin"):
            return decode_json(Begin, event.payload)
        if is_over:
            return None
    raise AssertionError(device.said)


@pytest.mark.parametrize("between", ["a state", "a state and a restart", "a round of another session"])
def test_a_session_that_was_masked_is_not_answered_in_clear_after_another_session(
    federate, mosquitto_url, toys, lead, between
):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    Round(federation, aggregator, "a")
    masked = aggregator.session
    aggregator.session = "another"
    started = aggregator.started
    aggregator.started = started + 1
    aggregator.say("federate", 1)
    if between.endswith("restart"):
        device.popen.kill()
        assert not aggregator.next("status").online
        device = federation.device("pi-1")
        while not aggregator.next("status").online:
            pass
    elif between.startswith("a round"):
        aggregator.task(1)
        aggregator.take(aggregator.next("begin"))
    aggregator.session = masked
    aggregator.started = started + 2
    aggregator.task(1, nonce="clear")
    leaked = begin_or(aggregator, device, "this device masked an update of this session before")
    assert leaked is None, f"a plain update of the masked session: {leaked}"
    models = {"global": aggregator.model, "initial": aggregator.model}
    aggregator.task(1, phase="personalize", nonce="p", models=models)
    assert aggregator.next("begin").size <= 64, "its answer holds no tensor"


def test_a_device_that_requires_masks_reports_no_use_of_its_gate(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url, algorithm="pfl-mfe")
    aggregator = lead(federation)
    federation.device("pi-1", toys.shard(1), "--least-clients", 3)
    aggregator.next("status")
    aggregator.task(1, phase="personalize")
    begin = aggregator.next("begin")
    assert "accuracy_mixture" in begin.metrics
    assert not [name for name in begin.metrics if name.startswith("gate_")], "who leans on which expert"


def test_a_device_that_requires_masks_sends_no_loss(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    federation.device("pi-1", toys.shard(1), "--masked-only")
    aggregator.next("status")
    attempt = Round(federation, aggregator, "a")
    attempt.share()
    assert set(attempt.step("mask", attempt.inbox(*IDS)).metrics) == {"seconds", "peak_rss_mb"}


@pytest.mark.parametrize("codec", [MASKED_CODEC, "fp32"])
def test_a_device_that_masks_measures_no_accuracy_though_the_task_asks(
    codec, federate, mosquitto_url, toys, lead, progress
):
    """The same task without masks shows that the device could."""
    federation = federate(mosquitto_url, evaluate=True)
    aggregator = lead(federation)
    federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.task(1, codec=codec, settings={"evaluate": 1.0})
    begin = aggregator.next("begin")
    assert ("accuracy" in begin.metrics) == (codec == "fp32")
    assert ("accuracy" in progress(federation)["metrics"]) == (codec == "fp32")


@pytest.mark.parametrize("codec", [MASKED_CODEC, "fp32"])
def test_a_device_that_masks_compares_no_models_though_the_task_asks(codec):
    asked = {"compare": 1.0, "local_epochs": 3.0}
    task = Task("s", 1, "federate", "p", {}, asked, 1, 30.0, codec, 0, 0.0, "n", 0.0)
    scalars = make_work_item(task, {}, ClientState(), "pi-1").broadcast.scalars
    assert scalars == (asked if codec == "fp32" else {"local_epochs": 3.0})


def test_malformed_masked_tasks_are_refused_and_the_device_stays(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    attempt = Round(federation, aggregator, "a")
    aggregator.task(
        1,
        phase="personalize",
        codec=MASKED_CODEC,
        nonce="p",
        models={"global": aggregator.model, "initial": aggregator.model},
    )
    for number in (0, 2):
        models = {str(k): aggregator.model for k in range(number)}
        aggregator.task(1, "share", "a-share", codec=MASKED_CODEC, models=models)
    attempt.share()
    assert "Traceback" not in device.said, device.said
    assert "to personalize has the codec fp32+masked" in device.said
    assert "names 0 blobs" in device.said and "names 2 blobs" in device.said


def test_a_masked_round_of_a_plan_that_shares_no_model_is_refused_and_the_device_stays(
    federate, mosquitto_url, toys, lead
):
    federation = federate(mosquitto_url, algorithm="local")
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.task(1, codec=MASKED_CODEC, nonce="a-advertise")
    while not (status := aggregator.next("status")).paused or "yet to see" in status.paused:
        pass
    assert status.online, "it ended"
    assert "trains no shared model" in status.paused
    assert "Traceback" not in device.said


def test_a_state_from_the_far_future_is_forgotten_where_nothing_is_signed(
    federate, mosquitto_url, toys, lead
):
    """Anybody can make it up there: it must not close a device for good."""
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    now = aggregator.started
    aggregator.started = 2**62
    aggregator.say("federate", 1)
    aggregator.started = now
    aggregator.task(1)
    device.wait_for("refused a Task of round 1")
    assert "years ahead" in device.said
    aggregator.say("federate", 1)
    device.popen.kill()
    assert not aggregator.next("status").online
    federation.device("pi-1")
    while not aggregator.next("status").online:
        pass
    aggregator.task(1)
    assert aggregator.next("begin").size > 0


def test_a_device_without_cryptography_says_what_to_install(federate, mosquitto_url, toys, lead, without):
    without("cryptography")
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    while aggregator.next("status").paused:  # until it has seen the plan
        pass
    aggregator.task(1, codec=MASKED_CODEC, nonce="a-advertise")
    while not (status := aggregator.next("status")).paused:
        pass
    assert status.online
    assert "round 1 is masked, and the package cryptography that it needs cannot be loaded" in status.paused
    assert "the plan" not in status.paused, "it is not the plan's fault"
    assert "pip install" in status.paused
    device.wait_for("pip install")


def test_a_device_refuses_a_key_list_of_too_few_clients(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1), "--least-clients", 4)
    aggregator.next("status")
    attempt = Round(federation, aggregator, "a")
    keys = encode_keys(
        [
            Introduced(attempt.own),
            *(Introduced(decode_json(Advertised, p.advertise())) for p in attempt.others.values()),
        ]
    )
    begin = attempt.step("share", keys)
    assert begin.size == 0, "it shared its keys with three clients"
    aggregator.receipt(begin, "rejected", reason="cannot")
    device.wait_for("asked to share with 3 clients, expected 4 or more by --least-clients")

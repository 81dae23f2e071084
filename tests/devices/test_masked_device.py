"""A device in masked rounds against an aggregator and two other clients that the test plays."""

import hashlib
import time
from types import SimpleNamespace

import pytest

from devices.training import make_work_item, was_masked
from edgefl.base.types import ClientState
from edgefl.protocol.security.secagg.participant import Participant
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.transport.link import Message
from edgefl.protocol.wire.masked import (
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
from edgefl.protocol.wire.messages import Begin, Task
from edgefl.protocol.wire.strict_json import decode_json

IDS = ("pi-1", "pi-2", "pi-3")


def make_task(**changes):
    values = {
        "session": "s",
        "round": 1,
        "phase": "federate",
        "plan": "p",
        "models": {},
        "scalars": {},
        "seed": 1,
        "deadline_s": 30.0,
        "codec": "fp32",
        "max_staleness": 0,
        "budget_s": 0.0,
        "nonce": "n",
        "ts": 0.0,
    }
    return Task(**values | changes)


class PlayedAttempt:
    """One attempt at a masked round: `pi-1` is a process, the other clients are objects."""

    def __init__(self, federation, aggregator, attempt):
        self.aggregator = aggregator
        self.attempt = attempt
        aggregator.send_task(1, codec=MASKED_CODEC, nonce=f"{attempt}-advertise")
        self.device_keys = decode_json(Advertised, aggregator.accept_update(aggregator.next("begin")))
        task = make_task(
            session=aggregator.session,
            plan=aggregator.plan,
            models={"global": aggregator.model},
            codec=MASKED_CODEC,
            nonce=f"{attempt}-advertise",
        )
        self.context = hash_context(federation.name, task)
        self.others = {
            client_id: Participant(client_id, self.context, Trust(federation=federation.name))
            for client_id in IDS[1:]
        }

    def step(self, phase, content):
        """Send the task of a step and return what the device announces."""
        name = {"share": "keys", "mask": "inbox", "agree": "lists", "unmask": "agreed"}[phase]
        self.aggregator.send_task(
            1,
            phase,
            f"{self.attempt}-{phase}",
            codec=MASKED_CODEC,
            models={name: self.aggregator.offer_blob(content)},
        )
        return self.aggregator.next("begin")

    def share(self):
        advertised = [
            self.device_keys,
            *(decode_json(Advertised, each.advertise()) for each in self.others.values()),
        ]
        keys = encode_keys([Introduced(each) for each in advertised])
        sealed = {client_id: each.answer("share", keys, list) for client_id, each in self.others.items()}
        self.keys = keys
        sealed["pi-1"] = self.aggregator.accept_update(self.step("share", keys))
        self.sealed = {client_id: split_blob(blob, 3, SEALED_BYTES) for client_id, blob in sealed.items()}

    def make_agreed_blob(self, lists):
        """Return the blob of `unmask`. Two clients, which meet the threshold, agree to these lists."""
        binding = hash_binding(self.context, self.keys)
        digest = hashlib.sha256(lists).hexdigest()
        return encode_agreed(
            lists, [Agreed(client_id=client_id, binding=binding, lists=digest) for client_id in IDS[:2]]
        )

    def make_inbox(self, *shared):
        return encode_inbox({client_id: self.sealed[client_id][0] for client_id in shared})


def test_device_masks_and_reveals_only_once_per_attempt(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    first = PlayedAttempt(federation, aggregator, "a")
    first.share()
    begin = first.step("mask", first.make_inbox(*IDS))
    masked = aggregator.accept_update(begin)
    assert len(masked) == 8 * (sum(array.size for array in toys.weights().values()) + 1)
    assert (begin.nonce, set(begin.metrics)) == ("a-mask", {"loss", "seconds", "peak_rss_mb"})
    again = first.step("mask", first.make_inbox(*IDS))
    assert aggregator.accept_update(again) == masked
    other = first.step("mask", first.make_inbox("pi-1", "pi-2"))
    assert other.size == 0
    aggregator.send_receipt(other, "rejected", reason="cannot")
    device.wait_for("asked to mask for other clients than before, with the same keys; nothing is sent")

    lists = encode_lists(IDS, IDS)
    others = encode_lists(IDS, IDS[:2])
    agreed = aggregator.accept_update(first.step("agree", lists))
    assert aggregator.accept_update(first.step("agree", lists)) == agreed
    revealed = aggregator.accept_update(first.step("unmask", first.make_agreed_blob(lists)))
    assert len(revealed) == 66 * 3
    assert aggregator.accept_update(first.step("unmask", first.make_agreed_blob(lists))) == revealed
    for step, asked in (("agree", others), ("unmask", first.make_agreed_blob(others))):
        other = first.step(step, asked)
        assert other.size == 0
        aggregator.send_receipt(other, "rejected", reason="cannot")
        device.wait_for(f"asked to {step} for other clients than before")

    files = sorted(path.name for path in (federation.directory / "state-pi-1").iterdir())
    second = PlayedAttempt(federation, aggregator, "b")
    assert {second.device_keys.seal, second.device_keys.mask}.isdisjoint(
        {first.device_keys.seal, first.device_keys.mask}
    )
    second.share()
    assert aggregator.accept_update(second.step("mask", second.make_inbox(*IDS))) != masked
    # the device has not trained again
    assert sorted(path.name for path in (federation.directory / "state-pi-1").iterdir()) == files


def test_device_refuses_keys_after_its_masked_vector_in_8_attempts_at_a_round(
    federate, mosquitto_url, toys, fake_aggregator
):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    for attempt in range(8):
        played = PlayedAttempt(federation, aggregator, f"{attempt}")
        played.share()
        assert aggregator.accept_update(played.step("mask", played.make_inbox(*IDS)))
    aggregator.send_task(1, codec=MASKED_CODEC, nonce="8-advertise")
    begin = aggregator.next("begin")
    assert begin.size == 0, "keys for a ninth attempt at one round"
    aggregator.send_receipt(begin, "rejected", reason="cannot")
    device.wait_for("sent its masked update in 8 attempts at this round")
    aggregator.send_task(2, codec=MASKED_CODEC, nonce="9-advertise")
    assert aggregator.next("begin").size > 0


def test_restarted_device_reports_lost_keys(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    attempt = PlayedAttempt(federation, aggregator, "a")
    attempt.share()
    device.popen.kill()
    assert not aggregator.next("status").online
    again = federation.device("pi-1")
    while not aggregator.next("status").online:
        pass
    begin = attempt.step("mask", attempt.make_inbox(*IDS))
    assert (begin.size, begin.nonce, dict(begin.metrics)) == (0, "a-mask", {})
    aggregator.send_receipt(begin, "rejected", reason="cannot")
    again.wait_for("this device has no keys of the attempt")


def receive_begin_unless(aggregator, device, text):
    """Return the next Begin, or None if the device logs this text first."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        is_over = text in device.err
        event = aggregator.link.get(0.3)
        if isinstance(event, Message) and event.topic.endswith("/begin"):
            return decode_json(Begin, event.payload)
        if is_over:
            return None
    raise AssertionError(device.err)


@pytest.mark.parametrize("between", ["a state", "a state and a restart", "a round of another session"])
def test_masked_session_never_gets_a_plain_update(federate, mosquitto_url, toys, fake_aggregator, between):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    PlayedAttempt(federation, aggregator, "a")
    masked = aggregator.session
    aggregator.session = "another"
    started = aggregator.started
    aggregator.started = started + 1
    aggregator.send_state("federate", 1)
    if between.endswith("restart"):
        device.popen.kill()
        assert not aggregator.next("status").online
        device = federation.device("pi-1")
        while not aggregator.next("status").online:
            pass
    elif between.startswith("a round"):
        aggregator.send_task(1)
        aggregator.accept_update(aggregator.next("begin"))
    aggregator.session = masked
    aggregator.started = started + 2
    aggregator.send_task(1, nonce="clear")
    leaked = receive_begin_unless(aggregator, device, "this device masked an update of this session before")
    assert leaked is None, f"a plain update of the masked session: {leaked}"
    models = {"global": aggregator.model, "initial": aggregator.model}
    aggregator.send_task(1, phase="personalize", nonce="p", models=models)
    assert aggregator.next("begin").size <= 64, "its answer holds no tensor"


def test_device_that_requires_masks_reports_no_gate_metrics(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url, algorithm="pfl-mfe")
    aggregator = fake_aggregator(federation)
    federation.device("pi-1", toys.shard(1), "--least-clients", 3)
    aggregator.next("status")
    aggregator.send_task(1, phase="personalize")
    begin = aggregator.next("begin")
    assert "accuracy_mixture" in begin.metrics
    assert not [name for name in begin.metrics if name.startswith("gate_")], "who leans on which expert"


@pytest.mark.parametrize(
    ("codec", "phase", "note", "is_masked"),
    [
        (MASKED_CODEC, "federate", {}, True),
        (MASKED_CODEC, "personalize", {}, True),
        ("fp32", "federate", {}, False),
        ("fp32", "federate", {"masked": True}, False),
        ("fp32", "personalize", {"masked": True}, True),
        ("fp32", "personalize", {}, False),
    ],
)
def test_federation_is_masked_by_its_codec_or_by_an_earlier_task(codec, phase, note, is_masked):
    """A task to personalize is never masked. Only the note of an earlier task keeps the gate private."""
    assert was_masked(SimpleNamespace(codec=codec, phase=phase), note) is is_masked


def test_device_that_requires_masks_sends_no_loss(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    federation.device("pi-1", toys.shard(1), "--masked-only")
    aggregator.next("status")
    attempt = PlayedAttempt(federation, aggregator, "a")
    attempt.share()
    assert set(attempt.step("mask", attempt.make_inbox(*IDS)).metrics) == {"seconds", "peak_rss_mb"}


@pytest.mark.parametrize("codec", [MASKED_CODEC, "fp32"])
def test_device_measures_accuracy_only_in_unmasked_task(
    codec, federate, mosquitto_url, toys, fake_aggregator, read_progress
):
    """The same task without masks shows that the device can measure it."""
    federation = federate(mosquitto_url, evaluate=True)
    aggregator = fake_aggregator(federation)
    federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.send_task(1, codec=codec, settings={"evaluate": 1.0})
    begin = aggregator.next("begin")
    assert ("accuracy" in begin.metrics) == (codec == "fp32")
    assert ("accuracy" in read_progress(federation)["metrics"]) == (codec == "fp32")


@pytest.mark.parametrize("codec", [MASKED_CODEC, "fp32"])
def test_device_compares_models_only_in_unmasked_task(codec):
    asked = {"compare": 1.0, "local_epochs": 3.0}
    task = make_task(scalars=asked, codec=codec)
    scalars = make_work_item(task, {}, ClientState(), "pi-1").broadcast.scalars
    assert scalars == (asked if codec == "fp32" else {"local_epochs": 3.0})


def test_device_refuses_malformed_masked_tasks_and_keeps_running(
    federate, mosquitto_url, toys, fake_aggregator
):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    attempt = PlayedAttempt(federation, aggregator, "a")
    aggregator.send_task(
        1,
        phase="personalize",
        codec=MASKED_CODEC,
        nonce="p",
        models={"global": aggregator.model, "initial": aggregator.model},
    )
    for number in (0, 2):
        models = {str(k): aggregator.model for k in range(number)}
        aggregator.send_task(1, "share", "a-share", codec=MASKED_CODEC, models=models)
    attempt.share()
    for text in ("to personalize has the codec fp32+masked", "names 0 blobs", "names 2 blobs"):
        device.wait_for(text)
    assert "Traceback" not in device.err, device.err


def test_device_refuses_masked_round_of_plan_without_shared_model(
    federate, mosquitto_url, toys, fake_aggregator
):
    federation = federate(mosquitto_url, algorithm="local")
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.send_task(1, codec=MASKED_CODEC, nonce="a-advertise")
    while not (status := aggregator.next("status")).paused or "yet to see" in status.paused:
        pass
    assert status.online, "it ended"
    assert "trains no shared model" in status.paused
    assert "Traceback" not in device.err


def test_unsigned_state_from_far_future_is_forgotten_after_restart(
    federate, mosquitto_url, toys, fake_aggregator
):
    """Without signatures anybody can forge such a state. It must not block a device permanently."""
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    now = aggregator.started
    aggregator.started = 2**62
    aggregator.send_state("federate", 1)
    aggregator.started = now
    aggregator.send_task(1)
    device.wait_for("refused a Task of round 1")
    assert "years ahead" in device.err
    aggregator.send_state("federate", 1)
    device.popen.kill()
    assert not aggregator.next("status").online
    federation.device("pi-1")
    while not aggregator.next("status").online:
        pass
    aggregator.send_task(1)
    assert aggregator.next("begin").size > 0


def test_a_device_without_cryptography_says_what_to_install(
    federate, mosquitto_url, toys, fake_aggregator, without
):
    without("cryptography")
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    while aggregator.next("status").paused:  # until the device has seen the plan
        pass
    aggregator.send_task(1, codec=MASKED_CODEC, nonce="a-advertise")
    while not (status := aggregator.next("status")).paused:
        pass
    assert status.online
    assert "round 1 is masked, and the package cryptography that it needs cannot be loaded" in status.paused
    assert "the plan" not in status.paused, "it is not the plan's fault"
    assert "pip install" in status.paused
    device.wait_for("pip install")


def test_a_device_refuses_a_key_list_of_too_few_clients(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1), "--least-clients", 4)
    aggregator.next("status")
    attempt = PlayedAttempt(federation, aggregator, "a")
    keys = encode_keys(
        [
            Introduced(attempt.device_keys),
            *(Introduced(decode_json(Advertised, p.advertise())) for p in attempt.others.values()),
        ]
    )
    begin = attempt.step("share", keys)
    assert begin.size == 0, "it shared its keys with three clients"
    aggregator.send_receipt(begin, "rejected", reason="cannot")
    device.wait_for("asked to share with 3 clients, expected 4 or more by --least-clients")

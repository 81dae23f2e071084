"""A device in masked rounds against an aggregator that the test plays, with two other clients of its own."""

import hashlib

from edgefl.security.participant import Participant
from edgefl.security.trust import Trust
from edgefl.wire.masked import (
    CODEC,
    SEALED_BYTES,
    Advertised,
    Agreed,
    Introduced,
    binding_of,
    context_of,
    encode_agreed,
    encode_inbox,
    encode_keys,
    encode_lists,
    split_blob,
)  # fmt: skip
from edgefl.wire.messages import Task
from edgefl.wire.strict_json import decode_json

IDS = ("pi-1", "pi-2", "pi-3")


class Round:
    """One attempt, with `pi-1` a process and the others objects."""

    def __init__(self, federation, lead, attempt):
        self.lead, self.attempt = lead, attempt
        lead.task(1, codec=CODEC, nonce=f"{attempt}-advertise")
        self.own = decode_json(Advertised, lead.take(lead.next("begin")))
        task = Task(
            lead.session, 1, "federate", lead.plan, {"global": lead.model}, {}, 1, 30.0, CODEC, 0, 0.0, f"{attempt}-advertise", 0.0
        )  # fmt: skip
        self.context = context_of(federation.name, task)
        self.others = {client_id: Participant(client_id, self.context, Trust(federation.name)) for client_id in IDS[1:]}

    def step(self, phase, content):
        """Ask for a step; returns what the device announces."""
        name = {"share": "keys", "mask": "inbox", "agree": "lists", "unmask": "agreed"}[phase]
        self.lead.task(1, phase, f"{self.attempt}-{phase}", codec=CODEC, models={name: self.lead.offer(content)})
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
        binding, digest = binding_of(self.context, self.keys), hashlib.sha256(lists).hexdigest()
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
    device.wait_for("asked to mask for other clients than before, with the same keys; nothing is said")

    lists, others = encode_lists(IDS, IDS), encode_lists(IDS, IDS[:2])
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
    aggregator.task(1, codec=CODEC, nonce="8-advertise")
    begin = aggregator.next("begin")
    assert begin.size == 0, "keys for a ninth attempt at one round"
    aggregator.receipt(begin, "rejected", reason="cannot")
    device.wait_for("asked for keys of more than 8 attempts")
    aggregator.task(2, codec=CODEC, nonce="9-advertise")
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
    again.wait_for("the keys of this attempt are gone")


def test_a_device_without_cryptography_says_what_to_install(federate, mosquitto_url, toys, lead, without):
    without("cryptography")
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    while aggregator.next("status").paused:  # until it has seen the plan
        pass
    aggregator.task(1, codec=CODEC, nonce="a-advertise")
    while not (status := aggregator.next("status")).paused:
        pass
    assert status.online
    assert "round 1 is masked, which takes the package cryptography" in status.paused
    assert "pip install" in status.paused
    device.wait_for("pip install")


def test_a_device_refuses_a_key_list_of_too_few_clients(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1), "--least-clients", 4)
    aggregator.next("status")
    attempt = Round(federation, aggregator, "a")
    keys = encode_keys([Introduced(attempt.own), *(Introduced(decode_json(Advertised, p.advertise())) for p in attempt.others.values())])
    begin = attempt.step("share", keys)
    assert begin.size == 0, "it shared its keys with three clients"
    aggregator.receipt(begin, "rejected", reason="cannot")
    device.wait_for("asked to share with 3 clients, and this device has --least-clients 4")

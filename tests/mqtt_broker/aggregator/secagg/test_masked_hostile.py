"""One client of six that does not keep to the protocol of masked rounds, on a real broker: the round closes,
and the log names it.
"""

import collections
import contextlib
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from edgefl.errors import EdgeflError, LinkError
from edgefl.security.secagg.participant import Participant
from edgefl.security.secagg.vectors import encode_deltas, list_shapes
from edgefl.security.trust import Trust
from edgefl.transport.link import Message
from edgefl.types import Update
from edgefl.wire.chunks import slice_chunk
from edgefl.wire.masked import SEALED_BYTES, SHARE_BYTES, hash_context, parse_attempt
from edgefl.wire.messages import End, Receipt
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.tensors import encode_models
from edgefl.wire.topics import parse_topic

IDS = tuple(f"pi-{i}" for i in range(6))
LIAR = "pi-2"
SECURE = "[privacy]\nsecure_aggregation = true\n"
LOW_ORDER = "A" * 43 + "="


class Client(threading.Thread):
    """Answers every task in a thread of its own until it has personalized. Its update is its number, in every
    weight.

    before: called with each task and its participant; changed: makes of an honest answer (phase, blob) the
    one that is sent; after: called when the answer to a task was sent.
    """

    def __init__(
        self,
        puppet,
        weights,
        place,
        before=lambda task, participant: None,
        changed=lambda phase, blob: blob,
        after=lambda task: None,
    ):
        super().__init__(daemon=True)
        self.puppet = puppet
        self.before = before
        self.changed = changed
        self.after = after
        deltas = {"global": {name: np.full_like(array, 2.0**-place) for name, array in weights.items()}}
        self.update = Update(puppet.puppet.client_id, 1, 10, deltas)
        self.words = encode_deltas(deltas, 10, list_shapes({"global": weights}))
        self.participants = {}

    def run(self):
        # Nothing comes any more when the federation ended
        with contextlib.suppress(AssertionError, LinkError):
            while (task := self.puppet.puppet.next("task")).phase != "personalize":
                attempt = parse_attempt(task.nonce)
                name = self.puppet.federation.name
                if task.phase == "federate" and attempt not in self.participants:
                    self.participants[attempt] = Participant(
                        self.update.client_id, hash_context(name, task), Trust(name)
                    )
                participant = self.participants[attempt]
                self.before(task, participant)
                self.send(task, self.changed(task.phase, self.honest(task, participant)))
                self.after(task)
            self.send(task, encode_models({}))

    def honest(self, task, participant):
        if task.phase == "federate":
            return participant.advertise()
        try:
            return participant.answer(task.phase, self.puppet.fetch(task), lambda: self.words)
        except EdgeflError:
            return b""  # as a device says that it refuses

    def send(self, task, blob):
        """Send an answer until its receipt comes; or the next task, where enough others answered before."""
        puppet = self.puppet.puppet
        begin = puppet.begin(task, blob)
        deadline = time.monotonic() + 40.0
        while time.monotonic() < deadline and not puppet.inbox["task"]:
            while puppet.inbox["receipt"]:
                receipt = decode_json(Receipt, puppet.inbox["receipt"].popleft())
                if receipt.sha256 == begin.sha256 and receipt.outcome != "missing":
                    return
                if receipt.sha256 == begin.sha256:
                    for index in range(begin.count):
                        puppet.publish(begin.sha256, index, slice_chunk(blob, index))
                    puppet.publish(begin.sha256, "end", encode_json(End(begin.sha256, begin.count, 0.0)))
            if isinstance(event := puppet.link.get(deadline - time.monotonic()), Message):
                puppet.inbox[parse_topic(event.topic).kind].append(event.payload)


@pytest.fixture
def play(federate, mosquitto_url, toys, masked_puppet, masked):
    """Play a round of which one client is changed; returns what the aggregator said, and who was dropped,
    why.
    """

    def make(out=(LIAR,), ids=IDS, others=lambda task, participant: None, **changed):
        federation = federate(
            mosquitto_url,
            rounds=1,
            min_clients=len(ids),
            upload_slots=6,
            seed=5,
            tables=SECURE,
            algorithm="fedavg",
        )
        aggregator = federation.aggregator()
        clients = []
        for place, client_id in enumerate(ids):
            more = changed if client_id == LIAR else {"before": others}
            clients.append(Client(masked_puppet(federation, client_id), toys.weights(), place, **more))
        for client in clients:
            client.start()
        code = aggregator.end()
        if out is None:
            assert code == 1
            return aggregator.said, {}
        assert code == 0, f"one client ended the federation:\n{aggregator.said}"
        for client in clients:
            client.join(10)
        dropped = {row["id"]: row["reason"] for row in federation.result()["dropped"] if row["round"] == 1}
        assert set(dropped) == set(out), aggregator.said
        updates = [client.update for client in clients if client.update.client_id not in out]
        masked.check_models(federation, masked.after(federation, toys.weights(), updates))
        return aggregator.said, dropped

    return make


def spoiled(blob, place, size):
    """Return the blob with the part of that place made garbage."""
    low = place * size + size - 40
    return blob[:low] + bytes(byte ^ 0x55 for byte in blob[low : low + 20]) + blob[low + 20 :]


def test_seals_that_nobody_can_open_leave_their_sender_out(play):
    def changed(phase, blob):
        for place in (0, 1, 3, 4, 5) if phase == "share" else ():
            blob = spoiled(blob, place, SEALED_BYTES)
        return blob

    said, _ = play(changed=changed)
    assert (
        f"{LIAR} sealed shares that are not genuine for pi-0, pi-1, pi-3, pi-4, pi-5; the next attempt "
        "at this round excludes it" in said
    )
    assert said.count("the round is played again") == 1


def test_of_a_seal_that_one_client_cannot_open_both_ends_are_left_out(play):
    said, dropped = play(
        out=(LIAR, "pi-4"),
        changed=lambda phase, blob: spoiled(blob, 4, SEALED_BYTES) if phase == "share" else blob,
    )
    left = "the next attempt at this round excludes it; one of the two is at fault: check the logs of both"
    assert f"{LIAR} sealed a share that is not genuine, according to pi-4; {left}" in said
    assert f"pi-4 accuses {LIAR} of a sealed share that is not genuine; {left}" in said
    assert dropped == {
        LIAR: "sealed a share that is not genuine, according to pi-4",
        "pi-4": f"accuses {LIAR} of a sealed share that is not genuine",
    }


def test_a_share_that_is_off_by_one_is_not_used(play):
    """It is revealed first; the words of who sent it are in the sum all the same."""
    revealed = collections.defaultdict(threading.Event)

    def changed(phase, blob):
        return (
            (int.from_bytes(blob[:SHARE_BYTES]) + 1).to_bytes(SHARE_BYTES) + blob[SHARE_BYTES:]
            if phase == "unmask"
            else blob
        )

    def wait(task, participant):
        if task.phase == "unmask":
            assert revealed[task.nonce].wait(40)

    def after(task):
        revealed[task.nonce].set()

    said, _ = play(out=(), changed=changed, after=after, others=wait)
    assert f"rejected from {LIAR}: {LIAR} revealed a share that differs from the share sent by pi-0" in said


def test_shares_of_another_seed_leave_who_dealt_them_out(play):
    seeds = {}

    def before(task, participant):
        own = participant._secrets
        if task.phase == "share":
            seeds.setdefault(task.nonce, own.self_seed)  # a task may come twice
            participant._secrets = replace(own, self_seed=bytes(32))
        elif task.phase == "mask":
            participant._secrets = replace(own, self_seed=seeds[task.nonce.replace("mask", "share")])

    said, _ = play(before=before)
    assert (
        f"{LIAR} sent shares that do not give its advertised keys; the next attempt at this round excludes "
        "it; update or revoke it" in said
    )


def test_a_key_of_low_order_is_refused_before_anybody_else_sees_it(play):
    def changed(phase, blob):
        return (
            json.dumps({**json.loads(blob), "seal": LOW_ORDER}, separators=(",", ":")).encode()
            if phase == "federate"
            else blob
        )

    said, _ = play(changed=changed)
    assert f"rejected from {LIAR}: a key of {LIAR} has a low order" in said
    assert "played again" not in said


def test_where_too_few_would_be_left_those_whose_words_came_are_enough(play):
    """Of four clients one accuses another: without both, two would be left. The words of three are as many as
    the threshold.
    """
    said, _ = play(ids=IDS[:4], changed=lambda phase, blob: b"pi-0" if phase == "mask" else blob)
    assert (
        f"rejected from {LIAR}: {LIAR} cannot open the shares that pi-0 sealed for it and sent no masked "
        "vector" in said
    )
    assert "played again" not in said


def test_two_clients_are_no_masked_sum(play):
    said, _ = play(
        None,
        IDS[:3],
        changed=lambda phase, blob: (
            spoiled(spoiled(blob, 0, SEALED_BYTES), 1, SEALED_BYTES) if phase == "share" else blob
        ),
    )
    assert (
        f"2 clients are left without {LIAR}, expected 3 or more; update or revoke the excluded clients, or "
        "add clients" in said
    )


def test_an_agreement_to_other_lists_is_not_handed_on(play):
    """It is the first that comes; the others would refuse to unmask with it."""
    agreed = collections.defaultdict(threading.Event)

    def changed(phase, blob):
        return (
            json.dumps({**json.loads(blob), "lists": "0" * 64}, separators=(",", ":")).encode()
            if phase == "agree"
            else blob
        )

    def wait(task, participant):
        if task.phase == "agree":
            assert agreed[task.nonce].wait(40)

    said, _ = play(out=(), changed=changed, after=lambda task: agreed[task.nonce].set(), others=wait)
    assert f"rejected from {LIAR}: {LIAR} agreed to other lists than it received; restart {LIAR}" in said
    assert "played again" not in said

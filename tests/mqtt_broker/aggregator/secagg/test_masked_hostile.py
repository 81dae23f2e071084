"""One client of six violates the protocol of masked rounds, on a real broker: the round closes, and the
log names the client.
"""

import collections
import contextlib
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import EdgeflError, LinkError
from edgefl.base.types import Update
from edgefl.protocol.security.secagg.participant import Participant
from edgefl.protocol.security.secagg.vectors import encode_deltas, list_shapes
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.transport.link import Message
from edgefl.protocol.wire.chunks import slice_chunk
from edgefl.protocol.wire.masked import SEALED_BYTES, SHARE_BYTES, hash_context, parse_attempt
from edgefl.protocol.wire.messages import End, Receipt
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.protocol.wire.tensors import encode_models
from edgefl.protocol.wire.topics import parse_topic

IDS = tuple(f"pi-{i}" for i in range(6))
HOSTILE_ID = "pi-2"
SECURE = "[privacy]\nsecure_aggregation = true\n"
LOW_ORDER = "A" * 43 + "="


class Client(threading.Thread):
    """Answers every task in its own thread until it has personalized. Its update has the same value in
    every weight.

    before: called with each task and its participant. changed: makes the sent answer from an honest one
    (phase, blob). after: called after the answer to a task was sent.
    """

    def __init__(
        self,
        puppet,
        weights,
        position,
        before=lambda task, participant: None,
        changed=lambda phase, blob: blob,
        after=lambda task: None,
    ):
        super().__init__(daemon=True)
        self.puppet = puppet
        self.before = before
        self.changed = changed
        self.after = after
        deltas = {"global": {name: np.full_like(array, 2.0**-position) for name, array in weights.items()}}
        self.update = Update(client_id=puppet.puppet.client_id, round=1, num_samples=10, deltas=deltas)
        self.vector = encode_deltas(deltas, 10, list_shapes({"global": weights}))
        self.participants = {}

    def run(self):
        # No message comes after the federation ended
        with contextlib.suppress(AssertionError, LinkError):
            while (task := self.puppet.puppet.next("task")).phase != "personalize":
                attempt = parse_attempt(task.nonce)
                name = self.puppet.federation.name
                if task.phase == "federate" and attempt not in self.participants:
                    self.participants[attempt] = Participant(
                        self.update.client_id, hash_context(name, task), Trust(federation=name)
                    )
                participant = self.participants[attempt]
                self.before(task, participant)
                self.send(task, self.changed(task.phase, self.answer_honestly(task, participant)))
                self.after(task)
            self.send(task, encode_models({}))

    def answer_honestly(self, task, participant):
        if task.phase == "federate":
            return participant.advertise()
        try:
            return participant.answer(task.phase, self.puppet.fetch(task), lambda: self.vector)
        except EdgeflError:
            return b""  # the answer of a device that refuses

    def send(self, task, blob):
        """Send an answer until its receipt arrives, or the next task if enough other clients answered
        before.
        """
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
def play_round(federate, mosquitto_url, toys, masked_puppet, masked):
    """Returns a function that plays a round with one hostile client. It returns the log of the
    aggregator, and the dropped clients with reasons.
    """

    def make(excluded=(HOSTILE_ID,), ids=IDS, others=lambda task, participant: None, **changed):
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
        for position, client_id in enumerate(ids):
            more = changed if client_id == HOSTILE_ID else {"before": others}
            clients.append(Client(masked_puppet(federation, client_id), toys.weights(), position, **more))
        for client in clients:
            client.start()
        code = aggregator.end()
        if excluded is None:
            assert code == 1
            return aggregator.err, {}
        assert code == 0, f"one client ended the federation:\n{aggregator.err}"
        for client in clients:
            client.join(10)
        dropped = {row["id"]: row["reason"] for row in federation.result()["dropped"] if row["round"] == 1}
        assert set(dropped) == set(excluded), aggregator.err
        updates = [client.update for client in clients if client.update.client_id not in excluded]
        masked.check_models(federation, masked.aggregate_updates(federation, toys.weights(), updates))
        return aggregator.err, dropped

    return make


def corrupt_part(blob, position, size):
    """Return the blob with the part at that position corrupted."""
    low = position * size + size - 40
    return blob[:low] + bytes(byte ^ 0x55 for byte in blob[low : low + 20]) + blob[low + 20 :]


def test_sender_of_invalid_seals_is_left_out(play_round):
    def changed(phase, blob):
        for position in (0, 1, 3, 4, 5) if phase == "share" else ():
            blob = corrupt_part(blob, position, SEALED_BYTES)
        return blob

    log, _ = play_round(changed=changed)
    assert (
        f"{HOSTILE_ID} sealed shares that are not genuine for pi-0, pi-1, pi-3, pi-4, pi-5; the next attempt "
        "at this round excludes it" in log
    )
    assert log.count("the round is played again") == 1


def test_one_invalid_seal_excludes_sender_and_accuser(play_round):
    log, dropped = play_round(
        excluded=(HOSTILE_ID, "pi-4"),
        changed=lambda phase, blob: corrupt_part(blob, 4, SEALED_BYTES) if phase == "share" else blob,
    )
    left = "the next attempt at this round excludes it; one of the two is at fault: check the logs of both"
    assert f"{HOSTILE_ID} sealed a share that is not genuine, according to pi-4; {left}" in log
    assert f"pi-4 accuses {HOSTILE_ID} of a sealed share that is not genuine; {left}" in log
    assert dropped == {
        HOSTILE_ID: "sealed a share that is not genuine, according to pi-4",
        "pi-4": f"accuses {HOSTILE_ID} of a sealed share that is not genuine",
    }


def test_altered_share_is_not_used(play_round):
    """The share is revealed first. The vector of its sender is in the sum nevertheless."""
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

    log, _ = play_round(excluded=(), changed=changed, after=after, others=wait)
    assert (
        f"rejected from {HOSTILE_ID}: {HOSTILE_ID} revealed a share that differs from the share sent by pi-0"
        in log
    )


def test_shares_of_another_seed_exclude_their_sender(play_round):
    seeds = {}

    def before(task, participant):
        own = participant._secrets
        if task.phase == "share":
            seeds.setdefault(task.nonce, own.self_seed)  # a task may arrive twice
            participant._secrets = replace(own, self_seed=bytes(32))
        elif task.phase == "mask":
            participant._secrets = replace(own, self_seed=seeds[task.nonce.replace("mask", "share")])

    log, _ = play_round(before=before)
    assert (
        f"{HOSTILE_ID} sent shares that do not give its advertised keys; the next attempt at this round "
        "excludes it; update or revoke it" in log
    )


def test_key_of_low_order_is_refused_before_it_is_shared(play_round):
    def changed(phase, blob):
        return (
            json.dumps({**json.loads(blob), "seal": LOW_ORDER}, separators=(",", ":")).encode()
            if phase == "federate"
            else blob
        )

    log, _ = play_round(changed=changed)
    assert f"rejected from {HOSTILE_ID}: a key of {HOSTILE_ID} has a low order" in log
    assert "played again" not in log


def test_round_continues_with_the_vectors_of_threshold_clients(play_round):
    """One of four clients accuses another. Without both, two would be left. The vectors of three clients
    meet the threshold.
    """
    log, _ = play_round(ids=IDS[:4], changed=lambda phase, blob: b"pi-0" if phase == "mask" else blob)
    assert (
        f"rejected from {HOSTILE_ID}: {HOSTILE_ID} cannot open the shares that pi-0 sealed for it and sent "
        "no masked vector" in log
    )
    assert "played again" not in log


def test_two_remaining_clients_end_the_federation(play_round):
    log, _ = play_round(
        None,
        IDS[:3],
        changed=lambda phase, blob: (
            corrupt_part(corrupt_part(blob, 0, SEALED_BYTES), 1, SEALED_BYTES) if phase == "share" else blob
        ),
    )
    assert (
        f"2 clients are left without {HOSTILE_ID}, expected 3 or more; update or revoke the excluded "
        "clients, or add clients" in log
    )


def test_agreement_to_other_lists_is_rejected(play_round):
    """The agreement is the first that arrives. The other clients would refuse to unmask with it."""
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

    log, _ = play_round(
        excluded=(), changed=changed, after=lambda task: agreed[task.nonce].set(), others=wait
    )
    assert (
        f"rejected from {HOSTILE_ID}: {HOSTILE_ID} agreed to other lists than it received; restart "
        f"{HOSTILE_ID}" in log
    )
    assert "played again" not in log

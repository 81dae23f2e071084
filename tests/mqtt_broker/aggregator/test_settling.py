"""How an exchange takes a round's updates in, over a real broker: how often it settles them, and whom it
tells of a task again.
"""

import hashlib
import socket
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from edgefl.algorithms import full_options, make_algorithm
from edgefl.config import FederationConfig
from edgefl.rng import rng_for
from edgefl.security.trust import Trust
from edgefl.server import rounds
from edgefl.server.tasks import Tasks
from edgefl.transport.link import Link, Message
from edgefl.wire.chunks import CHUNK_BYTES
from edgefl.wire.messages import JOINING, Begin, Receipt, State, Task
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.tensors import encode_models
from edgefl.wire.topics import Topics
from mqtt_broker.aggregator import exchange as module
from mqtt_broker.aggregator.exchange import Exchange
from mqtt_broker.aggregator.spool import Spool

DEADLINE_S = 40.0


@dataclass
class Play:
    """A round that is played on a thread of its own; `settled`: the clients of each call that made sure of
    updates.
    """

    exchange: Exchange
    link: Link
    device: Link
    topics: Topics
    weights: dict
    settled: list = field(default_factory=list)
    closed: list = field(default_factory=list)

    def start(self, cohort, tasks, away=(), **settings):
        begun = rounds.open_round(
            1,
            cohort,
            **{"quorum": 0.1, "deadline_s": DEADLINE_S, "grace_s": DEADLINE_S} | settings,
            now=time.monotonic(),
        )
        for client_id in away:
            begun = rounds.offline(begun, client_id, time.monotonic())

        def play():
            self.closed.append(
                self.exchange.play(
                    begun, tasks, lambda begins: self.settled.append(sorted(b.client_id for b in begins))
                )
            )

        self.thread = threading.Thread(target=play, daemon=True)
        self.thread.start()

    def next(self, kind, client_id):
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            event = self.device.get(deadline - time.monotonic())
            if isinstance(event, Message) and event.topic == self.topics.device(client_id, kind):
                return decode_json(Task if kind == "task" else Receipt, event.payload)
        raise AssertionError(f"no {kind} came for {client_id}")

    def send(self, client_id, task, number):
        blob = encode_models(
            {"global": {name: np.full_like(array, number) for name, array in self.weights.items()}}
        )
        begin = Begin(
            client_id,
            task.session,
            task.round,
            task.plan,
            hashlib.sha256(blob).hexdigest(),
            len(blob),
            1,
            CHUNK_BYTES,
            10,
            {"loss": 1.0},
            task.nonce,
            time.time(),
            follows=True,
        )
        self.device.publish(self.topics.upload(client_id, begin.sha256, "begin"), encode_json(begin), qos=0)
        self.device.publish(self.topics.upload(client_id, begin.sha256, 0), blob)

    def end(self):
        self.thread.join(DEADLINE_S)
        assert self.closed, "the round did not close"
        return sorted(self.closed[0].received)


@pytest.fixture
def play(own_broker, toys, tmp_path):
    # what an exchange leaves on its broker says that a federation runs there, and devices of other tests
    # would look into it
    config = FederationConfig(algorithm="fedavg")
    plan = toys.plan()
    topics = Topics(f"settling-{time.monotonic_ns()}")
    link, device = (Link(f"mqtt://127.0.0.1:{own_broker.port}", name) for name in ("aggregator", "device"))
    algorithm = make_algorithm("fedavg", None, full_options("fedavg", {}))
    state = algorithm.init(toys.weights(), rng_for(1, 0, "init"))
    told = State(topics.federation, "s", JOINING, 1, 1, 0, 0.0, plan.id, time.time())
    spool = Spool(tmp_path)
    exchange = Exchange(
        link,
        topics,
        told,
        upload_slots=4,
        spool=spool,
        trust=Trust(topics.federation),
        note=lambda line: None,
    )
    device.subscribe(topics.device("+", "task"), topics.device("+", "receipt"))
    exchange.start()
    made = Play(exchange, link, device, topics, toys.weights())
    made.tasks = Tasks(
        algorithm,
        state,
        config,
        session="s",
        plan=plan.id,
        nonces={1: "n"},
        max_staleness=0,
        offer=exchange.blobs.offer,
    )
    yield made
    for each in (link, device):
        each.close(1.0)
    spool.remove()


CASES = {
    "all of the cohort": (("a", "b", "c"), {}, ["a", "b", "c"]),
    "as many as are enough": (("a", "b", "c", "d"), {"enough": 2}, ["b", "c"]),
    "all but who is away": (("a", "b", "c"), {"away": ("b",), "grace_s": 0.0}, ["a", "c"]),
}


@pytest.mark.parametrize("case", CASES)
def test_updates_that_close_a_round_are_settled_at_once_and_none_before(case, play, monkeypatch):
    """However long one may wait for others: here longer than the test."""
    monkeypatch.setattr(module, "SETTLE_S", 10 * DEADLINE_S)
    cohort, settings, senders = CASES[case]
    play.start(cohort, play.tasks, **settings)
    for number, client_id in enumerate(senders):
        play.send(client_id, play.next("task", client_id), number)
    for client_id in senders:
        assert play.next("receipt", client_id).outcome == "ok"
    assert play.end() == senders
    assert play.settled == [senders]


def test_an_update_that_others_keep_waiting_is_settled_by_itself(play, monkeypatch):
    monkeypatch.setattr(module, "SETTLE_S", 0.0)
    play.start(("a", "b"), play.tasks)
    tasks = {client_id: play.next("task", client_id) for client_id in ("a", "b")}
    for number, (client_id, task) in enumerate(tasks.items()):
        play.send(client_id, task, number)
        assert play.next("receipt", client_id).outcome == "ok"
    assert play.end() == ["a", "b"]
    assert play.settled == [["a"], ["b"]]


def test_who_is_missing_is_told_of_its_task_again_when_the_aggregators_own_link_is_back(play):
    """Its announcement, or the task itself, may be lost with the connection: both are sent at QoS 0."""
    play.start(("a", "b"), play.tasks)
    play.send("a", play.next("task", "a"), 1)
    task = play.next("task", "b")
    assert play.next("receipt", "a").outcome == "ok"
    play.link._client.socket().shutdown(socket.SHUT_RDWR)
    assert play.next("task", "b") == task
    play.send("b", task, 2)
    assert play.next("receipt", "b").outcome == "ok"
    assert play.end() == ["a", "b"]

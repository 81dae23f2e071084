"""Masked rounds of the round server without a broker, with the real participants of secure aggregation."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load

from edgefl.base.config import FederationConfig, PrivacyConfig
from edgefl.base.errors import RoundError, StateError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import PHASE_PERSONALIZE, complete_algorithm_options, make_algorithm
from edgefl.learning.algorithms.cohort import choose_task_clients
from edgefl.protocol.security.secagg.masked_aggregation import average_masked, wrap_means
from edgefl.protocol.security.secagg.participant import Participant
from edgefl.protocol.security.secagg.vectors import encode_deltas, list_shapes
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.server.events import (
    AggregateUpdates,
    BeginReceived,
    ChunkReceived,
    SaveMaskedSum,
    StateAggregated,
    StatusReceived,
    Stop,
)
from edgefl.protocol.server.round_server import RoundServer
from edgefl.protocol.server.server_algorithm import build_server_algorithm
from edgefl.protocol.wire.machine_events import Publish, TimePassed
from edgefl.protocol.wire.masked import MASKED_CODEC, hash_context, parse_attempt
from edgefl.protocol.wire.messages import Begin, Status, Task
from edgefl.protocol.wire.tensors import encode_models
from edgefl.protocol.wire.topics import parse_topic
from edgefl.simulation.in_memory_store import InMemoryStore
from tests.edgefl.protocol.server.hostile_network import compute_delta, count_samples
from tests.support.numpy_learner.softmax import softmax_spec

IDS = tuple(f"c{i}" for i in range(5))
SPEC = softmax_spec(
    "fedavg", inputs=4, features=4, classes=3, options=complete_algorithm_options("fedavg", {})
)


class MaskedFederation:
    """A masked federation in one process. `dropouts` maps a step to the clients that go offline before it."""

    def __init__(self, rounds=1, dropouts=(), clients=IDS):
        self.config = FederationConfig(
            rounds=rounds,
            min_clients=len(clients),
            seed=5,
            deadline_s=30.0,
            grace_s=0.0,
            quorum=0.5,
            privacy=PrivacyConfig(secure_aggregation=True),
        )
        self.dropouts = dict(dropouts)
        self.algorithm = build_server_algorithm(
            make_algorithm("fedavg", None, SPEC.options), self.config, SPEC, key=b""
        )
        weights = {each.name: np.full(each.shape, 0.5, np.float32) for each in SPEC.weights}
        self.first_state = self.algorithm.init(weights, derive_rng(1, 0, "init"))
        self.memory = InMemoryStore(self.first_state)
        self.clients = clients
        self.blobs = {}
        self.participants = {}
        self.queue = []
        self.offline = set()
        self.lines = []
        self.payloads = []
        self.saved = []
        self.nonces = 0
        self.now = 0.0

    def start(self, resume=None):
        self.server = RoundServer(
            config=self.config,
            spec=SPEC,
            plan=("0" * 64, b"plan"),
            algorithm=self.algorithm,
            state=self.first_state,
            session="session",
            started=1,
            draw_cohort=lambda state, available: choose_task_clients(self.config, state, available),
            new_nonce=self.new_nonce,
            resume=resume,
        )
        self.carry_out(self.server.start(self.now))
        for client_id in self.clients:
            if client_id not in self.offline:
                self.handle(self.make_status(client_id, True))

    def new_nonce(self):
        self.nonces += 1
        return f"{self.nonces:016x}"

    @staticmethod
    def make_status(client_id, online):
        return StatusReceived(
            Status(
                client_id=client_id,
                boot_id="boot",
                online=online,
                born=0.0,
                num_samples=10,
                version="0",
                ts=0.0,
            )
        )

    def handle(self, event):
        self.carry_out(self.server.handle(event, self.now))

    def carry_out(self, actions):
        for action in actions:
            self.memory.apply(action)
            match action:
                case AggregateUpdates(state):
                    updates = self.memory.iterate_updates(self.memory.list_clients())
                    after = self.algorithm.aggregate(state, updates)
                    self.carry_out(self.server.handle(StateAggregated(after), self.now))
                case Stop(error):
                    raise error
                case SaveMaskedSum(content):
                    self.saved.append(content)
                case Publish(topic, message):
                    address = parse_topic(topic)
                    if address.kind == "blob" and message:
                        self.blobs[address.sha256] = message
                    if isinstance(message, Task):
                        self.queue.append((address.client_id, message))

    def answer(self, client_id, task):
        """Return a client's answer to a task, and its number of samples."""
        if task.phase == PHASE_PERSONALIZE:
            return encode_models({}), count_samples(client_id)
        if task.codec == MASKED_CODEC and task.phase == "federate":
            weights = load(self.blobs[task.models["global"]])
            deltas = {"global": compute_delta(client_id, task.round, weights)}
            attempt = client_id, parse_attempt(task.nonce)
            if attempt not in self.participants:
                context = hash_context(self.config.name, task)
                participant = Participant(client_id, context, Trust(federation=self.config.name))
                self.participants[attempt] = participant, deltas
            return self.participants[attempt][0].advertise(), count_samples(client_id)
        participant, deltas = self.participants[client_id, parse_attempt(task.nonce)]
        [sha256] = task.models.values()
        shapes = list_shapes(deltas)
        answer = participant.answer(
            task.phase, self.blobs[sha256], lambda: encode_deltas(deltas, count_samples(client_id), shapes)
        )
        return answer, count_samples(client_id)

    def run(self, until=lambda: False):
        """Deliver all messages in order until the federation is complete."""
        for _ in range(2000):
            if self.server.is_done or until():
                return
            if not self.queue:
                self.now = max(self.now, self.server.get_timer())
                assert self.now < float("inf"), "nothing will happen any more"
                self.handle(TimePassed())
                continue
            client_id, task = self.queue.pop(0)
            if client_id in self.dropouts.get(task.phase, ()) and client_id not in self.offline:
                self.offline.add(client_id)
                self.handle(self.make_status(client_id, False))
            if client_id in self.offline:
                continue
            blob, samples = self.answer(client_id, task)
            self.payloads.append(blob)
            sha256 = hashlib.sha256(blob).hexdigest()
            begin = Begin(
                client_id=client_id,
                session=task.session,
                round=task.round,
                plan=task.plan,
                sha256=sha256,
                size=len(blob),
                count=1,
                chunk_bytes=task.chunk_bytes,
                num_samples=samples,
                metrics={"loss": 1.0} if task.phase == "mask" else {},
                nonce=task.nonce,
                ts=0.0,
                follows=task.granted,
            )
            self.handle(BeginReceived(begin))
            self.handle(ChunkReceived(client_id=client_id, sha256=sha256, index=0, payload=blob))
        raise AssertionError("the federation does not end")

    def compute_expected_state(self, cohorts):
        """Return the state after rounds with the sums of these cohorts, one cohort for each round."""
        state = self.first_state
        for cohort in cohorts:
            weights = self.algorithm.broadcast(state, "").models["global"]
            updates = []
            for client_id in sorted(cohort):
                deltas = {"global": compute_delta(client_id, state.round, weights)}
                updates.append(
                    Update(
                        client_id=client_id,
                        round=state.round,
                        num_samples=count_samples(client_id),
                        deltas=deltas,
                    )
                )
            means = average_masked(list_shapes({"global": weights}), updates, sorted(cohort), "test")
            state = self.algorithm.aggregate(state, wrap_means(means, state.round))
        return state

    def check(self, cohorts):
        expected = self.compute_expected_state(cohorts)
        assert self.memory.state.phase == "done"
        for name, array in expected.models["global"].items():
            assert self.memory.state.models["global"][name].tobytes() == array.tobytes()


def test_masked_rounds_equal_the_simulator_and_send_no_plain_update():
    federation = MaskedFederation(rounds=2)
    federation.start()
    federation.run()
    federation.check([IDS, IDS])
    weights = federation.algorithm.broadcast(federation.first_state, "").models["global"]
    for client_id in IDS:
        kernel = compute_delta(client_id, 1, weights)["head/kernel"].tobytes()
        assert not any(kernel in payload for payload in federation.payloads)
    assert federation.memory.losses == [1.0, 1.0]


@pytest.mark.parametrize("step", ["share", "mask"])
def test_client_lost_before_its_masked_vector_is_excluded_from_sum(step):
    federation = MaskedFederation(dropouts={step: ["c3"]})
    federation.start()
    federation.run()
    federation.check([[client_id for client_id in IDS if client_id != "c3"]])


@pytest.mark.parametrize("step", ["agree", "unmask"])
def test_client_lost_after_its_masked_vector_is_included_in_sum(step):
    federation = MaskedFederation(dropouts={step: ["c3"]})
    federation.start()
    federation.run()
    federation.check([IDS])


def test_restart_after_masked_vectors_continues_the_attempt():
    federation = MaskedFederation()
    federation.start()
    federation.run(until=lambda: bool(federation.saved))
    attempt = parse_attempt(next(task.nonce for _, task in federation.queue if task.phase == "agree"))
    federation.memory.crash()
    federation.queue.clear()
    federation.start(resume=federation.memory.resume(federation.config))
    federation.run()
    federation.check([IDS])
    attempts = {nonce for _, nonce in federation.participants}
    assert attempts == {attempt}, "no other keys were asked for"


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:-1] + b"\xff"])
def test_damaged_masked_sum_is_refused_with_its_path(damage):
    federation = MaskedFederation()
    federation.start()
    federation.run(until=lambda: bool(federation.saved))
    federation.queue.clear()
    resume = federation.memory.resume(federation.config)
    damaged = replace(resume, masked_sum=damage(resume.masked_sum), masked_sum_origin="/out/masked.sum")
    with pytest.raises(StateError, match=r"^/out/masked\.sum is damaged: .*start again with --fresh"):
        federation.start(resume=damaged)


def test_restart_before_masked_vectors_starts_a_new_attempt():
    federation = MaskedFederation()
    federation.start()
    federation.run(until=lambda: any(task.phase == "mask" for _, task in federation.queue))
    federation.queue.clear()
    federation.start(resume=federation.memory.resume(federation.config))
    federation.run()
    federation.check([IDS])
    assert len({nonce for _, nonce in federation.participants}) == 2


def test_masked_sum_of_two_clients_is_refused():
    federation = MaskedFederation(dropouts={"share": ["c0", "c1", "c2"]})
    federation.start()
    with pytest.raises(RoundError, match=r"2 of 5 updates, expected 3.*look at their logs"):
        federation.run()

"""Masked rounds of real client machines and a real round server, with crashes and lost messages.

The models are always those of a sum over some of the clients, and no update is sent without masks.
"""

import os
from collections import Counter, defaultdict
from itertools import chain, combinations

import pytest
from hypothesis import HealthCheck, given, settings
from safetensors.numpy import load

from devices.masked_attempt import draw_attempt
from edgefl.base.config import FederationConfig, PrivacyConfig
from edgefl.base.errors import DataError, RoundError, WireError
from edgefl.base.types import Update
from edgefl.learning.algorithms import PHASE_PERSONALIZE
from edgefl.protocol.device.events import AnswerStep, BeginAttempt, MaskedAnswerReady, WriteClientLog
from edgefl.protocol.device.order import SharingRules
from edgefl.protocol.security.secagg.masked_aggregation import average_masked, wrap_means
from edgefl.protocol.security.secagg.vectors import list_shapes
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.server.events import ChunkReceived, SaveState
from edgefl.protocol.wire.masked import MASK_STEP, MAX_ATTEMPTS
from edgefl.protocol.wire.tensors import encode_models
from tests.edgefl.protocol.server.hostile_network import HostileNetwork, compute_delta, count_samples
from tests.edgefl.protocol.server.test_round_server import steps

pytest.importorskip("cryptography")
SCHEDULES = int(os.environ.get("EDGEFL_SCHEDULES", "20")) // 4
CLIENTS = 4
LEAST_CLIENTS = 3
LEAST_VECTORS = 2
"""The masked vectors of more than half of three clients are enough for a sum."""
ROUNDS = 2


class MaskedNetwork(HostileNetwork):
    """A masked federation whose clients lose their keys when they crash.

    The owner of a client restarts it when its log says so.
    """

    def __init__(self):
        self.attempts = {}
        self.to_restart = set()
        self.masked = defaultdict(set)
        """The clients that masked their update, by the attempt."""
        self.updates = set()
        self.states = {}
        config = FederationConfig(
            rounds=ROUNDS,
            min_clients=LEAST_CLIENTS,
            seed=5,
            deadline_s=20.0,
            grace_s=2.0,
            quorum=0.5,
            privacy=PrivacyConfig(secure_aggregation=True),
        )
        super().__init__(config, CLIENTS)
        self.states[1] = self.first_state

    def restart(self, client):
        self.attempts.pop(client.client_id, None)
        super().restart(client)

    def apply_client_action(self, client_id, action):
        super().apply_client_action(client_id, action)
        match action:
            case BeginAttempt(task, answered):
                return self.begin_attempt(client_id, task, answered.answer)
            case WriteClientLog(line) if "a restart of this device allows" in line:
                self.to_restart.add(client_id)
            case AnswerStep(step, request):
                if step.phase == MASK_STEP:
                    self.masked[step.nonce].add(client_id)
                try:
                    answer = self.attempts[client_id].answer_step(step, request)
                except (RoundError, WireError, DataError):
                    answer = b""
                return self.reply(client_id, step, answer)
        return None

    def pass_time(self):
        for client_id in sorted(self.to_restart):
            self.restart(self.clients[client_id])
        self.to_restart.clear()
        super().pass_time()

    def begin_attempt(self, client_id, task, answer):
        last = self.attempts.get(client_id)
        if last is None or last.task.nonce != task.nonce:
            last = self.attempts[client_id] = draw_attempt(
                task=task,
                update=self.clients[client_id].read_content(answer.sha256),
                num_samples=answer.num_samples,
                client_id=client_id,
                trust=Trust(federation=self.config.name),
                authority="",
                sharing=SharingRules(),
            )
        return self.reply(client_id, task, last.advertise())

    def reply(self, client_id, task, content):
        sha256 = self.clients[client_id].add_content(content)
        return MaskedAnswerReady(task=task, sha256=sha256, size=len(content))

    def make_update(self, client_id, task):
        update = super().make_update(client_id, task)
        if task.phase != PHASE_PERSONALIZE:
            self.updates.add(update.blob)
        return update

    def send(self, events):
        for event in events:
            assert not (isinstance(event, ChunkReceived) and event.payload in self.updates)
        super().send(events)

    def check_task(self, client_id, task):
        """The steps of a masked round have nonces of their own."""

    def check_acknowledged(self, client_id, receipt):
        """The answers to steps are not stored."""

    def carry_out(self, actions):
        for action in actions:
            if isinstance(action, SaveState):
                self.states[action.state.round] = action.state
            super().carry_out([action])

    def list_sums(self, state):
        """Yield the state after a round with the sum of any clients, of enough clients that shared keys."""
        weights = self.algorithm.broadcast(state, "").models["global"]
        updates = {
            client_id: Update(
                client_id=client_id,
                round=state.round,
                num_samples=count_samples(client_id),
                deltas={"global": compute_delta(client_id, state.round, weights)},
            )
            for client_id in self.clients
        }
        for size in range(LEAST_VECTORS, CLIENTS + 1):
            for chosen in combinations(updates, size):
                others = [client_id for client_id in updates if client_id not in chosen]
                cohort = sorted([*chosen, *others[: max(0, LEAST_CLIENTS - size)]])
                arrived = [updates[client_id] for client_id in chosen]
                means = average_masked(list_shapes({"global": weights}), arrived, cohort, "test")
                yield self.algorithm.aggregate(state, wrap_means(means, state.round))

    def check(self):
        state = self.memory.state
        assert state.phase == "done"
        self.states[ROUNDS + 1] = state
        for number in range(1, ROUNDS + 1):
            after = encode_models(self.states[number + 1].models)
            sums = (encode_models(each.models) for each in self.list_sums(self.states[number]))
            assert any(after == each for each in sums), f"round {number} is no sum over clients"
        personal = self.memory.accepted[state.round, PHASE_PERSONALIZE]
        assert {client_id for client_id, _ in personal} == set(self.ends)


def test_masked_federation_without_faults_sums_over_all_clients():
    network = MaskedNetwork()
    network.finish()
    network.check()
    assert network.starts == 1 and set(network.ends) == set(network.clients)
    assert load(next(iter(network.updates))), "updates were trained"


def test_aggregator_that_restarts_often_in_one_round_gets_its_sum():
    """It restarts as soon as the clients have announced their keys."""
    network = MaskedNetwork()
    for _ in range(3 * MAX_ATTEMPTS):
        network.play_until(lambda: len(network.attempts) == CLIENTS)
        network.attempts.clear()
        network.start_server()
    network.finish()
    assert not network.to_restart
    network.check()


def test_owner_restarts_a_client_that_sent_all_its_masked_vectors():
    """The aggregator ends as soon as a client has masked its update, so no attempt gives a sum."""
    network = MaskedNetwork()
    count = 0
    while not network.to_restart:
        network.play_until(lambda before=count: len(network.masked) > before or network.to_restart)
        count = len(network.masked)
        network.start_server()
    assert max(Counter(chain(*network.masked.values())).values()) == MAX_ATTEMPTS
    network.finish()
    network.check()


@given(schedule=steps)
@settings(
    max_examples=SCHEDULES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_any_schedule_of_a_masked_federation_ends_in_sums_over_clients(schedule):
    network = MaskedNetwork()
    for kind, index in schedule:
        network.step(kind, index)
    network.finish()
    network.check()

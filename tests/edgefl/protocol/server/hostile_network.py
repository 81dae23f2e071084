"""A federation in one process, with crashes and a network that reorders, repeats and loses messages."""

import hashlib
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np
from safetensors.numpy import load

from edgefl.base.errors import RoundError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import (
    PHASE_PERSONALIZE,
    complete_algorithm_options,
    make_algorithm,
    resolve_algorithm_options,
)
from edgefl.learning.algorithms.cohort import choose_task_clients
from edgefl.protocol.device.events import (
    AvailabilityChanged,
    BlobChunkReceived,
    BlobManifestReceived,
    EndParticipation,
    ReceiptReceived,
    SaveRound,
    StateReceived,
    Subscribe,
    TaskReceived,
    Unsubscribe,
)
from edgefl.protocol.server.events import (
    AggregateUpdates,
    BeginReceived,
    OpenRound,
    StateAggregated,
    Stop,
    WantReceived,
)
from edgefl.protocol.server.faulty_updates import aggregate_usable
from edgefl.protocol.server.round_server import RoundServer
from edgefl.protocol.server.server_algorithm import build_server_algorithm
from edgefl.protocol.server.tasks import derive_nonce
from edgefl.protocol.wire.machine_events import LinkRestored, Publish, TimePassed
from edgefl.protocol.wire.messages import Manifest, Receipt, State, Task
from edgefl.protocol.wire.tensors import encode_models
from edgefl.protocol.wire.topics import FederationTopics, matches_filter, parse_topic
from edgefl.simulation.in_memory_store import InMemoryStore
from edgefl.simulation.simulated_client import SimulatedClient, TrainedUpdate
from tests.support.numpy_learner.softmax import softmax_spec

WEIGHTS = {"head/kernel": np.zeros((4, 3), np.float32), "head/bias": np.zeros(3, np.float32)}
FINAL_STEPS = 6000
PLAN = b"plan"


def compute_delta(client_id, number, weights):
    """Return the delta of a client, which depends on the client, the round and the received weights."""
    rng = derive_rng(1, number, client_id)
    return {
        name: (0.1 * rng.standard_normal(weights[name].shape) + 0.01 * weights[name]).astype(np.float32)
        for name in sorted(weights)
    }


def count_samples(client_id):
    return 10 + int(client_id.removeprefix("c"))


def get_update_hash(event):
    """Return the sha256 of the update in an event."""
    return event.begin.sha256 if isinstance(event, BeginReceived) else event.sha256


def read_client_event(topic, message):
    """Return the event that a message of the server is for a client."""
    address = parse_topic(topic)
    match message:
        case State():
            return StateReceived(message)
        case Task():
            return TaskReceived(message)
        case Receipt():
            return ReceiptReceived(message)
        case Manifest():
            return BlobManifestReceived(message)
    return BlobChunkReceived(address.sha256, address.index, message)


class Crash(Exception):
    """A process ends before it has carried out all actions."""


class HostileNetwork:
    """One round server and its clients. Every message waits until it is delivered, in any order.

    Args:
        config: the federation.
        clients: number of clients.
        personalization: settings of the plan.
    """

    def __init__(self, config, clients, personalization=None):
        self.config = config
        self.lines = []
        name = config.algorithm
        options = resolve_algorithm_options(config)
        self.spec = softmax_spec(
            name,
            inputs=4,
            features=4,
            classes=3,
            options=complete_algorithm_options(name, options),
            personalization=personalization,
        )
        self.algorithm = build_server_algorithm(
            make_algorithm(name, None, self.spec.options), config, self.spec, key=b""
        )
        initial = self.algorithm.init(self.make_initial_weights(), derive_rng(1, 0, "init"))
        self.memory = InMemoryStore(initial)
        self.first_state = initial
        self.server_retained = {}
        """The retained messages of the server, by topic."""
        self.filters = defaultdict(set)
        """The topic filters of each client."""
        self.ends = {}
        """The session that each client saw end."""
        topics = FederationTopics(config.name)
        self.clients = {
            client_id: SimulatedClient(
                topics=topics,
                client_id=client_id,
                num_samples=count_samples(client_id),
                find_blob=lambda sha256: None,
                observe_action=partial(self.apply_client_action, client_id),
            )
            for client_id in (f"c{i}" for i in range(clients))
        }
        self.client_statuses = {}
        self.history = []
        self.to_server = []
        self.to_clients = []
        self.blobs = {}
        self.now = 0.0
        self.nonces = 0
        self.starts = 0
        self.crash_after = None
        self.client_crash_after = None
        self.acknowledged = defaultdict(set)
        self.start_server()
        for client in self.clients.values():
            self.connect(client)

    def make_initial_weights(self):
        named = {each.name: each.shape for each in self.spec.weights}
        return {name: np.full(shape, 0.5, np.float32) for name, shape in named.items()}

    # The server

    def start_server(self):
        self.starts += 1
        resume = self.memory.resume(self.config) if self.memory.opened or self.starts > 1 else None
        self.memory.crash()
        self.server = self.make_server(resume)
        self.crash_after = None
        self.carry_out(self.server.start(self.now))
        # The broker gives a new connection the retained status of each client
        self.to_server.extend(self.client_statuses.values())

    def make_server(self, resume):
        return RoundServer(
            config=self.config,
            spec=self.spec,
            plan=(hashlib.sha256(PLAN).hexdigest(), PLAN),
            algorithm=self.algorithm,
            state=self.first_state,
            session="session",
            started=self.starts,
            draw_cohort=lambda state, available: choose_task_clients(self.config, state, available),
            new_nonce=self.new_nonce,
            resume=resume,
        )

    def new_nonce(self):
        self.nonces += 1
        return f"{self.nonces:016x}"

    def handle(self, event):
        """Let the server handle an event. A server that ends with an error is started again."""
        if self.server.is_done:
            return
        try:
            self.carry_out(self.server.handle(event, self.now))
        except (Crash, RoundError):
            self.start_server()

    def carry_out(self, actions):
        for action in actions:
            if self.crash_after is not None:
                self.crash_after -= 1
                if self.crash_after < 0:
                    raise Crash
            if isinstance(action, OpenRound):
                key = action.opened.number, action.opened.phase
                assert key not in self.memory.opened, "a round is opened once"
            self.memory.apply(action)
            match action:
                case AggregateUpdates(state):
                    after = aggregate_usable(
                        self.algorithm, state, self.memory.list_clients(), self.memory.iterate_updates
                    )
                    self.carry_out(self.server.handle(StateAggregated(after), self.now))
                case Stop(error):
                    raise error
                case Publish():
                    self.publish(action)

    def publish(self, action):
        address = parse_topic(action.topic)
        message = action.message
        if address.kind == "blob" and message:
            self.blobs[address.sha256] = message
        if isinstance(message, Receipt) and message.outcome == "ok":
            self.check_acknowledged(address.client_id, message)
        if isinstance(message, Task):
            self.check_task(address.client_id, message)
        if action.is_retained:
            self.server_retained[action.topic] = message
        for client_id, filters in self.filters.items():
            if message and any(matches_filter(each, action.topic) for each in filters):
                self.to_clients.append((client_id, read_client_event(action.topic, message)))

    def check_acknowledged(self, client_id, receipt):
        """Assert that an update is stored before its client learns that it is."""
        committed = {
            begin.sha256 for accepted in self.memory.accepted.values() for begin in accepted.values()
        }
        assert receipt.sha256 in committed, "ok before the update was committed"
        self.acknowledged[client_id].add(receipt.sha256)

    def check_task(self, client_id, task):
        """Assert that a task belongs to a stored round and requests no update that was committed before."""
        opened = self.memory.opened.get((task.round, task.phase))
        assert opened is not None, "a task before its round was stored"
        assert task.nonce == derive_nonce(opened.nonce, client_id)
        assert (client_id, task.round) not in self.memory.accepted.get((task.round, task.phase), {})

    # The network

    def send(self, events):
        for event in events:
            if hasattr(event, "status"):
                self.client_statuses[event.status.client_id] = event
            elif not isinstance(event, WantReceived):
                self.history.append(event)
            self.to_server.append(event)

    def replay(self, index):
        """Send all messages of an earlier update once more."""
        if self.history:
            sha256 = get_update_hash(self.history[index % len(self.history)])
            self.to_server.extend(event for event in self.history if get_update_hash(event) == sha256)

    def apply_client_action(self, client_id, action):
        """Carry out the actions of a client that its driver does not carry out."""
        if self.client_crash_after is not None:
            self.client_crash_after -= 1
            if self.client_crash_after < 0:
                raise Crash
        match action:
            case Subscribe(filters=filters):
                self.filters[client_id].update(filters)
                self.send_retained(client_id, filters)
            case Unsubscribe(filters=filters):
                self.filters[client_id].difference_update(filters)
            case SaveRound(answered=answered):
                before = self.clients[client_id].saved.answered
                assert before is None or before.round <= answered.round, "rounds are answered in their order"
            case EndParticipation(session=session):
                self.ends[client_id] = session

    def send_retained(self, client_id, filters):
        """Send the retained messages of these topics, as the broker does for a new subscription."""
        for topic, message in self.server_retained.items():
            if message and any(matches_filter(each, topic) for each in filters):
                self.to_clients.append((client_id, read_client_event(topic, message)))

    def connect(self, client):
        self.run_client(client, lambda: client.connect(self.now))
        self.send_retained(client.client_id, self.filters[client.client_id])

    def restart(self, client):
        self.send(client.disconnect())
        client.restart()
        self.filters[client.client_id].clear()
        self.client_crash_after = None
        self.connect(client)

    def run_client(self, client, work):
        """Let a client work, and send its messages. A client that crashes is started again."""
        try:
            self.send(work())
        except Crash:
            self.restart(client)

    def deliver_to_client(self, client_id, event):
        client = self.clients[client_id]
        if client.is_online:
            self.run_client(client, lambda: client.handle(event, self.now))

    def train(self, client):
        """Let a client complete its training."""
        if client.training:
            update = self.make_update(client.client_id, client.training.task)
            self.run_client(client, lambda: client.finish_training(update, self.now))

    def make_update(self, client_id, task):
        """Return the answer of a client to a task."""
        if task.phase == PHASE_PERSONALIZE:
            return TrainedUpdate(encode_models({}), count_samples(client_id), {"accuracy": 0.5})
        weights = load(self.blobs[task.models["global"]])
        delta = {"global": compute_delta(client_id, task.round, weights)}
        return TrainedUpdate(encode_models(delta), count_samples(client_id), {"loss": 1.0})

    def step(self, kind, index):
        """Play one step of a schedule."""
        clients = list(self.clients.values())
        client = clients[index % len(clients)]
        match kind:
            case "to server" if self.to_server:
                self.handle(self.to_server.pop(index % len(self.to_server)))
            case "to client" if self.to_clients:
                self.deliver_to_client(*self.to_clients.pop(index % len(self.to_clients)))
            case "drain":
                for _ in range(len(self.to_server)):
                    self.handle(self.to_server.pop(0))
                for _ in range(len(self.to_clients)):
                    self.deliver_to_client(*self.to_clients.pop(0))
            case "repeat" if self.to_server:
                self.handle(self.to_server[index % len(self.to_server)])
            case "repeat to client" if self.to_clients:
                self.deliver_to_client(*self.to_clients[index % len(self.to_clients)])
            case "replay":
                self.replay(index)
            case "lose" if self.to_server:
                self.to_server.pop(index % len(self.to_server))
            case "lose to client" if self.to_clients:
                self.to_clients.pop(index % len(self.to_clients))
            case "train":
                self.train(client)
            case "disconnect" if client.is_online:
                self.send(client.disconnect())
            case "connect" if not client.is_online:
                self.connect(client)
            case "pause":
                self.deliver_to_client(client.client_id, AvailabilityChanged("on battery"))
            case "resume":
                self.deliver_to_client(client.client_id, AvailabilityChanged(""))
            case "restart client":
                self.restart(client)
            case "crash client":
                self.client_crash_after = index % 6
            case "time":
                self.now += (index % 100) / 10
                self.pass_time()
            case "crash":
                self.crash_after = index % 6
            case "restart server" if not self.server.is_done:
                self.start_server()
            case "link":
                self.handle(LinkRestored())

    def pass_time(self):
        self.handle(TimePassed())
        for client in self.clients.values():
            if client.is_online:
                self.run_client(client, lambda client=client: client.handle_timer(self.now))

    def finish(self):
        """Play without faults until the federation is complete."""
        self.crash_after = self.client_crash_after = None
        for client in self.clients.values():
            if not client.is_online:
                self.connect(client)
            self.deliver_to_client(client.client_id, AvailabilityChanged(""))
        # A status is lost only together with the connection, and the broker sends it again afterwards
        self.handle(LinkRestored())
        self.to_server.extend(self.client_statuses.values())
        self.play_until(lambda: self.server.is_done and not self.to_clients)

    def play_until(self, condition):
        """Play without faults until a condition holds."""
        for _ in range(FINAL_STEPS):
            if condition():
                return
            self.play_next()
        raise AssertionError("the federation does not end, or does not come to this point")

    def play_next(self):
        """Deliver the next message, or let clients train, or pass time until something happens."""
        if self.to_server and not self.server.is_done:
            self.handle(self.to_server.pop(0))
        elif self.to_clients:
            self.deliver_to_client(*self.to_clients.pop(0))
        elif any(client.training for client in self.clients.values()):
            for client in self.clients.values():
                self.train(client)
        else:
            changes = [
                self.server.get_timer(),
                *(client.machine.get_timer() for client in self.clients.values()),
            ]
            self.now = max(self.now, min(changes))
            assert self.now < float("inf"), "nothing will happen any more"
            self.pass_time()

    # Final checks

    def check(self):
        """Assert that the state follows from the journal, and that all acknowledged updates are stored."""
        state = self.first_state
        states = {}
        accepted_by_client = defaultdict(set)
        while state.round <= self.config.rounds:
            states[state.round] = state
            opened = self.memory.opened[state.round, state.phase]
            accepted = self.memory.accepted.get((state.round, state.phase), {})
            assert opened.is_closed
            updates = []
            for (client_id, answers), begin in sorted(accepted.items()):
                weights = self.algorithm.broadcast(states[answers], client_id).models["global"]
                delta = {"global": compute_delta(client_id, answers, weights)}
                assert hashlib.sha256(encode_models(delta)).hexdigest() == begin.sha256
                assert 0 <= state.round - answers <= self.config.staleness, "too old"
                assert (client_id, answers) not in accepted_by_client[client_id], "an answer counts once"
                accepted_by_client[client_id].add((client_id, answers))
                updates.append(
                    Update(
                        client_id=client_id,
                        round=answers,
                        num_samples=count_samples(client_id),
                        deltas=delta,
                        metrics=begin.metrics,
                    )
                )
            state = self.algorithm.aggregate(state, iter(updates))
        assert self.memory.state.phase == "done"
        assert self.memory.state.round == state.round
        for name, array in state.models["global"].items():
            assert self.memory.state.models["global"][name].tobytes() == array.tobytes()
        assert len(self.memory.losses) == self.config.rounds
        personal = self.memory.accepted[state.round, PHASE_PERSONALIZE]
        stored_hashes = {
            begin.sha256 for accepted in self.memory.accepted.values() for begin in accepted.values()
        }
        assert all(acknowledged <= stored_hashes for acknowledged in self.acknowledged.values())
        for client_id, _ in personal:
            answered = self.clients[client_id].saved.answered
            assert answered.phase == PHASE_PERSONALIZE and self.ends[client_id] == answered.session
        return replace(state, phase="done"), personal

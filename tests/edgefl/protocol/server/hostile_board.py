"""A federation in one process in which some enrolled boards answer every task with generated valid messages.

"Valid" means that a message has the fields and the signature that the protocol asks for. Its content is the
board's own.
"""

import json
from dataclasses import asdict, dataclass, field

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import load

from edgefl.base.config import FederationConfig
from edgefl.base.errors import WireError
from edgefl.base.system.files import to_json_value
from edgefl.learning.algorithms import PHASE_PERSONALIZE
from edgefl.learning.algorithms.names import COMPARE_SCALAR
from edgefl.protocol.server.events import BeginReceived, CloseRound, CommitUpdates, MessageInvalid
from edgefl.protocol.wire.messages import Begin
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.protocol.wire.tensors import encode_models
from edgefl.simulation.simulated_client import TrainedUpdate
from tests.edgefl.protocol.server.hostile_network import HostileNetwork, compute_delta, count_samples

PERSONALIZATION = {"select": True, "baseline": True}
HONEST_BOARDS = 3
VALUES = (0.0, -0.0, 1.0, -1.0, 1e-38, 1e6, 3e38, -3e38)
COUNTS = (1, 10, 100_000, 100_001, 0, -1, 2**53, 2**63 - 1)
NAMES = (
    *("loss", "validation_loss", "accuracy", "r2", "auc", "accuracy_shipped", "r2_shipped", "auc_shipped"),
    *("accuracy_local", "accuracy_mixture", "id", "num_samples", "client_id", "shipped", "expert", "seconds"),
    *(
        "score_local",
        "score_federated",
        "score_fine_tuned",
        "score_mixture",
        "blend_local",
        "blend_fine_tuned",
        "epochs",
        "q/0",
        "q/1",
        "n_test",
    ),
    *("test_gained", "test_lost", "gate/0", "", "\x7f" * 1000, "é" * 1000, "\u202e", "__class__"),
)
FIGURES = (0.0, -1.0, 0.5, 1.0, 1.5, 4.0, -24999930.0, 2.0**53, 1e300, -1e300, float("nan"), 1e-320)


@dataclass(frozen=True)
class Answer:
    """How a hostile board answers a task.

    Attributes:
        models: bit i: whether it sends the model i of the task, sorted by name.
        extra: another model that it sends, or an empty string.
        value: the value of all weights.
        samples: its number of samples.
        metrics: its figures.
        many: whether it reports many more figures with long names.
        blob: replaces the tensors, or None.
        times: number of times that it sends the messages.
    """

    models: int = 0
    extra: str = ""
    value: float = 0.0
    samples: int = 10
    metrics: dict = field(default_factory=dict)
    many: bool = False
    blob: bytes | None = None
    times: int = 1


answers = st.lists(
    st.builds(
        Answer,
        st.sampled_from([1, 3, 2, 0, *range(4, 64)]),
        st.sampled_from(["", "", "", "global", "expert0", "expert9", "phi", "local_start", "x"]),
        st.sampled_from(VALUES),
        st.sampled_from([*COUNTS[:3] * 4, *COUNTS]),
        st.dictionaries(
            st.one_of(st.sampled_from(NAMES), st.text(max_size=5)),
            st.one_of(st.sampled_from(FIGURES), st.floats(allow_infinity=False)),
            max_size=12,
        ),
        st.sampled_from([False, False, False, True]),
        st.one_of(st.none(), st.none(), st.none(), st.binary(max_size=40)),
        st.sampled_from([1, 1, 1, 3]),
    ),
    min_size=1,
    max_size=6,
)


class BoardNetwork(HostileNetwork):
    """A federation of `HONEST_BOARDS` honest boards and some hostile boards.

    Args:
        algorithm: name of the algorithm.
        hostile: the answers of each hostile board to its tasks, in turn.
        restart_every: number of messages after which the server restarts the first time. Each later run
            handles one more. 0: it does not restart.
        changes: other settings of the federation.
    """

    def __init__(self, algorithm, hostile, restart_every=0, **changes):
        self.closed = []
        self.restart_every = restart_every
        self.handled = 0
        count = HONEST_BOARDS + len(hostile)
        # The ids of hostile boards come first and last
        ids = [f"c{i}" for i in range(count)]
        self.hostile = dict(zip((ids[0], ids[-1]), hostile, strict=False))
        self.honest = sorted(set(ids) - set(self.hostile))
        self.turns = dict.fromkeys(self.hostile, 0)
        self.repeats = {}
        values = {"rounds": 3, "min_clients": count, "seed": 5, "deadline_s": 20.0, "quorum": 0.5} | changes
        super().__init__(FederationConfig(algorithm=algorithm, **values), count, PERSONALIZATION)

    def handle(self, event):
        """Let the server handle an event. No error may end it."""
        if self.server.is_done:
            return
        self.carry_out(self.server.handle(event, self.now))
        self.handled += 1
        if self.handled == self.restart_every and not self.server.is_done:
            self.start_server()
            # A round needs about 23 messages, so a server that always restarts earlier makes no progress
            self.handled = 0
            self.restart_every += 1

    def carry_out(self, actions):
        for action in actions:
            match action:
                case CommitUpdates(begins=begins):
                    for begin in begins:  # as the journal stores and reads it
                        assert decode_json(Begin, encode_json(begin)).client_id == begin.client_id
                case CloseRound():
                    self.closed.append(action)
            super().carry_out([action])

    def check_task(self, client_id, task):
        """A board that is not in a cluster yet may get a task of the clustering later."""
        assert task.round in {number for number, _ in self.memory.opened}

    def send(self, events):
        sent = [self.pass_through_json(event) for event in events]
        repeats = max([self.repeats.get(get_sender(event), 1) for event in sent], default=1)
        for _ in range(repeats):
            super().send(sent)

    def pass_through_json(self, event):
        """Return an event as the driver reads it from a message of this board."""
        if not (isinstance(event, BeginReceived) and event.begin.client_id in self.hostile):
            return event
        begin = event.begin
        fields = to_json_value(asdict(begin))
        # A hostile board may write Infinity, which strict JSON lacks
        fields["metrics"] = {name: None if value != value else value for name, value in begin.metrics.items()}
        try:
            return BeginReceived(decode_json(Begin, json.dumps(fields, ensure_ascii=False).encode()))
        except WireError as error:
            return MessageInvalid(begin.client_id, str(error), begin.sha256)

    def make_update(self, client_id, task):
        if client_id in self.hostile:
            return self.make_hostile_update(client_id, task)
        number = int(client_id.removeprefix("c"))
        samples = count_samples(client_id)
        if task.phase == PHASE_PERSONALIZE:
            return TrainedUpdate(encode_models({}, task.codec), samples, make_honest_result(number))
        trained = self.algorithm.trained
        choices = [name for name in trained.choices if name in task.models]
        names = [*trained.required, *choices[: trained.min_choices]]
        deltas = {
            name: compute_delta(client_id, task.round, load(self.blobs[task.models[name]])) for name in names
        }
        metrics = {"loss": 1.0 + number / 100 - task.round / 10, "accuracy": 0.5 + number / 100}
        if COMPARE_SCALAR in task.scalars:
            metrics |= {"score_local": 0.5, "score_fine_tuned": 0.6, "score_mixture": 0.7 + number / 100}
            metrics |= {"blend_local": 0.3 + number / 100, "blend_fine_tuned": 0.7 - number / 100}
        return TrainedUpdate(encode_models(deltas, task.codec), samples, metrics)

    def make_hostile_update(self, client_id, task):
        plans = self.hostile[client_id]
        answer = plans[self.turns[client_id] % len(plans)]
        self.turns[client_id] += 1
        self.repeats[client_id] = answer.times
        deltas = {}
        for i, name in enumerate(sorted(task.models)):
            if answer.models >> i & 1:
                model = load(self.blobs[task.models[name]])
                deltas[name] = {key: np.full_like(array, answer.value) for key, array in model.items()}
        if answer.extra:
            deltas[answer.extra] = {"w": np.full(3, answer.value, np.float32)}
        blob = encode_models(deltas, task.codec) if answer.blob is None else answer.blob
        many = {f"{i}" + "\x7f" * 900: 1.0 for i in range(30)} if answer.many else {}
        return TrainedUpdate(blob, answer.samples, answer.metrics | many)


def get_sender(event):
    """Return the client that sent an event."""
    if isinstance(event, BeginReceived):
        return event.begin.client_id
    return event.status.client_id if hasattr(event, "status") else event.client_id


def make_honest_result(number):
    """Return the figures of an honest board after its personalization."""
    return {
        "accuracy_local": 0.5,
        "accuracy_federated": 0.6,
        "accuracy_shipped": 0.8 + number / 100,
        "shipped": 3.0,
        "test_gained": 6.0,
        "test_lost": 0.0,
        "n_test": 20.0,
        "n_train": 10.0,
    }

"""What each client is asked to do in a round: its broadcast as blobs by hash, and what its answer may
hold.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from edgefl.algorithms import PHASE_PERSONALIZE, Algorithm
from edgefl.config import FederationConfig
from edgefl.errors import WireError
from edgefl.plan.spec import TensorSpec
from edgefl.server.packed_metrics import PackedMetrics
from edgefl.types import Broadcast, ServerState, Weights
from edgefl.wire.messages import Begin, Task
from edgefl.wire.tensors import bound_models_size, encode_weights, list_specs

ExpectedTensors = Mapping[str, tuple[TensorSpec, ...]]
"""The tensors that an update may hold, by model."""
GRANTED_BYTES = 8 * 1024 * 1024
"""So much of a round's updates may come unasked: the first clients that are told of the round need not ask
for a slot.
"""


@dataclass(frozen=True, slots=True)
class ClientTask:
    """One client's task.

    `expected`: the tensors an update may hold, by model; `limit`: its largest size in bytes.

    take: what becomes of an answer that is no such update, WireError when it is none either; before: the
    sha256 of answers that were taken in earlier exchanges of the round.
    """

    task: Task
    expected: ExpectedTensors
    limit: int
    read_answer: Callable[[Begin, bytes], None] | None = None
    earlier_answers: frozenset[str] = frozenset()


def list_expected_tensors(
    broadcast: Broadcast, specs: Callable[[Weights], tuple[TensorSpec, ...]] = list_specs
) -> ExpectedTensors:
    """Return the tensors that the answer to a broadcast may hold.

    A personalization is answered with metrics alone: a client's personal model stays on its device.

    Args:
        broadcast: what the client receives.
        specs: returns name and shape of each tensor of a model.
    """
    if broadcast.phase == PHASE_PERSONALIZE:
        return {}
    return {name: specs(weights) for name, weights in broadcast.models.items()}


@lru_cache(64)
def _intern_number(number: int) -> int:
    """Return the number, the same object for all who say it: each message that is read has one of its own."""
    return number


def derive_nonce(nonce: str, client_id: str) -> str:
    """Return a client's nonce of a round: nobody can make it of another client's."""
    return hashlib.sha256(f"{nonce} {client_id}".encode()).hexdigest()[:16]


def validate_announcement(
    begin: Begin, client_task: ClientTask, nonce: str | None, max_samples: int
) -> Begin:
    """Return what is kept for the round of an update's announcement: what all clients say alike once, and no
    signature.

    Raises WireError unless it answers this round's task, which said `nonce`, and counts samples that it may
    have.
    """
    if nonce is None or begin.nonce != nonce:
        raise WireError(
            f"the nonce {begin.nonce[:16]!r} is not this round's: a replayed update; answer the task that "
            "was sent last"
        )
    if client_task.expected and not 1 <= begin.num_samples <= max_samples:
        raise WireError(
            f"num_samples is {begin.num_samples}, expected 1 to {max_samples}; "
            "give the device a shard, or raise max_samples of [federation]"
        )
    if begin.chunk_bytes != client_task.task.chunk_bytes:
        raise WireError(
            f"the update comes in chunks of {begin.chunk_bytes} bytes, expected the task's "
            f"{client_task.task.chunk_bytes}; update the device"
        )
    return replace(
        begin,
        client_id=sys.intern(begin.client_id),
        session=client_task.task.session,
        plan=client_task.task.plan,
        nonce=nonce,
        signature="",
        size=_intern_number(begin.size),
        chunk_bytes=_intern_number(begin.chunk_bytes),
        num_samples=_intern_number(begin.num_samples),
        metrics=PackedMetrics(begin.metrics),
    )


class StepTasks:
    """The briefs of one exchange of a masked round.

    `make` is asked once a client. over: the nonces of the exchanges before it.
    """

    def __init__(
        self,
        nonces: Mapping[int, str],
        make: Callable[[str], ClientTask],
        past_nonces: frozenset[str] = frozenset(),
    ) -> None:
        self.nonces = nonces
        self.past_nonces = past_nonces
        self._make = make
        self._client_tasks: dict[str, ClientTask] = {}

    def find_nonce(self, round: int, client_id: str) -> str | None:
        """Return the nonce that an answer must bear, None when no answer to this round is expected."""
        return self.nonces.get(round)

    def prepare(self, client_id: str) -> ClientTask:
        """Return the client's brief, the same whenever it is asked for."""
        if client_id not in self._client_tasks:
            self._client_tasks[client_id] = self._make(client_id)
        return self._client_tasks[client_id]


class RoundTasks:
    """Makes the briefs of one round; a model that many clients get is encoded and offered once."""

    def __init__(
        self,
        algorithm: Algorithm,
        state: ServerState,
        config: FederationConfig,
        *,
        session: str,
        plan: str,
        nonces: Mapping[int, str],
        max_staleness: int,
        offer: Callable[[str, bytes], None],
        started: int = 0,
        deadline_s: float = 0.0,
    ) -> None:
        """`nonces`: of this round, and of those before it that a late update may answer.

        deadline_s: of this round, in seconds; 0 for `deadline_s` of the configuration.
        """
        self._algorithm = algorithm
        self._state = state
        self._config = config
        self._offer = offer
        self._session = session
        self._started = started
        self._deadline_s = deadline_s or config.deadline_s
        self._plan = plan
        self.nonces = nonces
        self._max_staleness = max_staleness
        self._client_tasks: dict[str, ClientTask] = {}
        self._grantable = GRANTED_BYTES
        self._shared: dict[object, ClientTask] = {}
        # the weights are kept beside their hash: an id is only unique while its object lives
        self._hashes: dict[int, tuple[Weights, str]] = {}
        self._specs: dict[int, tuple[TensorSpec, ...]] = {}

    @property
    def state(self) -> ServerState:
        """The state that the round began with."""
        return self._state

    def find_nonce(self, round: int, client_id: str) -> str | None:
        """Return the nonce that a client's answer must bear, None when no answer to this round is
        expected.
        """
        nonce = self.nonces.get(round)
        return None if nonce is None else derive_nonce(nonce, client_id)

    def prepare(self, client_id: str) -> ClientTask:
        """Return the client's brief, the same whenever it is asked for; its blobs are on offer then."""
        if client_id not in self._client_tasks:
            config = self._config
            broadcast = self._algorithm.broadcast(self._state, client_id)
            models: Mapping[str, str] = {
                name: self._hash(weights) for name, weights in broadcast.models.items()
            }
            expected = list_expected_tensors(broadcast, lambda weights: self._specs[id(weights)])
            limit = 64 + (bound_models_size(expected, config.codec) if expected else 0)
            granted = limit <= self._grantable
            self._grantable -= limit * granted
            # hundreds of clients that are told the same share it
            key = (
                broadcast.phase,
                broadcast.round,
                tuple(models.items()),
                tuple(broadcast.scalars.items()),
                granted,
            )
            if key not in self._shared:
                task = Task(
                    self._session,
                    broadcast.round,
                    broadcast.phase,
                    self._plan,
                    models,
                    broadcast.scalars,
                    config.seed,
                    self._deadline_s,
                    config.codec,
                    self._max_staleness,
                    config.budget_s,
                    self.nonces[broadcast.round],
                    time.time(),
                    granted=granted,
                    started=self._started,
                    chunk_bytes=config.chunk_bytes,
                    settings=config.task_settings,
                )
                self._shared[key] = ClientTask(task, expected, limit)
            shared = self._shared[key]
            nonce = derive_nonce(self.nonces[broadcast.round], client_id)
            self._client_tasks[client_id] = replace(shared, task=replace(shared.task, nonce=nonce))
        return self._client_tasks[client_id]

    def _hash(self, weights: Weights) -> str:
        if id(weights) not in self._hashes:
            content = encode_weights(weights)
            sha256 = hashlib.sha256(content).hexdigest()
            self._hashes[id(weights)] = (weights, sha256)
            self._specs[id(weights)] = list_specs(weights)
            self._offer(sha256, content)
        return self._hashes[id(weights)][1]

    def list_blobs(self) -> set[str]:
        """Return the hashes of all models on offer."""
        return {sha256 for _, sha256 in self._hashes.values()}


TaskSource = RoundTasks | StepTasks
"""What a round asks of clients."""

"""The tasks of a round: each client's broadcast as blobs, and the tensors that its answer may hold."""

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from edgefl.base.config import FederationConfig
from edgefl.base.errors import WireError
from edgefl.base.types import Broadcast, ServerState, Weights
from edgefl.learning.algorithms import PHASE_PERSONALIZE, Algorithm, TrainedModels
from edgefl.learning.algorithms.base import NO_MODELS
from edgefl.program.plan.spec import TensorSpec
from edgefl.protocol.server.packed_metrics import PackedMetrics
from edgefl.protocol.server.reported_figures import limit_figures
from edgefl.protocol.wire.messages import Begin, Task
from edgefl.protocol.wire.tensors import bound_models_size, encode_weights, list_specs

ExpectedTensors = Mapping[str, tuple[TensorSpec, ...]]
"""The tensors that an update may hold, by model."""
GRANTED_BYTES = 8 * 1024 * 1024
"""Maximum size of a round's updates that may be sent without a request. The first clients that get a task
need not ask for an upload slot.
"""


@dataclass(frozen=True, slots=True)
class ClientTask:
    """The task of one client.

    Attributes:
        task: the message.
        expected: the tensors of the models of the broadcast, by model. Empty if an answer holds no tensors.
        limit: maximum size of the answer in bytes.
        trained: the models whose deltas the answer holds.
        read_answer: reads an answer that is not an update, in a step of a masked round. It raises WireError
            for an answer that cannot be used. None when the answer is an update.
        earlier_answers: sha256 of the answers that were accepted in earlier steps of the round.
    """

    task: Task
    expected: ExpectedTensors
    limit: int
    trained: TrainedModels = NO_MODELS
    read_answer: Callable[[Begin, bytes], None] | None = None
    earlier_answers: frozenset[str] = frozenset()


def list_expected_tensors(
    broadcast: Broadcast, specs: Callable[[Weights], tuple[TensorSpec, ...]] = list_specs
) -> ExpectedTensors:
    """Return the tensors that the answer to a broadcast may hold, by model.

    A personalization is answered with metrics alone, because a client's personal model stays on its device.

    Args:
        broadcast: the data that the client receives.
        specs: returns name, shape and dtype of each tensor of a model.
    """
    if broadcast.phase == PHASE_PERSONALIZE:
        return {}
    return {name: specs(weights) for name, weights in broadcast.models.items()}


@lru_cache(64)
def _intern_number(number: int) -> int:
    """Return one shared object for equal numbers, to save memory. Every decoded message has its own
    objects.
    """
    return number


def derive_nonce(nonce: str, client_id: str) -> str:
    """Return a client's nonce of a round. It cannot be computed from another client's nonce.

    Args:
        nonce: the secret of the round.

    Returns:
        16 hexadecimal digits.
    """
    return hashlib.sha256(f"{nonce} {client_id}".encode()).hexdigest()[:16]


def validate_announcement(
    begin: Begin, client_task: ClientTask, nonce: str | None, max_samples: int
) -> Begin:
    """Return an announced update in the form that is stored for the round, if it answers the round's task.

    Its metrics are limited to their ranges, see `edgefl.protocol.server.reported_figures`. Values that all
    clients send alike are shared, and the signature is removed, to save memory.

    Args:
        begin: the announcement.
        nonce: the nonce of the task. None when no answer is expected.
        max_samples: maximum number of samples that a client may report.

    Raises:
        WireError: the nonce, the number of samples or the chunk size is not as expected.
    """
    if nonce is None or begin.nonce != nonce:
        raise WireError(
            f"the nonce {begin.nonce[:16]!r} is not this round's: a replayed update; answer the task that "
            "was sent last"
        )
    least = 1 if client_task.expected else 0
    if not least <= begin.num_samples <= max_samples:
        raise WireError(
            f"num_samples is {begin.num_samples}, expected {least} to {max_samples}; "
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
        metrics=PackedMetrics(limit_figures(begin.metrics, max_samples)),
    )


class StepTasks:
    """Makes the tasks of one step of a masked round.

    Args:
        nonces: the nonce of the step, by round.
        make: makes a client's task. It is called once for each client.
        past_nonces: the nonces of earlier steps.
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
        """Return the nonce that an answer must carry, or None when no answer to this round is expected.

        Args:
            round: number of the round that the answer names.
            client_id: not used, because all clients of a step have the same nonce.
        """
        return self.nonces.get(round)

    def prepare(self, client_id: str) -> ClientTask:
        """Return the client's task, the same on every call."""
        if client_id not in self._client_tasks:
            self._client_tasks[client_id] = self._make(client_id)
        return self._client_tasks[client_id]


class RoundTasks:
    """Makes the tasks of one round. A model that many clients get is encoded and offered once.

    Args:
        algorithm: makes the broadcast of each client.
        state: the server state that the round begins with.
        session: the name of this start of the federation.
        plan: the sha256 of the plan, in hexadecimal.
        nonces: the nonce of this round and of earlier rounds that a late update may answer, by round.
        max_staleness: how many rounds later an update is still accepted.
        offer: offers a blob by its sha256.
        started: orders the runs of an aggregator, in milliseconds since 1970.
        deadline_s: deadline of this round in seconds. 0 takes `deadline_s` of the configuration.
    """

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
        # The weights are stored with their hash, because an id is only unique while its object lives
        self._hashes: dict[int, tuple[Weights, str]] = {}
        self._specs: dict[int, tuple[TensorSpec, ...]] = {}

    @property
    def state(self) -> ServerState:
        """The server state that the round began with."""
        return self._state

    def find_nonce(self, round: int, client_id: str) -> str | None:
        """Return the nonce that a client's answer must carry, or None.

        None means that no answer to this round is expected. Each client has its own nonce.

        Args:
            round: number of the round that the answer names.
        """
        nonce = self.nonces.get(round)
        return None if nonce is None else derive_nonce(nonce, client_id)

    def prepare(self, client_id: str) -> ClientTask:
        """Return the client's task, the same on every call, and offer its blobs."""
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
            # Hundreds of clients with the same task share it
            key = (
                broadcast.phase,
                broadcast.round,
                tuple(models.items()),
                tuple(broadcast.scalars.items()),
                granted,
            )
            if key not in self._shared:
                task = Task(
                    session=self._session,
                    round=broadcast.round,
                    phase=broadcast.phase,
                    plan=self._plan,
                    models=models,
                    scalars=broadcast.scalars,
                    seed=config.seed,
                    deadline_s=self._deadline_s,
                    codec=config.codec,
                    max_staleness=self._max_staleness,
                    budget_s=config.budget_s,
                    nonce=self.nonces[broadcast.round],
                    ts=0.0,  # The driver sets it
                    granted=granted,
                    started=self._started,
                    chunk_bytes=config.chunk_bytes,
                    settings=config.task_settings,
                )
                trained = self._algorithm.trained if expected else NO_MODELS
                self._shared[key] = ClientTask(task=task, expected=expected, limit=limit, trained=trained)
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
        """Return the sha256 of every model on offer."""
        return {sha256 for _, sha256 in self._hashes.values()}


TaskSource = RoundTasks | StepTasks
"""Makes the tasks of a round, or of one step of a masked round."""

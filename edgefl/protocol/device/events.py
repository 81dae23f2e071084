"""The events that the client machine handles, and the actions that it returns.

Both are plain records. A driver makes events from messages and carries out actions in order. An action is
complete before the next action begins. The driver adds times of day and signatures, and it checks the
signatures of received messages, because the machine has no clock, link, files or learner.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from edgefl.base.errors import EdgeflError
from edgefl.protocol.wire.machine_events import LinkLoad, LinkRestored, Publish, TimePassed
from edgefl.protocol.wire.messages import Claim, Manifest, Receipt, State, Status, Task

# Records


@dataclass(frozen=True)
class Answer:
    """The encoded answer of a client to a task or a step. The driver holds its bytes until the next answer.

    Attributes:
        sha256: digest of the bytes in hex.
        size: number of bytes.
        num_samples: number of samples by which the aggregator weights the answer.
        metrics: metrics of the answer, by name.
    """

    sha256: str
    size: int
    num_samples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class AnsweredRound:
    """The last round that a client trained or personalized in.

    Attributes:
        session: id of the session.
        round: number of the round.
        phase: phase of the round.
        answer: the answer of the client.
    """

    session: str
    round: int
    phase: str
    answer: Answer

    def is_answer_to(self, task: Task) -> bool:
        """Return whether this round answers a task.

        The phase is compared too, because a round may have a task to train and a task to personalize.
        """
        return (self.session, self.round, self.phase) == (task.session, task.round, task.phase)


@dataclass(frozen=True)
class NewestRound:
    """The newest run of an aggregator and its newest round that a client accepted.

    Attributes:
        session: id of the session.
        started: start of the run in milliseconds since 1970.
        round: number of the round.
        masked: whether the session masks updates.
    """

    session: str
    started: int
    round: int
    masked: bool


@dataclass(frozen=True)
class SavedClient:
    """What a client stored before its last stop.

    Attributes:
        answered: the last answered round. None before the first.
        pending: the task of an update that the aggregator has not accepted yet and may accept late, or None.
        newest: the newest accepted run and round, or None.
        masked_sessions: the newest sessions for which the client masked an update.
    """

    answered: AnsweredRound | None = None
    pending: Task | None = None
    newest: NewestRound | None = None
    masked_sessions: tuple[str, ...] = ()


# Events


@dataclass(frozen=True, slots=True)
class StateReceived:
    """The aggregator published the state of the federation."""

    state: State


@dataclass(frozen=True, slots=True)
class TaskReceived:
    """The aggregator sent this client a task, or a step of a masked round."""

    task: Task


@dataclass(frozen=True, slots=True)
class ReceiptReceived:
    """The aggregator answered an update of this client."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class SameIdStatusReceived:
    """The broker delivered a status with the id of this client."""

    status: Status


@dataclass(frozen=True, slots=True)
class ClaimReceived:
    """A starting client asks whether its id is in use."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class BlobManifestReceived:
    """The manifest of a blob arrived."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class BlobChunkReceived:
    """One chunk of a blob arrived.

    Attributes:
        sha256: digest of the blob in hex.
        index: number of the chunk, from 0.
        payload: bytes of the chunk.
    """

    sha256: str
    index: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class CacheRead:
    """The driver carried out `ReadCache`.

    Attributes:
        digests: the digests of the action.
        blobs: the blobs that the client already has, by sha256.
    """

    digests: tuple[str, ...]
    blobs: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class AvailabilityChanged:
    """The conditions of the owner, or the pause by the operator, changed.

    Attributes:
        reason: why the client accepts no task, empty if it accepts tasks.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class PlanOpened:
    """The driver carried out `OpenPlan`: the plan can be trained on the samples of this client.

    Attributes:
        sha256: digest of the plan in hex.
        max_model_bytes: maximum size of an encoded model of the plan in bytes.
    """

    sha256: str
    max_model_bytes: int


@dataclass(frozen=True, slots=True)
class PlanRefused:
    """The driver could not carry out `OpenPlan`, or the plan failed later.

    Attributes:
        sha256: digest of the plan in hex.
        reason: what was found, what is expected, and the remedy.
    """

    sha256: str
    reason: str


@dataclass(frozen=True, slots=True)
class Trained:
    """The driver carried out `Train`.

    Attributes:
        task: the task.
        answer: the answer to the task.
    """

    task: Task
    answer: Answer


def make_answered_round(event: Trained) -> AnsweredRound:
    """Return the round that a client answered.

    Args:
        event: the end of its training.
    """
    task = event.task
    return AnsweredRound(session=task.session, round=task.round, phase=task.phase, answer=event.answer)


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    """The driver could not carry out `Train` or `BeginAttempt`.

    Attributes:
        task: the task.
        reason: what was found, what is expected, and the remedy.
        has_diverged: whether the training loss is not a finite number.
    """

    task: Task
    reason: str
    has_diverged: bool = False


@dataclass(frozen=True, slots=True)
class PackageMissing:
    """The client lacks a package that the task needs. Somebody may install it.

    Attributes:
        task: the task.
        reason: what is missing and how to install it.
    """

    task: Task
    reason: str


@dataclass(frozen=True, slots=True)
class MaskedAnswerReady:
    """The driver carried out `BeginAttempt` or `AnswerStep`.

    Attributes:
        task: the masked task or the step.
        sha256: digest of the answer in hex.
        size: number of bytes of the answer. 0 if this client cannot take part in the step.
    """

    task: Task
    sha256: str
    size: int


ClientEvent = (
    StateReceived
    | TaskReceived
    | ReceiptReceived
    | SameIdStatusReceived
    | ClaimReceived
    | BlobManifestReceived
    | BlobChunkReceived
    | CacheRead
    | AvailabilityChanged
    | PlanOpened
    | PlanRefused
    | Trained
    | TrainingFailed
    | PackageMissing
    | MaskedAnswerReady
    | LinkRestored
    | LinkLoad
    | TimePassed
)

# Actions


@dataclass(frozen=True, slots=True)
class PublishChunk:
    """Publish one chunk of an answer.

    Attributes:
        topic: the topic.
        sha256: digest of the answer in hex.
        index: number of the chunk, from 0.
        chunk_bytes: size in bytes of every chunk but the last.
    """

    topic: str
    sha256: str
    index: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe to topics.

    Attributes:
        filters: topic filters.
        qos: maximum quality of service.
        is_acknowledged: whether the driver waits until the broker has acknowledged the subscription.
    """

    filters: tuple[str, ...]
    qos: int
    is_acknowledged: bool


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End subscriptions.

    Attributes:
        filters: topic filters.
    """

    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadCache:
    """Look for blobs that were fetched earlier, and answer with `CacheRead`.

    Attributes:
        digests: digests of the blobs in hex.
    """

    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreBlob:
    """Store a fetched blob for later tasks."""

    content: bytes


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """Check a plan and the samples of this client, and answer with `PlanOpened` or `PlanRefused`.

    Attributes:
        sha256: digest of the plan in hex.
        content: the encoded plan.
        session: the session that uses the plan.
    """

    sha256: str
    content: bytes
    session: str


@dataclass(frozen=True, slots=True)
class Train:
    """Train or personalize, as the phase of the task asks.

    The driver answers with `Trained`, `TrainingFailed` or `PlanRefused`.

    Attributes:
        task: the task.
        models: the encoded models of the task, by name.
    """

    task: Task
    models: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SaveRound:
    """Store the answer to a task and the client state together, before the answer is announced."""

    answered: AnsweredRound


@dataclass(frozen=True, slots=True)
class SaveMaskedSession:
    """Store that this client masks an update of a session. It then sends no plain update of the session."""

    session: str


@dataclass(frozen=True, slots=True)
class SavePendingTask:
    """Store a task that accepts a late answer, before it is trained."""

    task: Task


@dataclass(frozen=True, slots=True)
class ForgetPendingTask:
    """Forget the stored task, because the aggregator accepted or rejected its answer."""


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Store the newest accepted run and round."""

    newest: NewestRound


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Draw the keys of an attempt at a masked round.

    The driver answers with `MaskedAnswerReady`, `TrainingFailed` or `PackageMissing`.

    Attributes:
        task: the masked task.
        answered: the round whose update is masked.
    """

    task: Task
    answered: AnsweredRound


@dataclass(frozen=True, slots=True)
class AnswerStep:
    """Compute the answer to a step of a masked round, and answer with `MaskedAnswerReady`.

    Attributes:
        step: the step.
        request: the blob of the step.
    """

    step: Task
    request: bytes


@dataclass(frozen=True, slots=True)
class PublishMetrics:
    """Publish the metrics of a round for programs that watch.

    Attributes:
        round: number of the round.
        metrics: metrics of the round, by name.
    """

    round: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EndParticipation:
    """End the service, because the federation is done.

    Attributes:
        session: the session that is done.
        failure: why the last task of this client failed, empty if it did not.
    """

    session: str
    failure: str


@dataclass(frozen=True, slots=True)
class StopClient:
    """Raise an error, because the client cannot continue."""

    error: EdgeflError


@dataclass(frozen=True, slots=True)
class WriteClientLog:
    """Write one line to the log.

    Attributes:
        line: the line.
        level: a level of `logging`.
        fields: further fields for a log in JSON.
    """

    line: str
    level: int = logging.INFO
    fields: Mapping[str, object] = field(default_factory=dict)


ClientAction = (
    Publish
    | PublishChunk
    | Subscribe
    | Unsubscribe
    | ReadCache
    | StoreBlob
    | OpenPlan
    | Train
    | SaveRound
    | SaveMaskedSession
    | SavePendingTask
    | ForgetPendingTask
    | SaveOrder
    | BeginAttempt
    | AnswerStep
    | PublishMetrics
    | EndParticipation
    | StopClient
    | WriteClientLog
)

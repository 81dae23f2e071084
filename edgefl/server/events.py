"""The events that the round server handles, and the actions that it returns.

Both are plain records. A driver makes events from messages, and carries out actions in their order: an action
is complete before the next one begins. The driver fills in times of day and signatures, because the round
server has no clock and no files.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from edgefl.errors import EdgeflError
from edgefl.server.rounds import Round
from edgefl.server.tasks import ExpectedTensors
from edgefl.types import ServerState, Weights
from edgefl.wire.messages import Begin, Manifest, Status, Want

OTHER_SENDER = "another sender"
"""Stands for the client in a line of the log that is caused by a message of no client."""

# Events


@dataclass(frozen=True, slots=True)
class StatusReceived:
    """A client published its status, or the broker published its last will."""

    status: Status


@dataclass(frozen=True, slots=True)
class BeginReceived:
    """A client announced an update. The driver has checked the signature."""

    begin: Begin


@dataclass(frozen=True, slots=True)
class ChunkReceived:
    """A client sent one chunk of an update."""

    client_id: str
    sha256: str
    index: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class EndReceived:
    """A client has sent all chunks that it was asked for."""

    client_id: str
    sha256: str


@dataclass(frozen=True, slots=True)
class WantReceived:
    """A client lacks chunks of a blob."""

    client_id: str
    want: Want


@dataclass(frozen=True, slots=True)
class ManifestReceived:
    """The broker keeps a manifest: this server published it, or its process before this one did."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class StateOverwritten:
    """The broker keeps an older state of this federation, such as the will of the process before this one."""


@dataclass(frozen=True, slots=True)
class MessageInvalid:
    """The driver could not read a message, or its signature is wrong.

    Attributes:
        client_id: the client that sent it.
        reason: what was found, what is expected, and the remedy.
        sha256: the update that the message belongs to; empty for other messages.
    """

    client_id: str
    reason: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class ClientExcluded:
    """A client is not enrolled, or was revoked. It takes part in nothing.

    Attributes:
        client_id: the client.
        reason: why it is excluded, and the remedy.
        sha256: the update that it announced; empty when it announced none.
    """

    client_id: str
    reason: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class PausesChanged:
    """The operator paused clients, or resumed them.

    Attributes:
        client_ids: all clients that are paused now.
    """

    client_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class LinkRestored:
    """The connection to the broker is up again. Messages may have been lost, retained ones too."""


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """How many messages the broker has not acknowledged. It limits how many the server adds."""

    in_flight: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time passed, and nothing else happened."""


@dataclass(frozen=True, slots=True)
class StateAggregated:
    """The driver carried out `AggregateUpdates`.

    Attributes:
        state: the server state after the round.
    """

    state: ServerState


Event = (
    StatusReceived
    | BeginReceived
    | ChunkReceived
    | EndReceived
    | WantReceived
    | ManifestReceived
    | StateOverwritten
    | MessageInvalid
    | ClientExcluded
    | PausesChanged
    | LinkRestored
    | LinkLoad
    | TimePassed
    | StateAggregated
)

# Records


@dataclass(frozen=True)
class OpenedRound:
    """A round as it was opened.

    Attributes:
        number: the round.
        phase: the phase of the algorithm.
        nonce: what each client's nonce is derived from.
        cohort: the clients that were chosen, sorted.
        is_closed: whether the round takes no more updates.
    """

    number: int
    phase: str
    nonce: str
    cohort: tuple[str, ...]
    is_closed: bool = False


@dataclass(frozen=True)
class DroppedClient:
    """A client that a round closed without.

    Attributes:
        round: the round.
        client_id: the client.
        reason: why its update is missing.
    """

    round: int
    client_id: str
    reason: str


# Actions


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish a message.

    Attributes:
        topic: the topic.
        message: a message of `edgefl.wire.messages` whose `ts` the driver sets, or bytes as they are.
        receiver: the client that the signature is for, empty for all clients. None: the message is not
            signed.
        is_retained: whether the broker keeps it for later subscribers.
        qos: the quality of service.
    """

    topic: str
    message: object
    receiver: str | None = None
    is_retained: bool = False
    qos: int = 1


@dataclass(frozen=True, slots=True)
class OpenRound:
    """Store that a round was opened, before its first task is published."""

    opened: OpenedRound


@dataclass(frozen=True, slots=True)
class StoreUpdate:
    """Store a complete update. It counts once it is committed.

    Attributes:
        begin: its announcement.
        blob: its bytes.
        expected: the tensors that it may hold.
        codec: how the tensors are encoded.
        deltas: the decoded tensors.
    """

    begin: Begin
    blob: bytes
    expected: ExpectedTensors
    codec: str
    deltas: Mapping[str, Weights]


@dataclass(frozen=True, slots=True)
class CommitUpdates:
    """Store that a round accepted these updates, so that they survive a power failure.

    Their receipts follow, so the driver must not go on before they are safe.
    """

    opened: OpenedRound
    begins: tuple[Begin, ...]


@dataclass(frozen=True, slots=True)
class SaveMaskedSum:
    """Save the sum of a masked round, so that its last steps can be played after a restart.

    Attributes:
        content: the sum, see `edgefl.server.secagg.masked_sum`; empty removes what was saved.
    """

    content: bytes


@dataclass(frozen=True, slots=True)
class ForgetRound:
    """Forget a round that accepted nothing, so that it can be opened with another cohort."""

    opened: OpenedRound


@dataclass(frozen=True, slots=True)
class CloseRound:
    """Store that a round takes no more updates.

    Attributes:
        opened: the round.
        closed: the round as it ended.
        begins: the announcements of the accepted updates, sorted by client.
        dropped: the clients that the round closed without.
        loss: the mean training loss; NaN when no client reported one.
        seconds: how long the round was open.
    """

    opened: OpenedRound
    closed: Round | None
    begins: tuple[Begin, ...]
    dropped: tuple[DroppedClient, ...]
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True)
class AggregateUpdates:
    """Aggregate the committed updates of the open round, and answer with `StateAggregated`.

    Attributes:
        state: the server state before the round.
    """

    state: ServerState


@dataclass(frozen=True, slots=True)
class SaveState:
    """Save the server state. The updates of the round before are not needed any more."""

    state: ServerState


@dataclass(frozen=True, slots=True)
class Finish:
    """The federation is complete: make its result.

    Attributes:
        opened: the round of the personalization.
        state: the last server state.
    """

    opened: OpenedRound
    state: ServerState


@dataclass(frozen=True, slots=True)
class Stop:
    """The federation cannot go on: raise the error.

    Attributes:
        error: RoundError when a round missed its quorum for good or no client came, FederationDivergedError
            when training diverged.
    """

    error: EdgeflError


@dataclass(frozen=True, slots=True)
class WriteLog:
    """Write one line to the log.

    Attributes:
        line: the line.
        client_id: the client that caused it, or `OTHER_SENDER`. Each may cause a limited number of lines.
            Empty for lines that no sender can cause at will.
        level: a level of `logging`.
    """

    line: str
    client_id: str = ""
    level: int = logging.INFO


Action = (
    Publish
    | OpenRound
    | StoreUpdate
    | CommitUpdates
    | SaveMaskedSum
    | ForgetRound
    | CloseRound
    | AggregateUpdates
    | SaveState
    | Finish
    | Stop
    | WriteLog
)

"""The events that the round server handles, and the actions that it returns.

Both are plain records. A driver makes events from messages and carries out actions in order. An action is
complete before the next action begins. The driver adds times of day and signatures, because the round server
has no clock and no files.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from edgefl.base.errors import EdgeflError
from edgefl.base.types import ServerState, Weights
from edgefl.protocol.server.rounds import Round
from edgefl.protocol.server.tasks import ExpectedTensors
from edgefl.protocol.wire.machine_events import LinkLoad, LinkRestored, Publish, TimePassed
from edgefl.protocol.wire.messages import Begin, Manifest, Status, Want

OTHER_SENDER = "another sender"
"""Stands for the client in a log line that is caused by a message of no client."""

# Events


@dataclass(frozen=True, slots=True)
class StatusReceived:
    """A client published its status, or the broker published the client's last will."""

    status: Status


@dataclass(frozen=True, slots=True)
class BeginReceived:
    """A client announced an update. The driver has checked the signature."""

    begin: Begin


@dataclass(frozen=True, slots=True)
class ChunkReceived:
    """A client sent one chunk of an update.

    Attributes:
        client_id: the client.
        sha256: the update.
        index: the number of the chunk, from 0.
        payload: the bytes of the chunk.
    """

    client_id: str
    sha256: str
    index: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class EndReceived:
    """A client has sent all chunks that the server asked for.

    Attributes:
        client_id: the client.
        sha256: the update.
    """

    client_id: str
    sha256: str


@dataclass(frozen=True, slots=True)
class WantReceived:
    """A client lacks chunks of a blob."""

    client_id: str
    want: Want


@dataclass(frozen=True, slots=True)
class ManifestReceived:
    """The broker keeps a manifest. This server published it, or an earlier process did."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class StateOverwritten:
    """The broker keeps an older state of this federation, such as the last will of an earlier process."""


@dataclass(frozen=True, slots=True)
class MessageInvalid:
    """The driver could not read a message, or its signature is wrong.

    Attributes:
        client_id: the client that sent it.
        reason: what was found, what is expected, and the remedy.
        sha256: the update that the message belongs to. Empty for other messages.
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
        sha256: the update that it announced. Empty when it announced no update.
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
        number: the number of the round, from 1.
        phase: the phase of the algorithm.
        nonce: the secret that each client's nonce is derived from.
        cohort: the chosen clients, sorted.
        is_closed: whether the round accepts no more updates.
    """

    number: int
    phase: str
    nonce: str
    cohort: tuple[str, ...]
    is_closed: bool = False


@dataclass(frozen=True)
class DroppedClient:
    """A client whose update is missing from a closed round.

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
class OpenRound:
    """Store that a round was opened, before its first task is published."""

    opened: OpenedRound


@dataclass(frozen=True, slots=True)
class StoreUpdate:
    """Store a complete update. It counts once it is committed.

    Attributes:
        begin: the announcement of the update.
        blob: the encoded tensors.
        expected: the tensors that the update may hold.
        codec: the codec of the tensors.
        deltas: the decoded tensors by model, float32.
    """

    begin: Begin
    blob: bytes
    expected: ExpectedTensors
    codec: str
    deltas: Mapping[str, Weights]


@dataclass(frozen=True, slots=True)
class CommitUpdates:
    """Store that a round accepted these updates, so that they survive a power failure.

    The driver must not continue before they are safe, because their receipts follow.

    Attributes:
        opened: the round.
        begins: the announcements of the accepted updates.
    """

    opened: OpenedRound
    begins: tuple[Begin, ...]


@dataclass(frozen=True, slots=True)
class SaveMaskedSum:
    """Save the sum of a masked round, so that its last steps can be played after a restart.

    Attributes:
        content: the sum, see `edgefl.protocol.server.secagg.masked_sum`. Empty bytes remove the saved sum.
    """

    content: bytes


@dataclass(frozen=True, slots=True)
class ForgetRound:
    """Forget a round that accepted no update, so that it can be opened with another cohort."""

    opened: OpenedRound


@dataclass(frozen=True, slots=True)
class CloseRound:
    """Store that a round accepts no more updates.

    Attributes:
        opened: the round.
        closed: the round as it ended. None for an empty cohort.
        begins: the announcements of the accepted updates, sorted by client.
        dropped: the clients whose updates are missing.
        loss: the median training loss. NaN when fewer than half of the clients reported a loss.
        seconds: how long the round was open, in seconds.
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
    """Save the server state. The updates of the previous round are not needed any more."""

    state: ServerState


@dataclass(frozen=True, slots=True)
class Finish:
    """Make the result of a federation that is complete.

    Attributes:
        opened: the round of the personalization.
        state: the last server state.
    """

    opened: OpenedRound
    state: ServerState


@dataclass(frozen=True, slots=True)
class Stop:
    """Raise an error, because the federation cannot continue.

    Attributes:
        error: RoundError when a round missed its quorum for good or no client came online,
            FederationDivergedError when training diverged.
    """

    error: EdgeflError


@dataclass(frozen=True, slots=True)
class WriteLog:
    """Write one line to the log.

    Attributes:
        line: the line.
        client_id: the client that caused it, or `OTHER_SENDER`. Each sender may cause a limited number of
            lines. Empty for lines that no sender can cause at will.
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

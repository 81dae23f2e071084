"""What an aggregator and its worker processes say to each other: one line of JSON a message, over pipes that
only these two hold.

aggregator -> worker   Start, then for each round Play, Serve (who, with what), Answer (to Arrived), Gone,
                       Leave, Close; at last End
worker -> aggregator   Up, Serving, Arrived, Refused, Closed; Broke before it ends of an error
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from edgefl.config import FederationConfig
from edgefl.plan.spec import TensorSpec
from edgefl.transport.link import Link, Message
from edgefl.wire.messages import Begin, Task


class SharedLink(Link):
    """A link whose queue other threads of this process may put messages into."""

    def post(self, message: Message) -> None:
        """Have `get` return this message, as if it had come from the broker."""
        self._inbox.put(message)


@dataclass(frozen=True)
class Start:
    """Where a worker works. `security`: the directory of `edgefl broker init`, empty without one.

    `clients`: the ids of the devices that may take part; empty for all.
    """

    broker: str
    federation: str
    session: str
    plan: str
    security: str
    upload_slots: int
    max_samples: int = FederationConfig.max_samples
    clients: tuple[str, ...] = ()


@dataclass(frozen=True)
class Play:
    """A round opens.

    `nonces`: (round, nonce) that an update may answer; `directory`: where updates of this round are spooled.

    received: (client, sha256) of the updates that it has; late, settled: (round, client, sha256), see
    `edgefl.server.rounds.Round`.
    """

    number: int
    max_staleness: int
    nonces: tuple[tuple[int, str], ...]
    directory: str
    received: tuple[tuple[str, str], ...]
    late: tuple[tuple[int, str, str], ...]
    settled: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True)
class Client:
    """A client of the open round: its task without models and scalars, the models that its update may hold,
    as places in `Serve.specs`, and the update's largest size in bytes.
    """

    client_id: str
    task: Task
    models: Mapping[str, int]
    limit: int


@dataclass(frozen=True)
class Serve:
    """Take the uploads of these clients, and begin: it comes after each Play.

    `specs` follow those that were told before.

    `others`: clients that have no task, and are told so.
    """

    clients: tuple[Client, ...]
    specs: tuple[tuple[TensorSpec, ...], ...]
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What became of updates that arrived: (client, sha256, outcome and reason of their receipts)."""

    receipts: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True)
class Gone:
    """A client is offline: its upload slot is free."""

    client_id: str


@dataclass(frozen=True)
class Leave:
    """Other workers serve these clients now."""

    client_ids: tuple[str, ...]


@dataclass(frozen=True)
class Close:
    """The round is over: report what arrived whole, say Closed, and let all else wait for the next round."""


@dataclass(frozen=True)
class End:
    """The federation is over: send what is left and end."""


@dataclass(frozen=True)
class Up:
    """The worker is connected."""


@dataclass(frozen=True)
class Serving:
    """The worker hears the uploads of these clients."""

    client_ids: tuple[str, ...]


@dataclass(frozen=True)
class Arrived:
    """Updates that were checked and are on disk in this directory.

    `sent`: bytes that the worker published since it said so last.
    """

    directory: str
    begins: tuple[Begin, ...]
    sent: int


@dataclass(frozen=True)
class Refused:
    """What a client sent cannot be used."""

    client_id: str
    reason: str


@dataclass(frozen=True)
class Closed:
    """Nothing more comes of this round."""


@dataclass(frozen=True)
class Broke:
    """The worker ends of an error; `kind`: the error's class."""

    kind: str
    reason: str


Said = (
    Start
    | Play
    | Serve
    | Answer
    | Gone
    | Leave
    | Close
    | End
    | Up
    | Serving
    | Arrived
    | Refused
    | Closed
    | Broke
)
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        Start,
        Play,
        Serve,
        Answer,
        Gone,
        Leave,
        Close,
        End,
        Up,
        Serving,
        Arrived,
        Refused,
        Closed,
        Broke,
    )
}


def _fields(record: Any) -> dict[str, Any]:
    if isinstance(record, Mapping):  # metrics, which are kept as no dict
        return dict(record)
    return {field.name: getattr(record, field.name) for field in fields(record)}


def to_line(said: Said) -> bytes:
    """Return a message as one line."""
    return (
        json.dumps([type(said).__name__, vars(said)], default=_fields, separators=(",", ":")).encode() + b"\n"
    )


def from_line(line: bytes) -> Said:
    """Read what `to_line` wrote, by the same version of this module."""
    kind, fields = json.loads(line)
    if kind == "Serve":
        fields["clients"] = [Client(**{**each, "task": Task(**each["task"])}) for each in fields["clients"]]
        fields["specs"] = [
            tuple(TensorSpec(s["name"], tuple(s["shape"]), s["dtype"]) for s in specs)
            for specs in fields["specs"]
        ]
    elif kind == "Arrived":
        fields["begins"] = [Begin(**each) for each in fields["begins"]]
    said: Said = _KINDS[kind](**{name: _tuple(value) for name, value in fields.items()})
    return said


def _tuple(value: Any) -> Any:
    return tuple(_tuple(each) for each in value) if isinstance(value, list) else value

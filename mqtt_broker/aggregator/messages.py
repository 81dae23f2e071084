"""Conversion of an aggregator's incoming messages to events of its round server."""

from edgefl.base.errors import LinkError, WireError
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.server.events import (
    BeginReceived,
    ChunkReceived,
    ClientExcluded,
    EndReceived,
    Event,
    ManifestReceived,
    MessageInvalid,
    StateOverwritten,
    StatusReceived,
    WantReceived,
)
from edgefl.protocol.transport.link import Message
from edgefl.protocol.wire.messages import STOPPED_PHASE, Begin, Manifest, State, Status, Want
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.topics import Address, FederationTopics, parse_topic

UPLOAD_KINDS = ("begin", "chunk", "end")


class OtherAggregatorError(LinkError):
    """Another aggregator, which started later, leads the federation."""


def list_aggregator_topics(topics: FederationTopics) -> tuple[str, ...]:
    """Return the topics to which an aggregator subscribes."""
    return (
        topics.format_device("+", "status"),
        topics.format_device("+", "want"),
        f"{topics.root}/device/+/up/+/+",
        topics.state,
        topics.format_manifest("+"),
    )


def read_event(message: Message, session: str, trust: Trust, started: int = 0) -> Event | None:
    """Return the event of a message, or None if the message has no effect.

    Args:
        message: message from the link.
        session: session of this aggregator.
        trust: checks enrolments and signatures.
        started: start of this aggregator's run, in milliseconds since 1970.

    Raises:
        WireError: the message cannot be read and is not on the topic of a client.
        OtherAggregatorError: an aggregator that started later leads the federation.
    """
    address = parse_topic(message.topic)
    client_id = address.client_id
    if client_id and (reason := trust.explain_refusal(client_id)):
        return ClientExcluded(client_id, reason, address.sha256 if address.kind == "begin" else "")
    try:
        if message.oversize:
            raise WireError(
                f"a message of {message.oversize} bytes on {address.kind}, expected smaller chunks; update "
                "the sender"
            )
        return _decode(address, message.payload, session, trust, started)
    except WireError as error:
        if not client_id:
            raise
        return MessageInvalid(client_id, str(error), address.sha256 if address.kind in UPLOAD_KINDS else "")


def _decode(address: Address, payload: bytes, session: str, trust: Trust, started: int) -> Event | None:
    client_id = address.client_id
    match address.kind:
        case "chunk":
            return ChunkReceived(
                client_id=client_id, sha256=address.sha256, index=address.index, payload=payload
            )
        case "begin":
            begin = trust.check(decode_json(Begin, payload), payload, client_id)
            if (begin.client_id, begin.sha256) != (client_id, address.sha256):
                raise _make_sender_error("update", begin.client_id, client_id)
            return BeginReceived(begin)
        case "end":
            return EndReceived(client_id, address.sha256)
        case "want":
            return WantReceived(client_id, decode_json(Want, payload))
        case "status" if payload:
            status = decode_json(Status, payload)
            if status.client_id != client_id:
                raise _make_sender_error("status", status.client_id, client_id)
            return StatusReceived(status)
        case "state" if payload:
            return _read_state(decode_json(State, payload), address.federation, session, started)
        case "manifest" if payload:
            manifest = decode_json(Manifest, payload)
            if manifest.sha256 != address.sha256:
                raise WireError(
                    f"a manifest of {manifest.sha256[:16]!r} on the topic of {address.sha256[:16]!r}; let "
                    "the broker's access list keep others from writing it"
                )
            return ManifestReceived(manifest)
    return None


def _read_state(state: State, federation: str, session: str, started: int) -> Event | None:
    """Return the event of a state. Of two aggregators, the one that started later leads the federation."""
    if state.started > started or (state.started == started and state.session < session):
        raise OtherAggregatorError(
            f"another aggregator leads the federation {federation!r} now; run one at a time"
        )
    is_foreign = state.session != session
    return StateOverwritten() if is_foreign or state.phase == STOPPED_PHASE else None


def _make_sender_error(what: str, named: str, client_id: str) -> WireError:
    return WireError(f"the {what} names {named!r}, its topic {client_id!r}; a device speaks for itself only")

"""Reads the messages of an aggregator as events of the client machine."""

from edgefl.base.errors import WireError
from edgefl.protocol.device.events import (
    BlobChunkReceived,
    BlobManifestReceived,
    ClaimReceived,
    ClientEvent,
    ReceiptReceived,
    SameIdStatusReceived,
    StateReceived,
    TaskReceived,
)
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.transport.link import Message
from edgefl.protocol.wire.messages import Claim, Manifest, Receipt, State, Status, Task
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.topics import parse_topic


def read_client_event(
    message: Message, trust: Trust, client_id: str, last_state: State | None
) -> ClientEvent | None:
    """Return the event of a message, or None if the machine need not handle it.

    Most states only announce the next round, which the task announces too. The machine does not need such a
    state, so its signature is not checked: a check takes a small board several milliseconds.

    Args:
        trust: checks the signatures.
        client_id: the client that receives the message.
        last_state: the last state that the machine accepted, or None.

    Raises:
        WireError: the message is malformed, or its signature is not valid.
    """
    address = parse_topic(message.topic)
    payload = message.payload
    if not payload:
        return None
    match address.kind:
        case "state":
            state = decode_json(State, payload)
            if last_state and _get_state_key(state) == _get_state_key(last_state):
                return None
            return StateReceived(trust.check(state, payload))
        case "task":
            return TaskReceived(trust.check(decode_json(Task, payload), payload, client_id))
        case "receipt":
            return ReceiptReceived(trust.check(decode_json(Receipt, payload), payload, client_id))
        case "status":
            return SameIdStatusReceived(decode_json(Status, payload))
        case "claim":
            return ClaimReceived(decode_json(Claim, payload))
        case "manifest":
            manifest = decode_json(Manifest, payload)
            if manifest.sha256 != address.sha256:
                raise WireError(
                    f"a manifest names the blob {manifest.sha256[:8]}, expected {address.sha256[:8]} as in "
                    "its topic; look at the aggregator"
                )
            return BlobManifestReceived(manifest)
        case "blob":
            return BlobChunkReceived(address.sha256, address.index, payload)
    return None


def _get_state_key(state: State) -> tuple[str, int, str, str]:
    return state.session, state.started, state.phase, state.plan

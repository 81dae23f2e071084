"""Signs and checks protocol messages with Ed25519.

The signed text is a line with protocol version, federation, kind of message and client id, followed by the
message's JSON with an empty signature. A signature is therefore not valid for another federation, kind of
message or device.

Source: RFC 8032.
"""

import base64
import secrets
from functools import lru_cache
from typing import Any

from edgefl.base.errors import ConfigError, WireError
from edgefl.protocol.security.ed25519 import Sign, derive_public_bytes, make_signer, make_verifier
from edgefl.protocol.wire.strict_json import check_message_size, encode_json
from edgefl.protocol.wire.topics import TOPIC_PREFIX

SIGNING_KEY_BYTES = 32
SIGNATURE_FIELD = b'"signature":"'


def generate_signing_key() -> str:
    """Return a new private Ed25519 key, 32 bytes in base64."""
    return base64.b64encode(secrets.token_bytes(SIGNING_KEY_BYTES)).decode()


def derive_public_key(key: str) -> str:
    """Return the public key of a private key, 32 bytes in base64.

    Args:
        key: private Ed25519 key, 32 bytes in base64.

    Raises:
        ConfigError: the key is not valid.
    """
    return base64.b64encode(derive_public_bytes(_decode_private(key))).decode()


def encode_signed(message: Any, key: str, federation: str, client_id: str = "") -> bytes:
    """Return a signed message as JSON.

    Args:
        message: instance of a message class with an empty `signature`.
        key: private Ed25519 key, 32 bytes in base64.
        federation: name of the federation.
        client_id: client id in the topic, or "" if the topic has none.

    Raises:
        WireError: the message is too large.
        ConfigError: the key is not valid.
    """
    assert not message.signature
    payload = encode_json(message)
    # the last match: a model name can look like the field, but only numbers and booleans follow the field
    before, field, after = payload.rpartition(SIGNATURE_FIELD)
    signature = base64.b64encode(_load_signer(key)(_format_head(message, federation, client_id) + payload))
    return check_message_size(type(message), before + field + signature + after)


def check_signature(message: Any, payload: bytes, public: str, federation: str, client_id: str = "") -> None:
    """Check that a message is signed with the private key of a public key.

    Args:
        message: the message as decoded from the payload.
        payload: the received JSON.
        public: public Ed25519 key of the expected sender, 32 bytes in base64.
        federation: name of the federation.
        client_id: client id in the topic, or "" if the topic has none.

    Raises:
        WireError: the message is not signed, or its signature is not valid.
        ConfigError: the public key is not valid.
    """
    kind = type(message).__name__
    is_valid = make_verifier(_decode_key(public, f"the public key {public[:12]!r}... is not valid"))
    if not message.signature:
        raise WireError(f"{kind} is not signed; its sender was not enrolled")
    before, field, after = payload.rpartition(SIGNATURE_FIELD)
    try:
        signature = base64.b64decode(message.signature, validate=True)
    except ValueError:
        is_genuine = False
    else:
        # the signed text is the payload without the decoded signature
        rest = after.removeprefix(message.signature.encode())
        signed = _format_head(message, federation, client_id) + before + field + rest
        is_genuine = rest != after and rest.startswith(b'"') and is_valid(signature, signed)
    if not is_genuine:
        raise WireError(
            f"{kind} has a wrong signature: it is forged, damaged or from another federation; enrol the "
            "sender again"
        )


@lru_cache(256)  # creating a signer takes as long as signing
def _load_signer(key: str) -> Sign:
    return make_signer(_decode_private(key))


def _decode_private(key: str) -> bytes:
    return _decode_key(key, "this is not a signing key")


def _decode_key(key: str, wrong: str) -> bytes:
    try:
        raw = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise ConfigError(f"{wrong}: {error}; enrol again") from error
    if len(raw) != SIGNING_KEY_BYTES:
        raise ConfigError(f"{wrong}: it has {len(raw)} bytes, expected {SIGNING_KEY_BYTES}; enrol again")
    return raw


def _format_head(message: Any, federation: str, client_id: str) -> bytes:
    return f"{TOPIC_PREFIX} {federation} {type(message).__name__} {client_id}\n".encode()

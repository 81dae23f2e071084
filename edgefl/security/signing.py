"""Ed25519 signatures (RFC 8032) over a message of the protocol: every field of it, and the topic's names that
it was said under.

What is signed is the message's JSON as it travels, but with an empty signature, after a line that names
federation, kind and device, so that no signature fits another federation, another kind of message or another
device.
"""

import base64
import secrets
from functools import lru_cache
from typing import Any

from edgefl.errors import ConfigError, WireError
from edgefl.security.ed25519 import Sign, derive_public_bytes, make_signer, make_verifier
from edgefl.wire.strict_json import check_message_size, encode_json
from edgefl.wire.topics import TOPIC_PREFIX

SIGNING_KEY_BYTES = 32
SIGNATURE_FIELD = b'"signature":"'


def generate_signing_key() -> str:
    """Return a new private key, base64 of 32 bytes."""
    return base64.b64encode(secrets.token_bytes(SIGNING_KEY_BYTES)).decode()


def derive_public_key(key: str) -> str:
    """Return the public key of a private one, base64 of 32 bytes; ConfigError when it is none."""
    return base64.b64encode(derive_public_bytes(_decode_private(key))).decode()


def encode_signed(
    message: Any, key: str, federation: str, client_id: str = "", prefix: str = TOPIC_PREFIX
) -> bytes:
    """Return the message (a dataclass with a field `signature`, empty yet) as JSON, signed.

    WireError when it is too large.

    Args:
        prefix: The version that the message belongs to, such as `edgefl/v2`.
    """
    assert not message.signature
    payload = encode_json(message)
    # the last one: a model's name may look the same, but after the field there are only truth values
    before, field, after = payload.rpartition(SIGNATURE_FIELD)
    signature = base64.b64encode(
        _load_signer(key)(_format_head(message, federation, client_id, prefix) + payload)
    )
    return check_message_size(type(message), before + field + signature + after)


def check_signature(message: Any, payload: bytes, public: str, federation: str, client_id: str = "") -> None:
    """Raise WireError unless the message, read from this payload, bears the signature of this public key's
    owner.
    """
    kind = type(message).__name__
    is_valid = make_verifier(_decode_key(public, f"the public key {public[:12]!r}... is none"))
    if not message.signature:
        raise WireError(f"{kind} is not signed; its sender was not enrolled")
    before, field, after = payload.rpartition(SIGNATURE_FIELD)
    try:
        signature = base64.b64decode(message.signature, validate=True)
    except ValueError:
        is_genuine = False
    else:
        # signed is what is left of the payload without the signature that was read, and no other text
        rest = after.removeprefix(message.signature.encode())
        signed = _format_head(message, federation, client_id) + before + field + rest
        is_genuine = rest != after and rest.startswith(b'"') and is_valid(signature, signed)
    if not is_genuine:
        raise WireError(
            f"{kind} has a wrong signature: it is forged, damaged or of another federation; enrol the sender "
            "again"
        )


@lru_cache(256)  # to make one takes as long as to sign
def _load_signer(key: str) -> Sign:
    return make_signer(_decode_private(key))


def _decode_private(key: str) -> bytes:
    return _decode_key(key, "this is no signing key")


def _decode_key(key: str, wrong: str) -> bytes:
    try:
        raw = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise ConfigError(f"{wrong}: {error}; enrol again") from error
    if len(raw) != SIGNING_KEY_BYTES:
        raise ConfigError(f"{wrong}: it has {len(raw)} bytes, expected {SIGNING_KEY_BYTES}; enrol again")
    return raw


def _format_head(message: Any, federation: str, client_id: str, prefix: str = TOPIC_PREFIX) -> bytes:
    return f"{prefix} {federation} {type(message).__name__} {client_id}\n".encode()

"""Ed25519 signatures (RFC 8032) over a message of the protocol: every field of it, and the topic's names that it was said under.

What is signed is the message's JSON with an empty signature after a line that names federation, kind and device, so that no
signature fits another federation, another kind of message or another device.
"""

import base64
import binascii
from dataclasses import replace
from functools import lru_cache
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from edgefl.errors import ConfigError, WireError
from edgefl.wire.strict_json import encode_json, fitting

_RAW = (serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())


def new_key() -> str:
    """Return a new private key, base64 of 32 bytes."""
    return base64.b64encode(Ed25519PrivateKey.generate().private_bytes(*_RAW)).decode()


def public_of(key: str) -> str:
    """Return the public key of a private one, base64 of 32 bytes; ConfigError when it is none."""
    public = _private(key).public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return base64.b64encode(public).decode()


def encode_signed(message: Any, key: str, federation: str, client_id: str = "") -> bytes:
    """Return the message (a dataclass with a field `signature`, empty yet) as JSON, signed; WireError when it is too large."""
    assert not message.signature
    said = encode_json(message)
    # the last one: a model's name may look the same, but after the field there are only truth values
    before, field, after = said.rpartition(b'"signature":"')
    signature = base64.b64encode(_private(key).sign(_head(message, federation, client_id) + said))
    return fitting(type(message), before + field + signature + after)


def check(message: Any, public: str, federation: str, client_id: str = "") -> None:
    """Raise WireError unless the message bears the signature of this public key's owner."""
    kind = type(message).__name__
    key = _public(public)
    if not message.signature:
        raise WireError(f"{kind} is not signed; its sender was not enrolled")
    try:
        said = _head(message, federation, client_id) + encode_json(replace(message, signature=""))
        key.verify(base64.b64decode(message.signature, validate=True), said)
    except (InvalidSignature, ValueError, binascii.Error) as error:
        raise WireError(f"{kind} has a wrong signature: it is forged, damaged or of another federation; enrol the sender again") from error


@lru_cache(256)
def _private(key: str) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(base64.b64decode(key, validate=True))
    except (ValueError, binascii.Error) as error:
        raise ConfigError(f"this is no signing key: {error}; enrol again") from error


@lru_cache(16)  # to make one again takes 7 of a check's 200 us; to keep those of a fleet, .4 KB each
def _public(key: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
    except (ValueError, binascii.Error) as error:
        raise ConfigError(f"the public key {key[:12]!r}... is none: {error}; enrol again") from error


def _head(message: Any, federation: str, client_id: str) -> bytes:
    return f"edgefl/v1 {federation} {type(message).__name__} {client_id}\n".encode()

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
from edgefl.security.ed25519 import Sign, checker, public_key, signer
from edgefl.wire.strict_json import encode_json, fitting
from edgefl.wire.topics import PREFIX

KEY_BYTES = 32
FIELD = b'"signature":"'


def new_key() -> str:
    """Return a new private key, base64 of 32 bytes."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def public_of(key: str) -> str:
    """Return the public key of a private one, base64 of 32 bytes; ConfigError when it is none."""
    return base64.b64encode(public_key(_private(key))).decode()


def encode_signed(
    message: Any, key: str, federation: str, client_id: str = "", prefix: str = PREFIX
) -> bytes:
    """Return the message (a dataclass with a field `signature`, empty yet) as JSON, signed.

    WireError when it is too large.

    Args:
        prefix: The version that the message belongs to, such as `edgefl/v2`.
    """
    assert not message.signature
    said = encode_json(message)
    # the last one: a model's name may look the same, but after the field there are only truth values
    before, field, after = said.rpartition(FIELD)
    signature = base64.b64encode(_signer(key)(_head(message, federation, client_id, prefix) + said))
    return fitting(type(message), before + field + signature + after)


def check(message: Any, payload: bytes, public: str, federation: str, client_id: str = "") -> None:
    """Raise WireError unless the message, read from this payload, bears the signature of this public key's
    owner.
    """
    kind = type(message).__name__
    fits = checker(_raw(public, f"the public key {public[:12]!r}... is none"))
    if not message.signature:
        raise WireError(f"{kind} is not signed; its sender was not enrolled")
    before, field, after = payload.rpartition(FIELD)
    try:
        signature = base64.b64decode(message.signature, validate=True)
    except ValueError:
        fit = False
    else:
        # signed is what is left of the payload without the signature that was read, and no other text
        rest = after.removeprefix(message.signature.encode())
        said = _head(message, federation, client_id) + before + field + rest
        fit = rest != after and rest.startswith(b'"') and fits(signature, said)
    if not fit:
        raise WireError(
            f"{kind} has a wrong signature: it is forged, damaged or of another federation; enrol the sender "
            "again"
        )


@lru_cache(256)  # to make one takes as long as to sign
def _signer(key: str) -> Sign:
    return signer(_private(key))


def _private(key: str) -> bytes:
    return _raw(key, "this is no signing key")


def _raw(key: str, wrong: str) -> bytes:
    try:
        raw = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise ConfigError(f"{wrong}: {error}; enrol again") from error
    if len(raw) != KEY_BYTES:
        raise ConfigError(f"{wrong}: it has {len(raw)} bytes, expected {KEY_BYTES}; enrol again")
    return raw


def _head(message: Any, federation: str, client_id: str, prefix: str = PREFIX) -> bytes:
    return f"{prefix} {federation} {type(message).__name__} {client_id}\n".encode()

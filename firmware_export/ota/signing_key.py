"""The Ed25519 key that signs updates, and the public half that firmware trusts.

A key file holds one line of base64.

Source: RFC 8032.
"""

import base64
import binascii
import os
from collections.abc import Callable
from pathlib import Path

from edgefl.base.errors import ExportError

PUBLIC_KEY_SUFFIX = ".pub"


def make_signing_key(path: Path) -> Path:
    """Write a new private key and its public half, and return the path of the public half.

    Args:
        path: file for the private key, mode 0600. The public half gets the suffix `.pub`.

    Raises:
        ExportError: the file exists or cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    public = path.with_name(path.name + PUBLIC_KEY_SUFFIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64encode(key.private_bytes_raw()) + b"\n")
        public.write_bytes(base64.b64encode(key.public_key().public_bytes_raw()) + b"\n")
    except FileExistsError as error:
        raise ExportError(f"{path} exists: firmware may trust it already; choose another name") from error
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error}; choose another directory") from error
    return public


def read_signer(path: Path) -> Callable[[bytes], bytes]:
    """Return a function that signs with the private key of a file.

    Returns:
        A function that maps a message to its signature, 64 bytes.

    Raises:
        ExportError: the file cannot be read or holds no key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(_read(path)).sign


def read_public_key(path: Path) -> bytes:
    """Return the public key of a file, 32 bytes.

    Raises:
        ExportError: the file is not named as a public key, cannot be read or holds no key.
    """
    if path.suffix != PUBLIC_KEY_SUFFIX:
        raise ExportError(
            f"{path} is not named as a public key, expected *{PUBLIC_KEY_SUFFIX}; the private key must not "
            "get into firmware"
        )
    return _read(path)


def _read(path: Path) -> bytes:
    try:
        key = base64.b64decode(path.read_bytes().strip(), validate=True)
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error}; make a key with `edgefl export key`") from error
    except binascii.Error as error:
        raise ExportError(f"{path} holds no key: {error}; make one with `edgefl export key`") from error
    if len(key) != 32:
        raise ExportError(
            f"{path} holds {len(key)} bytes, expected a key of 32; make one with `edgefl export key`"
        )
    return key

"""The secret key from which a federation with `[privacy]` derives its noise and its cohorts."""

import hmac
import secrets
from pathlib import Path

from edgefl.base.errors import StateError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.system.files import SECRET_MODE, choose_write_remedy, write_atomic
from edgefl.learning.privacy.noise import NOISE_KEY_BYTES


def load_noise_key(out: Path, session: str) -> bytes:
    """Return the noise key of a session, 32 bytes.

    The key is the same after a restart, and differs between sessions. It is derived from the file `noise.key`
    with mode 0600, which is created if it does not exist. Two releases with the same noise would reveal their
    difference, so two sessions must not share a key.

    Args:
        out: directory of the aggregator.
        session: session of the federation.

    Raises:
        StateError: the file is damaged, or cannot be read or written.
    """
    path = AggregatorFiles(out).noise_key
    try:
        if not path.exists():
            write_atomic(path, secrets.token_bytes(NOISE_KEY_BYTES), SECRET_MODE)
        secret = path.read_bytes()
    except OSError as error:
        remedy = choose_write_remedy(error, "free some space or choose another --out")
        raise StateError(f"cannot use {path}: {error}; {remedy}") from error
    if len(secret) != NOISE_KEY_BYTES:
        raise StateError(
            f"{path} has {len(secret)} bytes, expected {NOISE_KEY_BYTES}; restore it, or start again in "
            "another --out"
        )
    return hmac.digest(secret, f"edgefl session {session}".encode(), "sha256")

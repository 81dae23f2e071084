"""Files that survive a power cut: written beside their place, synced, then renamed over it."""

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgefl.errors import StateError


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text from a file.

    Raises:
        ValueError: The text is not JSON, or is nested deeper than Python reads it.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


_UNCHANGED_TYPES = frozenset({str, int, bool})


def to_json_value(value: Any) -> Any:
    """Return the value for strict JSON: a number that is not finite becomes None, a tuple becomes a list."""
    if type(value) in _UNCHANGED_TYPES:  # most values of a message, and the check for a Mapping is slow
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: to_json_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json_value(item) for item in value]
    return value


SECRET_MODE = 0o600
"""Mode of a file that its owner alone may read: keys, personal weights, samples, and the state that holds
them.
"""


def write_atomic(path: Path, content: bytes, mode: int | None = None) -> None:
    """Replace the file by the content, wholly or not at all.

    Args:
        path: the file; its directory is made where it is missing.
        content: all of it.
        mode: the file's mode from its first byte on, `SECRET` for a secret. None: the umask decides, as for
            any other program's files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    try:
        descriptor = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else SECRET_MODE
        )
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None and mode != SECRET_MODE:
                os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
        sync_directory(path.parent)
    except BaseException as error:
        name.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a write does not know its file's name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


FREE_SPACE_REMEDY = "free some space"


@contextmanager
def write_errors(path: Path, remedy: str = FREE_SPACE_REMEDY) -> Iterator[None]:
    """Turn an OSError into a StateError that names the path, the cause and the remedy."""
    try:
        yield
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror or error}; {remedy}") from error


def write_state(path: Path, content: bytes, mode: int | None = None, remedy: str = FREE_SPACE_REMEDY) -> None:
    """Write a file as `write_atomic` does; StateError with the remedy when the disk refuses it."""
    with write_errors(path, remedy):
        write_atomic(path, content, mode)


def sync_directory(path: Path) -> None:
    """Return when a directory's names would survive a power cut: it is a file of its own."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

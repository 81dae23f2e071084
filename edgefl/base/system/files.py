"""Atomic files that survive a power cut.

The content is written to a temporary file, synced, and renamed over the old file.
"""

import errno
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgefl.base.errors import StateError


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text from a file.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply for Python.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


_UNCHANGED_TYPES = frozenset({str, int, bool})


def to_json_value(value: Any) -> Any:
    """Return the value for strict JSON. A number that is not finite becomes None, a tuple becomes a list."""
    if type(value) in _UNCHANGED_TYPES:  # a fast path for most values, because the Mapping check is slow
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: to_json_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json_value(item) for item in value]
    return value


SECRET_MODE = 0o600
"""File mode that lets only the owner read a file: keys, personal weights, samples and device state."""


def open_no_link(path: str | Path, flags: int, mode: int = SECRET_MODE) -> int:
    """Open a file of a state directory, and return its descriptor. It can be the `opener` of `open`.

    A symbolic link is an error. Otherwise an account that may write the directory could let this account
    write to another file.

    Args:
        flags: flags of `os.open`.
        mode: file mode of a new file.

    Raises:
        OSError: the file cannot be opened, or is a symbolic link.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            reason = "it is a symbolic link, expected a file; remove the link"
            raise OSError(error.errno, reason, str(path)) from error
        raise


def write_atomic(
    path: Path, content: bytes, mode: int | None = None, *, survives_power_cut: bool = True
) -> None:
    """Replace a file atomically. A process that is killed leaves either the old or the new content.

    Args:
        path: the file. Missing parent directories are created.
        content: the new content.
        mode: file mode, set before the first byte is written. Use `SECRET_MODE` for secrets. None uses the
            umask.
        survives_power_cut: whether the new content is on the disk when this function returns. If not, the
            file may be damaged after a power cut, but the function does not wait for the disk.

    Raises:
        OSError: the file cannot be written. The error always has a file name.
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
            if survives_power_cut:
                os.fsync(file.fileno())
        os.replace(name, path)
        if survives_power_cut:
            sync_directory(path.parent)
    except BaseException as error:
        name.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # errors of write() have no file name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


FREE_SPACE_REMEDY = "free some space"
WRITE_REMEDIES: Mapping[int | None, str] = {
    errno.EROFS: "its disk is read-only: make it writable, or choose a directory on another disk",
    errno.EACCES: "let this account write there, or choose another directory",
    errno.EPERM: "let this account write there, or choose another directory",
    errno.EISDIR: "remove that directory, or choose another directory",
    errno.ENOTDIR: "a parent of it is a file: choose another directory",
}
"""Remedies for errors that more free space does not help with."""


def choose_write_remedy(error: OSError, remedy: str) -> str:
    """Return the remedy for an error of a file that cannot be written.

    Args:
        remedy: the remedy for a full disk, and for errors of unknown kinds.
    """
    return WRITE_REMEDIES.get(error.errno, remedy)


@contextmanager
def write_errors(path: Path, remedy: str = FREE_SPACE_REMEDY) -> Iterator[None]:
    """Turn an OSError of this context into a StateError that names path, cause and remedy.

    Args:
        path: the file, for the message.
        remedy: what the user can do.

    Raises:
        StateError: the context raised an OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise StateError(f"cannot write {path}: {reason}; {choose_write_remedy(error, remedy)}") from error


def write_state(
    path: Path,
    content: bytes,
    mode: int | None = None,
    remedy: str = FREE_SPACE_REMEDY,
    *,
    survives_power_cut: bool = True,
) -> None:
    """Replace a file atomically, see `write_atomic`.

    Args:
        path: the file. Missing parent directories are created.
        content: the new content.
        mode: file mode. None uses the umask.
        remedy: what the user can do if the file cannot be written.
        survives_power_cut: see `write_atomic`.

    Raises:
        StateError: the file cannot be written.
    """
    with write_errors(path, remedy):
        write_atomic(path, content, mode, survives_power_cut=survives_power_cut)


def remove_state(path: Path, remedy: str) -> None:
    """Remove a file. A missing file is no error.

    Args:
        remedy: what the user can do if the file cannot be removed.

    Raises:
        StateError: the file cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(
            f"cannot remove {path}: {error.strerror}; {choose_write_remedy(error, remedy)}"
        ) from error


def sync_directory(path: Path) -> None:
    """Sync a directory, so that created and renamed files in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files that survive a power cut: written beside their place, synced, then renamed over it."""

import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace the file by the content, wholly or not at all.

    Args:
        path: The file; directories above it are made.
        content: What it shall hold.
        mode: Its permissions. A secret is one from its first byte on: only its owner can read the default.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
        sync_directory(path.parent)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a write does not know its file's name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def sync_directory(path: Path) -> None:
    """Return when a directory's names would survive a power cut: it is a file of its own."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

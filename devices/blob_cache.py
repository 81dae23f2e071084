"""A cache of fetched blobs on disk, named by their sha256."""

import hashlib
import os
from pathlib import Path

from edgefl.base.errors import StateError
from edgefl.base.storage.device_directory import STATE_ACCESS_REMEDY
from edgefl.base.system.files import remove_state, write_errors, write_state
from edgefl.protocol.wire.topics import SHA256_PATTERN, check_sha256

MAX_CACHE_BYTES = 64 * 1024 * 1024


class BlobCache:
    """A cache of blobs in a directory. It removes the least recently used blobs first.

    Args:
        limit_bytes: largest total size of the blobs in bytes.
    """

    def __init__(self, directory: Path, limit_bytes: int = MAX_CACHE_BYTES) -> None:
        self._directory = directory
        self._limit = limit_bytes

    def locate(self, sha256: str) -> Path:
        """Return the path of a blob, whether or not it is in the cache.

        Args:
            sha256: digest of the blob in hex.

        Raises:
            WireError: `sha256` is not a digest.
        """
        return self._directory / check_sha256(sha256)

    def get(self, sha256: str) -> bytes | None:
        """Return a blob, or None if it is not in the cache or is damaged on disk.

        Args:
            sha256: digest of the blob in hex.

        Raises:
            WireError: `sha256` is not a digest.
            StateError: the file cannot be read, marked as used, or removed.
        """
        path = self.locate(sha256)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(
                f"cannot read {path}: {error.strerror}, expected a file that this account can read; remove "
                "it, or pass another --state"
            ) from error
        if hashlib.sha256(content).hexdigest() != sha256:
            remove_state(path, STATE_ACCESS_REMEDY)
            return None
        with write_errors(path, STATE_ACCESS_REMEDY):
            os.utime(path)
        return content

    def put(self, content: bytes) -> str:
        """Store a blob and return its sha256 in hex.

        Args:
            content: the blob.

        Raises:
            StateError: the file cannot be written.
        """
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.locate(sha256)
        remedy = "free some space or choose another --state"
        write_state(path, content, remedy=remedy, survives_power_cut=False)  # `get` notices a damaged file
        with write_errors(path, remedy):
            self._remove_oldest(keep=path)
        return sha256

    def _remove_oldest(self, keep: Path) -> None:
        blobs = [
            (path, path.stat()) for path in self._directory.iterdir() if SHA256_PATTERN.fullmatch(path.name)
        ]
        total = sum(stat.st_size for _, stat in blobs)
        for path, stat in sorted(blobs, key=lambda item: item[1].st_mtime_ns):
            if total <= self._limit:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                total -= stat.st_size

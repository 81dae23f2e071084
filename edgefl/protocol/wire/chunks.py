"""Splits a blob into chunks of at most 240 KiB, and assembles it from chunks."""

import hashlib

from edgefl.base.errors import WireError
from edgefl.protocol.wire.messages import Ranges

CHUNK_BYTES = 240 * 1024
"""Default and maximum size of a chunk in bytes.

It fits into an MQTT packet of 256 KiB with its topic. Smaller chunks cost more, because each message costs
both sides the same.
"""
MIN_CHUNK_BYTES = 1024
MAX_BLOB_BYTES = 256 * 1024 * 1024
MAX_RANGES = 256


def count_chunks(size: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the number of chunks of a blob of `size` bytes. An empty blob has one empty chunk.

    Args:
        size: size of the blob in bytes.
        chunk_bytes: size of a chunk in bytes.
    """
    return max(1, -(-size // chunk_bytes))


def slice_chunk(blob: bytes, index: int, chunk_bytes: int = CHUNK_BYTES) -> bytes:
    """Return one chunk of the blob. The last chunk may be shorter than the others.

    Args:
        blob: the bytes of the blob.
        index: number of the chunk, from 0.
        chunk_bytes: size of a chunk in bytes.
    """
    return blob[index * chunk_bytes : (index + 1) * chunk_bytes]


def to_ranges(indices: list[int]) -> Ranges:
    """Return ascending indices as half-open ranges.

    Only the first 256 ranges are returned. The caller requests the others later.
    """
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return tuple((low, high) for low, high in ranges[:MAX_RANGES])


def to_indices(ranges: Ranges, count: int) -> list[int]:
    """Return the indices in half-open ranges, sorted and without repeats.

    Args:
        ranges: half-open ranges, at most 256.
        count: number of chunks of the blob.

    Raises:
        WireError: there are too many ranges, or a range is outside 0 to `count`.
    """
    indices: set[int] = set()
    if len(ranges) > MAX_RANGES:
        raise WireError(f"{len(ranges)} ranges, expected at most {MAX_RANGES}; ask for fewer at a time")
    for low, high in ranges:
        if not 0 <= low < high <= count:
            raise WireError(f"range {low}..{high}, expected within 0..{count}; the blob has {count} chunks")
        indices.update(range(low, high))
    return sorted(indices)


def check_chunk_bytes(chunk_bytes: int) -> None:
    """Check a chunk size that another side requests.

    Raises:
        WireError: the size is outside 1 KiB to 240 KiB.
    """
    if not MIN_CHUNK_BYTES <= chunk_bytes <= CHUNK_BYTES:
        raise WireError(
            f"chunks of {chunk_bytes} bytes, expected {MIN_CHUNK_BYTES} to {CHUNK_BYTES}; set chunk_bytes in "
            "[federation]"
        )


def check_manifest(sha256: str, size: int, count: int, chunk_bytes: int, limit: int) -> None:
    """Check that a blob's size, number of chunks and chunk size fit together.

    Args:
        sha256: digest of the blob in hex, for errors.
        size: size of the blob in bytes.
        chunk_bytes: size of a chunk in bytes.
        limit: maximum size of the blob in bytes.

    Raises:
        WireError: the figures do not fit together, or the blob is too large.
    """
    if not 0 <= size <= limit:
        raise WireError(f"blob {sha256[:8]} is {size} bytes, expected at most {limit}; it is of another plan")
    check_chunk_bytes(chunk_bytes)
    if count != count_chunks(size, chunk_bytes):
        raise WireError(
            f"{count} chunks for {size} bytes, expected {count_chunks(size, chunk_bytes)} of {chunk_bytes} "
            "bytes"
        )


class Assembler:
    """Assembles one blob from its chunks.

    Chunks may arrive in any order and more than once. The manifest is checked before memory is allocated.

    Args:
        sha256: digest of the blob in hex.
        size: size of the blob in bytes.
        chunk_bytes: size in bytes of every chunk but the last.
        limit: maximum size of the blob in bytes.

    Raises:
        WireError: the manifest is not valid.
    """

    def __init__(
        self, sha256: str, size: int, count: int, chunk_bytes: int, limit: int = MAX_BLOB_BYTES
    ) -> None:
        check_manifest(sha256, size, count, chunk_bytes, limit)
        self.sha256 = sha256
        self.size = size
        self.count = count
        self.chunk_bytes = chunk_bytes
        self._chunks: list[bytes] = [b""] * count
        self._missing = set(range(count))

    def add(self, index: int, payload: bytes) -> bool:
        """Add one chunk and return whether it was new.

        Args:
            index: number of the chunk, from 0.
            payload: bytes of the chunk.

        Raises:
            WireError: the blob has no such chunk, or the chunk has another size.
        """
        if not 0 <= index < self.count:
            raise WireError(f"chunk {index} of blob {self.sha256[:8]}, expected 0 to {self.count - 1}")
        start = index * self.chunk_bytes
        expected = min(self.chunk_bytes, self.size - start)
        if len(payload) != expected:
            raise WireError(
                f"chunk {index} of blob {self.sha256[:8]} is {len(payload)} bytes, expected {expected}"
            )
        self._chunks[index] = payload
        new = index in self._missing
        self._missing.discard(index)
        return new

    def list_missing(self) -> Ranges:
        """Return the ranges of the missing chunks, at most the first 256."""
        return to_ranges(sorted(self._missing))

    def is_complete(self) -> bool:
        """Return whether every chunk has arrived."""
        return not self._missing

    def assemble(self) -> bytes:
        """Return the whole blob.

        Raises:
            WireError: the blob has another sha256. All chunks then count as missing again.
        """
        content = b"".join(self._chunks)
        received = hashlib.sha256(content).hexdigest()
        if received != self.sha256:
            self._missing = set(range(self.count))
            raise WireError(
                f"blob has sha256 {received[:8]}, expected {self.sha256[:8]}; a chunk was damaged, send all "
                "again"
            )
        return content

"""A blob in chunks of 240 KiB or less, and the assembler that knows what it lacks."""

import hashlib

from edgefl.errors import WireError
from edgefl.wire.messages import Ranges

CHUNK_BYTES = 240 * 1024
"""The default, and the most: it passes in a packet of 256 KiB, topic included. Each message costs both ends
the same, however short.
"""
MIN_CHUNK_BYTES = 1024
MAX_BLOB_BYTES = 256 * 1024 * 1024
MAX_RANGES = 256


def count_chunks(size: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the number of chunks of a blob; an empty blob has one, empty."""
    return max(1, -(-size // chunk_bytes))


def slice_chunk(blob: bytes, index: int, chunk_bytes: int = CHUNK_BYTES) -> bytes:
    """Return one chunk of the blob."""
    return blob[index * chunk_bytes : (index + 1) * chunk_bytes]


def to_ranges(indices: list[int]) -> Ranges:
    """Return ascending indices as half-open ranges, the first 256 at most: who asks asks again."""
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return tuple((low, high) for low, high in ranges[:MAX_RANGES])


def to_indices(ranges: Ranges, count: int) -> list[int]:
    """Return the indices in the ranges, without repeats; WireError for a range outside 0..count."""
    indices: set[int] = set()
    if len(ranges) > MAX_RANGES:
        raise WireError(f"{len(ranges)} ranges, expected at most {MAX_RANGES}; ask for fewer at a time")
    for low, high in ranges:
        if not 0 <= low < high <= count:
            raise WireError(f"range {low}..{high}, expected within 0..{count}; the blob has {count} chunks")
        indices.update(range(low, high))
    return sorted(indices)


def check_chunk_bytes(chunk_bytes: int) -> None:
    """Raise WireError for a size of chunks that no side may ask for."""
    if not MIN_CHUNK_BYTES <= chunk_bytes <= CHUNK_BYTES:
        raise WireError(
            f"chunks of {chunk_bytes} bytes, expected {MIN_CHUNK_BYTES} to {CHUNK_BYTES}; set chunk_bytes in "
            "[federation]"
        )


def check_manifest(sha256: str, size: int, count: int, chunk_bytes: int, limit: int) -> None:
    """Raise WireError unless size, count and chunk size fit together and the blob is of at most `limit`
    bytes.
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
    """Puts the chunks of one blob together, in any order, each as often as it comes.

    The manifest is checked before memory is taken: `limit` bytes at most. Raises WireError.
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
        """Take one chunk; return whether it was new. WireError when it is none of this blob."""
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
        """Return the ranges still lacking, the first 256 at most."""
        return to_ranges(sorted(self._missing))

    def is_complete(self) -> bool:
        """Whether every chunk came."""
        return not self._missing

    def assemble(self) -> bytes:
        """Return the whole blob.

        WireError when its sha256 is another, and then every chunk is lacking again.
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

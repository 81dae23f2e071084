"""Stores the aggregator's blobs and decides which chunks to publish next.

A chunk that several devices want is published once, because all of them listen.
"""

from collections.abc import Iterable, Iterator

from edgefl.protocol.wire.chunks import CHUNK_BYTES, count_chunks, slice_chunk, to_indices
from edgefl.protocol.wire.messages import Manifest, Want

WANT_WINDOW_S = 0.1
"""How long a blob must go without new requests before its chunks are published."""
MAX_WANT_WAIT_S = 1.0
"""Maximum age of a request before its chunk is published. A chunk is published at once when every client that
was told to expect the blob has asked for it.
"""
# Devices that have the blob need a moment to unsubscribe before a chunk is repeated for a late request. The
# wait doubles because hundreds of waiting devices fill the broker's queues, and more copies slow them down.
CHUNK_REPEAT_S = 0.3
MAX_CHUNK_REPEAT_S = 20.0
"""Maximum time between two publications of the same chunk. The wait starts at `CHUNK_REPEAT_S` and doubles
with each repetition.
"""
# A new subscriber gets the retained manifest. A client that asks without it gets another copy, but hundreds
# of such clients share it.
MANIFEST_REPEAT_S = 1.5
"""Minimum time between two publications of a manifest."""
MAX_RETAINED_BYTES = 4 * 1024 * 1024
"""Largest blob that is left at the broker as retained messages. Chunks of a larger blob are published on
demand.
"""


class BlobServer:
    """Holds blobs by sha256 and a queue of the chunks to publish, oldest request first. It does no I/O.

    All times are in seconds, of any clock that does not go back.

    Args:
        retained_bytes: largest blob in bytes that the broker keeps as retained messages.
        chunk_bytes: size of a chunk in bytes.
    """

    def __init__(self, retained_bytes: int = MAX_RETAINED_BYTES, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._retained_bytes = retained_bytes
        self._chunk_bytes = chunk_bytes
        self._blobs: dict[str, bytes] = {}
        self._pending: dict[tuple[str, int], float] = {}
        self._sent: dict[tuple[str, int], tuple[float, int]] = {}
        self._silent: dict[str, set[str]] = {}
        self._announced_at: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}

    def offer(self, sha256: str, content: bytes) -> None:
        """Store a blob so that clients can ask for it.

        Args:
            sha256: the sha256 of the content, in hexadecimal.
            content: the bytes of the blob.
        """
        self._blobs[sha256] = content

    def list_blobs(self) -> tuple[str, ...]:
        """Return the sha256 of every blob."""
        return tuple(self._blobs)

    def keep_only(self, sha256s: Iterable[str]) -> list[str]:
        """Remove all blobs except these.

        Args:
            sha256s: the blobs that stay.

        Returns:
            The sha256 of every removed blob.
        """
        remaining = set(sha256s)
        gone = [sha256 for sha256 in self._blobs if sha256 not in remaining]
        for sha256 in gone:
            del self._blobs[sha256]
        self._pending = {key: since for key, since in self._pending.items() if key[0] in remaining}
        self._sent = {key: at for key, at in self._sent.items() if key[0] in remaining}
        self._silent = {key: silent for key, silent in self._silent.items() if key in remaining}
        self._announced_at = {key: at for key, at in self._announced_at.items() if key in remaining}
        self._asked_at = {key: at for key, at in self._asked_at.items() if key in remaining}
        return gone

    def make_manifest(self, sha256: str, session: str = "") -> Manifest:
        """Return the manifest of a stored blob: its size and its chunks.

        Args:
            sha256: the blob.
            session: the session that the manifest names.

        Raises:
            KeyError: the blob is not stored.
        """
        size = len(self._blobs[sha256])
        count = count_chunks(size, self._chunk_bytes)
        return Manifest(
            sha256=sha256,
            size=size,
            count=count,
            chunk_bytes=self._chunk_bytes,
            ts=0.0,
            retained=size <= self._retained_bytes,
            session=session,
        )

    def iterate_chunks(self, sha256: str) -> Iterator[bytes]:
        """Yield the chunks of a stored blob.

        Args:
            sha256: the blob.

        Raises:
            KeyError: the blob is not stored.
        """
        blob = self._blobs[sha256]
        return (
            slice_chunk(blob, index, self._chunk_bytes)
            for index in range(count_chunks(len(blob), self._chunk_bytes))
        )

    def is_manifest_due(self, sha256: str, now: float) -> bool:
        """Return whether to publish a manifest again for a client that asks without it.

        The first request is never answered with a manifest, because the offer has just published it.

        Args:
            sha256: the blob.
            now: the time in seconds.
        """
        due = now - self._announced_at.setdefault(sha256, now) > MANIFEST_REPEAT_S
        if due:
            self._announced_at[sha256] = now
        return due

    def expect(self, sha256: str, client_id: str) -> None:
        """Record that a client learned of a blob and may ask for it. Retained blobs need no request.

        Args:
            sha256: the sha256 of a stored blob, in hexadecimal.

        Raises:
            KeyError: the blob is not stored.
        """
        if len(self._blobs[sha256]) <= self._retained_bytes:
            return
        self._silent.setdefault(sha256, set()).add(client_id)

    def record_want(self, want: Want, now: float, client_id: str = "") -> bool:
        """Record the chunks that a client lacks.

        Args:
            want: the blob and the ranges of chunks. No ranges mean all chunks.
            now: the time in seconds.

        Returns:
            Whether the blob is stored. A request for another blob is ignored.

        Raises:
            WireError: the ranges lie outside the blob.
        """
        if want.sha256 not in self._blobs:
            return False
        self._silent.get(want.sha256, set()).discard(client_id)
        self._asked_at[want.sha256] = now
        count = count_chunks(len(self._blobs[want.sha256]), self._chunk_bytes)
        for index in to_indices(want.missing or ((0, count),), count):
            self._pending.setdefault((want.sha256, index), now)
        return True

    def take_next_chunk(self, now: float) -> tuple[str, int, bytes] | None:
        """Return the next chunk to publish and remove it from the queue.

        A request waits a moment for other clients that may want the same chunk.

        Args:
            now: the time in seconds.

        Returns:
            The sha256, the index and the bytes of the chunk, or None when no chunk is due.
        """
        for key, since in self._pending.items():
            all_asked = self._silent.get(key[0]) == set()
            waited = (
                all_asked or now - self._asked_at[key[0]] >= WANT_WINDOW_S or now - since >= MAX_WANT_WAIT_S
            )
            if waited and now >= self._find_due_time(key):
                del self._pending[key]
                self._sent[key] = (now, self._sent.get(key, (now, 0))[1] + 1)
                return *key, slice_chunk(self._blobs[key[0]], key[1], self._chunk_bytes)
        return None

    def _find_due_time(self, key: tuple[str, int]) -> float:
        """Return the earliest time at which a chunk may be published."""
        if key not in self._sent:
            return 0.0
        at, times = self._sent[key]
        return at + min(MAX_CHUNK_REPEAT_S, CHUNK_REPEAT_S * 2.0 ** (times - 1))

    @property
    def is_busy(self) -> bool:
        """Whether chunks wait to be published."""
        return bool(self._pending)

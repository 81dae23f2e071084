"""The aggregator's blobs and what of them is wanted.

Chunks that several devices want go out once: all who lack them listen.
"""

import time
from collections.abc import Iterable, Iterator

from edgefl.wire.chunks import CHUNK_BYTES, count_chunks, slice_chunk, to_indices
from edgefl.wire.messages import Manifest, Want

WANT_WINDOW_S = 0.1
MAX_WANT_WAIT_S = 1.0
"""A want waits until all who were told of the blob have asked; else until nobody asked for the first, or it
is as old as the second.
"""
# devices that have a blob need a moment to leave it before it comes again for those who asked late; the wait
# doubles with each time,
# for what hundreds still wait for lies in the broker's queues, and more of it would only be slower
CHUNK_REPEAT_S = 0.3
MAX_CHUNK_REPEAT_S = 20.0
# a manifest is retained, so that who subscribes gets it; who asks without it is told again, but not each of
# hundreds
MANIFEST_REPEAT_S = 1.5
MAX_RETAINED_BYTES = 4 * 1024 * 1024
"""A blob of at most so many bytes is left with the broker, which gives it to whoever subscribes; of a larger
one only what is wanted.
"""


class BlobServer:
    """Blobs by sha256, and the chunks still to be published, oldest want first. No I/O; `now` in seconds."""

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
        """Hold a blob for whoever wants it."""
        self._blobs[sha256] = content

    def list_blobs(self) -> tuple[str, ...]:
        """Return the names of all blobs."""
        return tuple(self._blobs)

    def keep_only(self, sha256s: Iterable[str]) -> list[str]:
        """Drop all other blobs and return their names."""
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
        """Return size and chunks of a blob that is held."""
        size = len(self._blobs[sha256])
        count = count_chunks(size, self._chunk_bytes)
        return Manifest(
            sha256, size, count, self._chunk_bytes, time.time(), size <= self._retained_bytes, session
        )

    def iterate_chunks(self, sha256: str) -> Iterator[bytes]:
        """Yield the chunks of a blob that is held."""
        blob = self._blobs[sha256]
        return (
            slice_chunk(blob, index, self._chunk_bytes)
            for index in range(count_chunks(len(blob), self._chunk_bytes))
        )

    def is_manifest_due(self, sha256: str, now: float) -> bool:
        """Whether to publish a manifest again for one who asks without it: not at the first ask, for it was
        with the offer.
        """
        due = now - self._announced_at.setdefault(sha256, now) > MANIFEST_REPEAT_S
        if due:
            self._announced_at[sha256] = now
        return due

    def expect(self, sha256: str, client_id: str) -> None:
        """Note that a device was told of a blob: it may ask for it, unless the broker has it."""
        if len(self._blobs[sha256]) <= self._retained_bytes:
            return
        self._silent.setdefault(sha256, set()).add(client_id)

    def record_want(self, want: Want, now: float, client_id: str = "") -> bool:
        """Note what a device lacks; False for a blob that is not held any more.

        WireError for ranges outside the blob.
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
        """Take the next (sha256, index, chunk) to publish.

        A want waits a moment for others that may want the same.
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
        """Return when a chunk may go out."""
        if key not in self._sent:
            return 0.0
        at, times = self._sent[key]
        return at + min(MAX_CHUNK_REPEAT_S, CHUNK_REPEAT_S * 2.0 ** (times - 1))

    @property
    def is_busy(self) -> bool:
        """Whether chunks wait to be published."""
        return bool(self._pending)

"""Downloads blobs. Requests blobs that the broker does not retain, and requests missing chunks again."""

import contextlib
import math
from collections.abc import Callable, Mapping

from edgefl.base.errors import WireError
from edgefl.protocol.wire.chunks import CHUNK_BYTES, Assembler
from edgefl.protocol.wire.messages import Manifest, Want

FIRST_REQUEST_TIMEOUT_S = 2.0
LONGEST_REQUEST_TIMEOUT_S = 15.0
"""Range of the time without a new chunk after which missing chunks are requested again, in seconds."""
MAX_QOS_0_BYTES = 20 * CHUNK_BYTES
"""Maximum size of blobs that are sent with QoS 0. At QoS 1, brokers allow 20 messages in flight."""


class Download:
    """The download of several blobs, of which the client may have some from before.

    Args:
        limits: maximum size of each blob in bytes, by sha256.
        draw_factor: returns the factor by which the next pause is longer, about 1.6.

    Attributes:
        limits: maximum size of each blob in bytes, by sha256.
        blobs: the complete blobs by sha256.
        missing: sha256 of the blobs that the client did not have before.
    """

    def __init__(self, limits: Mapping[str, int], draw_factor: Callable[[], float]) -> None:
        self.limits = limits
        self.blobs: dict[str, bytes] = {}
        self.missing: tuple[str, ...] = ()
        self._draw_factor = draw_factor
        self._assemblers: dict[str, Assembler | None] = {}
        self._early_chunks: dict[str, dict[int, bytes]] = {}
        self._timeout_s = FIRST_REQUEST_TIMEOUT_S
        self._progressed_at = math.inf

    @property
    def is_complete(self) -> bool:
        """Whether all blobs are there."""
        return len(self.blobs) == len(self.limits)

    @property
    def qos(self) -> int:
        """Quality of service of the subscription. QoS 1 limits the broker's queue for a slow device."""
        return int(sum(self.limits[sha256] for sha256 in self.missing) > MAX_QOS_0_BYTES)

    def begin(self, cached: Mapping[str, bytes], now: float) -> None:
        """Begin to download the blobs that the client does not have.

        Args:
            cached: the blobs that the client has, by sha256.
            now: the time in seconds.
        """
        self.blobs.update(cached)
        self.missing = tuple(sha256 for sha256 in self.limits if sha256 not in cached)
        self._assemblers = dict.fromkeys(self.missing)
        self._progressed_at = now

    def add_manifest(self, manifest: Manifest, now: float) -> list[Want]:
        """Add a manifest, and return the request for chunks that the broker does not retain.

        Args:
            manifest: the manifest. A repeated manifest and a manifest of another blob are ignored.
            now: the time in seconds.

        Raises:
            WireError: the manifest is not valid, or the blob is too large.
        """
        sha256 = manifest.sha256
        if sha256 in self.blobs or self._assemblers.get(sha256, 0) is not None:
            return []
        assembler = self._assemblers[sha256] = Assembler(
            sha256=sha256,
            size=manifest.size,
            count=manifest.count,
            chunk_bytes=manifest.chunk_bytes,
            limit=self.limits[sha256],
        )
        self._progressed_at = now
        for index, payload in self._early_chunks.pop(sha256, {}).items():
            with contextlib.suppress(WireError):  # The others may still fit
                assembler.add(index, payload)
        self._complete(sha256, assembler)
        return [] if manifest.retained or sha256 in self.blobs else [self._make_want(sha256)]

    def add_chunk(self, sha256: str, index: int, payload: bytes, now: float) -> None:
        """Add a chunk. A chunk of another blob is ignored.

        A broker sends retained messages in any order, so a chunk may arrive before its manifest.

        Args:
            sha256: digest of the blob in hex.
            index: number of the chunk, from 0.
            payload: bytes of the chunk.
            now: the time in seconds.

        Raises:
            WireError: the chunk does not fit its manifest.
        """
        if sha256 not in self._assemblers or sha256 in self.blobs:
            return
        assembler = self._assemblers[sha256]
        if assembler is None:
            early = self._early_chunks.setdefault(sha256, {})
            if sum(map(len, early.values())) + len(payload) <= self.limits[sha256]:
                early[index] = payload
        elif assembler.add(index, payload):
            self._progressed_at = now
            self._complete(sha256, assembler)

    def _complete(self, sha256: str, assembler: Assembler) -> None:
        if assembler.is_complete():
            with contextlib.suppress(WireError):  # A damaged blob loses all its chunks. They are sent again
                self.blobs[sha256] = assembler.assemble()
                self._assemblers[sha256] = None  # Frees the chunks

    def handle_timer(self, now: float) -> list[Want]:
        """Return the requests for missing manifests and chunks, if they are due.

        Args:
            now: the time in seconds.
        """
        if now < self.get_timer():
            return []
        self._progressed_at = now
        self._timeout_s = min(LONGEST_REQUEST_TIMEOUT_S, self._timeout_s * self._draw_factor())
        return [self._make_want(sha256) for sha256 in self.missing if sha256 not in self.blobs]

    def get_timer(self) -> float:
        """Return the time in seconds at which `handle_timer` is due."""
        return self._progressed_at + self._timeout_s

    def _make_want(self, sha256: str) -> Want:
        assembler = self._assemblers[sha256]
        return Want(sha256, assembler.list_missing() if assembler else (), ts=0.0)

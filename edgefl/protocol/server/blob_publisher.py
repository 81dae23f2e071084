"""Publishes blobs: manifests and small blobs as retained messages, chunks of large blobs on demand."""

import math
from collections.abc import Callable, Collection

from edgefl.base.errors import WireError
from edgefl.protocol.server.blobs import MAX_RETAINED_BYTES, BlobServer
from edgefl.protocol.server.events import Action
from edgefl.protocol.wire.chunks import CHUNK_BYTES, count_chunks
from edgefl.protocol.wire.machine_events import Publish
from edgefl.protocol.wire.messages import Manifest, Want
from edgefl.protocol.wire.topics import FederationTopics

MAX_CHUNKS_IN_FLIGHT = 8
"""Maximum number of messages in flight when a chunk is published. Waiting keeps a later chunk useful for
clients that ask in the meantime.
"""
CHUNK_POLL_S = 0.05
"""How often the server looks for due chunks while clients wait for chunks."""


class BlobPublisher:
    """Offers the blobs of a federation to its clients.

    Args:
        session: the session, which marks the manifests as belonging to this aggregator.
        emit: receives each action.
        chunk_bytes: size of a chunk in bytes.
    """

    def __init__(
        self,
        topics: FederationTopics,
        session: str,
        emit: Callable[[Action], None],
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._topics = topics
        self._session = session
        self._emit = emit
        self._blobs = BlobServer(chunk_bytes=chunk_bytes)
        self._max_retained_chunks = count_chunks(MAX_RETAINED_BYTES, chunk_bytes)

    def offer(self, sha256: str, content: bytes) -> None:
        """Offer a blob. A blob that is already on offer is not published again.

        Args:
            sha256: the sha256 of the content, in hexadecimal.
            content: the bytes of the blob.
        """
        if sha256 not in self._blobs.list_blobs():
            self._blobs.offer(sha256, content)
            self._publish(sha256)

    def _publish(self, sha256: str) -> None:
        if self._publish_manifest(sha256).retained:
            for index, content in enumerate(self._blobs.iterate_chunks(sha256)):
                self._emit(
                    Publish(topic=self._topics.format_blob(sha256, index), message=content, is_retained=True)
                )

    def _publish_manifest(self, sha256: str) -> Manifest:
        manifest = self._blobs.make_manifest(sha256, self._session)
        self._emit(Publish(topic=self._topics.format_manifest(sha256), message=manifest, is_retained=True))
        return manifest

    def publish_again(self) -> None:
        """Publish all blobs again, for a broker that lost its retained messages."""
        for sha256 in self._blobs.list_blobs():
            self._publish(sha256)

    def keep_only(self, sha256s: Collection[str]) -> None:
        """Withdraw all blobs except these, from the broker too.

        Args:
            sha256s: the blobs that stay on offer.
        """
        manifests = {sha256: self._blobs.make_manifest(sha256) for sha256 in self._blobs.list_blobs()}
        for sha256 in self._blobs.keep_only(sha256s):
            self._remove(manifests[sha256])

    def _remove(self, manifest: Manifest) -> None:
        indices = range(manifest.count if manifest.retained else 0)
        blobs = [self._topics.format_blob(manifest.sha256, index) for index in indices]
        for topic in (self._topics.format_manifest(manifest.sha256), *blobs):
            self._emit(Publish(topic=topic, message=b"", is_retained=True))

    def remove_leftover(self, manifest: Manifest) -> None:
        """Remove a blob that an earlier process of this federation's aggregator left at the broker.

        A manifest of another session and a blob that is on offer are left alone.

        Args:
            manifest: the retained manifest of the blob.

        Raises:
            WireError: the manifest counts more chunks than an aggregator leaves at the broker. Without an
                access list anyone may have written it.
        """
        if manifest.session != self._session or manifest.sha256 in self._blobs.list_blobs():
            return
        if not 0 <= manifest.count <= self._max_retained_chunks:
            raise WireError(
                f"a retained manifest counts {manifest.count} chunks, expected at most "
                f"{self._max_retained_chunks}; forbid other clients to write it in the broker's access list"
            )
        self._remove(manifest)

    def expect(self, sha256: str, client_id: str) -> None:
        """Record that a client learned of a blob and may ask for it.

        Args:
            sha256: the sha256 of a blob on offer, in hexadecimal.

        Raises:
            KeyError: the blob is not on offer.
        """
        self._blobs.expect(sha256, client_id)

    def record_want(self, client_id: str, want: Want, now: float) -> None:
        """Record the chunks that a client lacks.

        The manifest is published again when the client asks for a whole blob and the manifest is due.

        Args:
            want: the blob and the ranges of chunks that the client lacks. No ranges mean all chunks.
            now: the time in seconds.

        Raises:
            WireError: the ranges lie outside the blob.
        """
        if (
            self._blobs.record_want(want, now, client_id)
            and not want.missing
            and self._blobs.is_manifest_due(want.sha256, now)
        ):
            self._publish_manifest(want.sha256)

    def publish_due(self, now: float, in_flight: int) -> int:
        """Publish the chunks that are due.

        Args:
            now: the time in seconds.
            in_flight: number of messages that the broker has not acknowledged.

        Returns:
            The number of published chunks.
        """
        count = 0
        while in_flight + count < MAX_CHUNKS_IN_FLIGHT and (due := self._blobs.take_next_chunk(now)):
            sha256, index, content = due
            self._emit(Publish(topic=self._topics.format_blob(sha256, index), message=content))
            count += 1
        return count

    def get_timer(self, now: float) -> float:
        """Return the time in seconds at which chunks may be due, or infinity if no client waits for
        chunks.
        """
        return now + CHUNK_POLL_S if self._blobs.is_busy else math.inf

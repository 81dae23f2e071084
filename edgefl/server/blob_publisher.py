"""Publishes blobs: manifests and small blobs as retained messages, chunks of large blobs on demand."""

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from edgefl.errors import WireError
from edgefl.server.blobs import MAX_RETAINED_BYTES, BlobServer
from edgefl.server.events import Action, Publish
from edgefl.wire.chunks import CHUNK_BYTES, count_chunks
from edgefl.wire.messages import Manifest, Want
from edgefl.wire.topics import FederationTopics

MAX_CHUNKS_IN_FLIGHT = 8
"""A later chunk may serve clients that ask in the meantime, so few are on their way at a time."""
CHUNK_POLL_S = 0.05
"""How often the server looks for chunks that are due, while clients wait for some."""


class BlobPublisher:
    """Offers the blobs of a federation to its clients.

    Args:
        topics: the topics of the federation.
        session: the session, which marks the manifests as belonging to this aggregator.
        emit: receives each action.
        chunk_bytes: the size of the chunks in bytes.
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
        """Offer a blob. A blob that is on offer already is not published again."""
        if sha256 not in self._blobs.list_blobs():
            self._blobs.offer(sha256, content)
            self._publish(sha256)

    def _publish(self, sha256: str) -> None:
        if self._publish_manifest(sha256).retained:
            for index, content in enumerate(self._blobs.iterate_chunks(sha256)):
                self._emit(Publish(self._topics.format_blob(sha256, index), content, is_retained=True))

    def _publish_manifest(self, sha256: str) -> Manifest:
        manifest = replace(self._blobs.make_manifest(sha256, self._session), ts=0.0)
        self._emit(Publish(self._topics.format_manifest(sha256), manifest, is_retained=True))
        return manifest

    def publish_again(self) -> None:
        """Publish all blobs again, for a broker that lost its retained messages."""
        for sha256 in self._blobs.list_blobs():
            self._publish(sha256)

    def keep_only(self, sha256s: Collection[str]) -> None:
        """Withdraw all other blobs, from the broker too."""
        manifests = {sha256: self._blobs.make_manifest(sha256) for sha256 in self._blobs.list_blobs()}
        for sha256 in self._blobs.keep_only(sha256s):
            self._remove(manifests[sha256])

    def _remove(self, manifest: Manifest) -> None:
        indices = range(manifest.count if manifest.retained else 0)
        blobs = [self._topics.format_blob(manifest.sha256, index) for index in indices]
        for topic in (self._topics.format_manifest(manifest.sha256), *blobs):
            self._emit(Publish(topic, b"", is_retained=True))

    def remove_leftover(self, manifest: Manifest) -> None:
        """Remove a blob that this federation's aggregator left at the broker when it was killed.

        Raises:
            WireError: the manifest counts more chunks than an aggregator leaves. Without an access list
                anybody may have written it.
        """
        if manifest.session != self._session or manifest.sha256 in self._blobs.list_blobs():
            return
        if not 0 <= manifest.count <= self._max_retained_chunks:
            raise WireError(
                f"a manifest of {manifest.count} chunks, expected at most {self._max_retained_chunks}, which "
                "an aggregator leaves; let the broker's access list keep others from writing it"
            )
        self._remove(manifest)

    def expect(self, sha256: str, client_id: str) -> None:
        """Note that a client learned of a blob and may ask for it."""
        self._blobs.expect(sha256, client_id)

    def record_want(self, client_id: str, want: Want, now: float) -> None:
        """Note the chunks that a client lacks.

        Raises:
            WireError: the ranges lie outside of the blob.
        """
        if (
            self._blobs.record_want(want, now, client_id)
            and not want.missing
            and self._blobs.is_manifest_due(want.sha256, now)
        ):
            self._publish_manifest(want.sha256)

    def publish_due(self, now: float, in_flight: int) -> int:
        """Publish chunks that are due, and return how many.

        Args:
            now: the time in seconds.
            in_flight: number of messages that the broker has not acknowledged.
        """
        count = 0
        while in_flight + count < MAX_CHUNKS_IN_FLIGHT and (due := self._blobs.take_next_chunk(now)):
            sha256, index, content = due
            self._emit(Publish(self._topics.format_blob(sha256, index), content))
            count += 1
        return count

    def get_timer(self, now: float) -> float:
        """Return the time at which chunks may be due; infinity when no client waits for one."""
        return now + CHUNK_POLL_S if self._blobs.is_busy else math.inf

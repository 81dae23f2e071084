"""An aggregator's blobs on the wire: manifests and the chunks of small blobs retained, others to whoever
asked.
"""

import time

from edgefl.errors import WireError
from edgefl.server.blobs import RETAINED_BYTES, BlobServer
from edgefl.transport.link import Link
from edgefl.wire.chunks import CHUNK_BYTES, chunk_count
from edgefl.wire.messages import Manifest, Want
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.topics import Topics

CHUNK_WINDOW = 8


class BlobTraffic:
    """Publishes what a `BlobServer` says is due."""

    def __init__(self, link: Link, topics: Topics, session: str, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._link = link
        self._topics = topics
        self._session = session
        self._server = BlobServer(chunk_bytes=chunk_bytes)
        self._max_retained = chunk_count(RETAINED_BYTES, chunk_bytes)

    def offer(self, sha256: str, content: bytes) -> None:
        """Hold a blob and publish what the broker shall keep of it.

        One that is held already costs nothing.
        """
        if sha256 not in self._server.held():
            self._server.offer(sha256, content)
            self._publish(sha256)

    def _publish(self, sha256: str) -> None:
        manifest = self._publish_manifest(sha256)
        if manifest.retained:
            for index, content in enumerate(self._server.chunks(sha256)):
                self._link.publish(self._topics.blob(sha256, index), content, retain=True)

    def _publish_manifest(self, sha256: str) -> Manifest:
        manifest = self._server.manifest(sha256, self._session)
        self._link.publish(self._topics.manifest(sha256), encode_json(manifest), retain=True)
        return manifest

    def publish_again(self) -> None:
        """Publish all of it again: a broker that was restarted has forgotten what was retained."""
        for sha256 in self._server.held():
            self._publish(sha256)

    def keep_only(self, wanted: set[str]) -> None:
        """Drop all other blobs, and take them from the broker."""
        manifests = [self._server.manifest(sha256) for sha256 in self._server.held()]
        gone = set(self._server.keep_only(wanted))
        for manifest in manifests:
            if manifest.sha256 in gone:
                self._clear(manifest)

    def _clear(self, manifest: Manifest) -> None:
        indices = range(manifest.count if manifest.retained else 0)
        for topic in (
            self._topics.manifest(manifest.sha256),
            *(self._topics.blob(manifest.sha256, index) for index in indices),
        ):
            self._link.publish(topic, b"", retain=True)

    def clear_left(self, sha256: str, payload: bytes) -> None:
        """Take from the broker what this aggregator left there when it was killed and does not hold now.

        WireError for other manifests.
        """
        manifest = decode_json(Manifest, payload)
        if manifest.session != self._session or sha256 in self._server.held():
            return
        # where no access list says who may write it, it may be anybody's: it must not make this one publish
        # without end
        if manifest.sha256 != sha256 or not 0 <= manifest.count <= self._max_retained:
            raise WireError(
                f"a manifest of {manifest.count} chunks, expected those that an aggregator leaves, "
                f"{self._max_retained} at most; let the broker's access list keep others from writing it"
            )
        self._clear(manifest)

    def expect(self, sha256: str, client_id: str) -> None:
        """Note that a device was told of a blob: it may ask for it."""
        self._server.expect(sha256, client_id)

    def want(self, client_id: str, want: Want) -> None:
        """Note what a device lacks. WireError for ranges outside the blob."""
        now = time.monotonic()
        if (
            self._server.want(want, now, client_id)
            and not want.missing
            and self._server.is_manifest_due(want.sha256, now)
        ):
            self._publish_manifest(want.sha256)

    def send_due(self, now: float) -> None:
        """Publish chunks, as many as may be on their way at once."""
        while self._link.in_flight < CHUNK_WINDOW and (due := self._server.next_chunk(now)):
            sha256, index, content = due
            self._link.publish(self._topics.blob(sha256, index), content)

    @property
    def is_busy(self) -> bool:
        """Whether chunks wait to be published."""
        return self._server.is_busy

"""An aggregator's blobs on the wire: manifests retained, chunks to whoever asked."""

import time

from edgefl.mqtt import Link
from edgefl.wire.messages import Want
from edgefl.wire.strict_json import encode_json
from edgefl.wire.topics import Topics
from mqtt_broker.blob_server import BlobServer

CHUNK_WINDOW = 8


class BlobTraffic:
    """Publishes what a `BlobServer` says is due."""

    def __init__(self, link: Link, topics: Topics) -> None:
        self._link, self._topics, self._server = link, topics, BlobServer()

    def offer(self, sha256: str, content: bytes) -> None:
        """Hold a blob and publish its manifest."""
        self._server.offer(sha256, content)
        self._publish_manifest(sha256)

    def _publish_manifest(self, sha256: str) -> None:
        self._link.publish(self._topics.manifest(sha256), encode_json(self._server.manifest(sha256)), retain=True)

    def publish_manifests(self) -> None:
        """Publish all manifests again: a broker that was restarted has forgotten what was retained."""
        for sha256 in self._server.held():
            self._publish_manifest(sha256)

    def keep_only(self, wanted: set[str]) -> None:
        """Drop all other blobs, and take their retained manifests from the broker."""
        for sha256 in self._server.keep_only(wanted):
            self._link.publish(self._topics.manifest(sha256), b"", retain=True)

    def expect(self, sha256: str, client_id: str) -> None:
        """Note that a device was told of a blob: it may ask for it."""
        self._server.expect(sha256, client_id)

    def want(self, client_id: str, want: Want) -> None:
        """Note what a device lacks. WireError for ranges outside the blob."""
        now = time.monotonic()
        if self._server.want(want, now, client_id) and not want.missing and self._server.is_manifest_due(want.sha256, now):
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

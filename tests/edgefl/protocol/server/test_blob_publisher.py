"""Blobs that the broker retains, and their removal by the aggregator."""

import pytest

from edgefl.base.errors import WireError
from edgefl.protocol.server.blob_publisher import BlobPublisher
from edgefl.protocol.wire.chunks import CHUNK_BYTES
from edgefl.protocol.wire.messages import Manifest
from edgefl.protocol.wire.topics import FederationTopics

A = "a" * 64
B = "b" * 64
TOPICS = FederationTopics("f")


class Broker:
    """Stores retained messages by topic."""

    def __init__(self):
        self.retained_messages = {}
        self.messages = 0

    def handle(self, action):
        self.messages += 1
        if action.message == b"":
            self.retained_messages.pop(action.topic, None)
        elif action.is_retained:
            self.retained_messages[action.topic] = action.message

    def make_publisher(self, session="session"):
        return BlobPublisher(TOPICS, session, self.handle)


def make_manifest(**changes):
    fields = {"sha256": A, "size": 7, "count": 1, "chunk_bytes": CHUNK_BYTES, "ts": 0.0}
    return Manifest(**{**fields, "retained": True, "session": "session", **changes})


def test_small_blob_is_retained_until_it_is_withdrawn():
    broker = Broker()
    publisher = broker.make_publisher()
    publisher.offer(A, bytes(CHUNK_BYTES) + b"end")
    assert [broker.retained_messages[TOPICS.format_blob(A, index)] for index in (0, 1)] == [
        bytes(CHUNK_BYTES),
        b"end",
    ]
    published = broker.retained_messages[TOPICS.format_manifest(A)]
    assert (published.size, published.retained, published.session) == (CHUNK_BYTES + 3, True, "session")
    before = broker.messages
    publisher.offer(A, bytes(CHUNK_BYTES) + b"end")
    assert broker.messages == before, "a blob that is on offer is not published again"
    publisher.keep_only(())
    assert broker.retained_messages == {}


def test_leftover_blobs_are_removed_only_by_the_same_session():
    broker = Broker()
    broker.make_publisher().offer(A, b"content")
    leftover = broker.retained_messages[TOPICS.format_manifest(A)]
    broker.make_publisher("another session").remove_leftover(leftover)
    again = broker.make_publisher()
    again.offer(A, b"content")
    again.remove_leftover(leftover)  # the blob is on offer now
    assert len(broker.retained_messages) == 2
    broker.make_publisher().remove_leftover(leftover)
    assert broker.retained_messages == {}


@pytest.mark.parametrize("count", [-1, 10**9])
def test_implausible_manifest_is_refused_and_removes_nothing(count):
    broker = Broker()
    with pytest.raises(WireError, match=f"a retained manifest counts {count} chunks.*access list"):
        broker.make_publisher().remove_leftover(make_manifest(count=count))
    assert broker.messages == 0


def test_blobs_are_published_again_for_a_broker_that_lost_them():
    broker = Broker()
    publisher = broker.make_publisher()
    publisher.offer(A, b"content")
    publisher.offer(B, b"other")
    retained = dict(broker.retained_messages)
    broker.retained_messages.clear()
    publisher.publish_again()
    assert broker.retained_messages == retained

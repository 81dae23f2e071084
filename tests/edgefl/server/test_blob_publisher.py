"""Which blobs the broker keeps, and who takes them from it."""

import pytest

from edgefl.errors import WireError
from edgefl.server.blob_publisher import BlobPublisher
from edgefl.wire.chunks import CHUNK_BYTES
from edgefl.wire.messages import Manifest
from edgefl.wire.topics import FederationTopics

A = "a" * 64
B = "b" * 64
TOPICS = FederationTopics("f")


class Broker:
    """Keeps retained messages by topic."""

    def __init__(self):
        self.kept = {}
        self.messages = 0

    def take(self, action):
        self.messages += 1
        if action.message == b"":
            self.kept.pop(action.topic, None)
        elif action.is_retained:
            self.kept[action.topic] = action.message

    def publisher(self, session="session"):
        return BlobPublisher(TOPICS, session, self.take)


def manifest(**changes):
    made = {"sha256": A, "size": 7, "count": 1, "chunk_bytes": CHUNK_BYTES, "ts": 0.0}
    return Manifest(**{**made, "retained": True, "session": "session", **changes})


def test_a_small_blob_stays_with_the_broker_until_it_is_withdrawn():
    broker = Broker()
    publisher = broker.publisher()
    publisher.offer(A, bytes(CHUNK_BYTES) + b"end")
    assert [broker.kept[TOPICS.format_blob(A, index)] for index in (0, 1)] == [bytes(CHUNK_BYTES), b"end"]
    found = broker.kept[TOPICS.format_manifest(A)]
    assert (found.size, found.retained, found.session) == (CHUNK_BYTES + 3, True, "session")
    before = broker.messages
    publisher.offer(A, bytes(CHUNK_BYTES) + b"end")
    assert broker.messages == before, "a blob that is on offer is not published again"
    publisher.keep_only(())
    assert broker.kept == {}


def test_what_a_killed_aggregator_left_is_removed_by_its_next_process_alone():
    broker = Broker()
    broker.publisher().offer(A, b"content")
    left = broker.kept[TOPICS.format_manifest(A)]
    broker.publisher("another session").remove_leftover(left)
    again = broker.publisher()
    again.offer(A, b"content")
    again.remove_leftover(left)  # It is on offer now
    assert len(broker.kept) == 2
    broker.publisher().remove_leftover(left)
    assert broker.kept == {}


@pytest.mark.parametrize("count", [-1, 10**9])
def test_a_manifest_that_no_aggregator_leaves_removes_nothing(count):
    broker = Broker()
    with pytest.raises(WireError, match=f"a retained manifest counts {count} chunks.*access list"):
        broker.publisher().remove_leftover(manifest(count=count))
    assert broker.messages == 0


def test_blobs_are_published_again_for_a_broker_that_lost_them():
    broker = Broker()
    publisher = broker.publisher()
    publisher.offer(A, b"content")
    publisher.offer(B, b"other")
    kept = dict(broker.kept)
    broker.kept.clear()
    publisher.publish_again()
    assert broker.kept == kept

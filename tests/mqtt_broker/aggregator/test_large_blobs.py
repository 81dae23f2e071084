"""A blob that the broker does not retain is sent in chunks, as many at a time as the broker acknowledges."""

import hashlib
import json
import time

from edgefl.protocol.server.blob_publisher import MAX_CHUNKS_IN_FLIGHT
from edgefl.protocol.server.blobs import MAX_RETAINED_BYTES
from edgefl.protocol.transport.link import Message
from edgefl.protocol.wire.messages import Want
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import parse_topic

DEADLINE_S = 60.0


def fetch(client, topics, sha256):
    """Request a blob and return its chunks in order."""
    client.link.subscribe(topics.format_blob(sha256, "+"))
    client.link.publish(
        topics.format_device(client.client_id, "want"), encode_json(Want(sha256, (), time.time()))
    )
    chunks = {}
    size = None
    deadline = time.monotonic() + DEADLINE_S
    while size is None or len(chunks) < size:
        event = client.link.get(max(0.0, deadline - time.monotonic()))
        assert event is not None, f"{len(chunks)} of {size} chunks came"
        if not isinstance(event, Message) or not event.payload:
            continue
        address = parse_topic(event.topic)
        if address.kind == "manifest":
            size = json.loads(event.payload)["count"]
        elif address.kind == "blob":
            chunks[address.index] = event.payload
    return [chunks[index] for index in range(size)]


def test_all_chunks_of_a_large_blob_arrive(federate, mosquitto_url, toys, puppet):
    federation = federate(
        mosquitto_url, rounds=1, min_clients=1, algorithm="fedavg", wide=15, chunk_bytes=16_384
    )
    aggregator = federation.aggregator()
    client = puppet(federation, "pi-1")
    task = client.next("task")
    [sha256] = task.models.values()
    chunks = fetch(client, federation.topics, sha256)
    blob = b"".join(chunks)
    assert len(blob) > MAX_RETAINED_BYTES and len(chunks) > 10 * MAX_CHUNKS_IN_FLIGHT
    assert hashlib.sha256(blob).hexdigest() == sha256
    assert aggregator.popen.poll() is None, aggregator.err

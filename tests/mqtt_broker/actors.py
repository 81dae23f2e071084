"""A puppet, which is a device whose messages the test sends, and a listener."""

import contextlib
import hashlib
import json
import secrets
import socket
import time
from collections import deque
from dataclasses import replace

from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.chunks import CHUNK_BYTES, count_chunks, slice_chunk
from edgefl.protocol.wire.messages import Begin, End, Receipt, Status, Task
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.protocol.wire.topics import TOPIC_PREFIX, parse_topic

DEADLINE_S = 40.0


class Puppet:
    """A device whose messages the test sends."""

    def __init__(self, federation, client_id):
        self.topics = federation.topics
        self.client_id = client_id
        self.status = Status(
            client_id=client_id,
            boot_id=secrets.token_hex(8),
            online=True,
            born=time.time(),
            num_samples=10,
            version="0",
            ts=time.time(),
        )
        will = Message(
            topic=self.topics.format_device(client_id, "status"),
            payload=encode_json(replace(self.status, online=False)),
            retained=True,
        )
        self.link = Link(federation.url, f"puppet-{client_id}-{self.status.boot_id}", will=will)
        self.inbox = {"task": deque(), "receipt": deque()}
        self.link.subscribe(
            self.topics.format_device(client_id, "task"), self.topics.format_device(client_id, "receipt")
        )
        self.link.publish(
            self.topics.format_device(client_id, "status"), encode_json(self.status), retain=True
        )

    def next(self, kind):
        """Return the next message of that kind, task or receipt. Messages of the other kind wait."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.inbox[kind] and time.monotonic() < deadline:
            event = self.link.get(deadline - time.monotonic())
            if isinstance(event, Message):
                self.inbox[parse_topic(event.topic).kind].append(event.payload)
        assert self.inbox[kind], f"no {kind} came"
        return decode_json(Task if kind == "task" else Receipt, self.inbox[kind].popleft())

    def begin(self, task, blob, **changes):
        """Announce an update and return the announcement."""
        begin = Begin(
            client_id=self.client_id,
            session=task.session,
            round=task.round,
            plan=task.plan,
            sha256=hashlib.sha256(blob).hexdigest(),
            size=len(blob),
            count=count_chunks(len(blob)),
            chunk_bytes=CHUNK_BYTES,
            num_samples=10,
            metrics={"loss": 1.0},
            nonce=task.nonce,
            ts=time.time(),
        )
        begin = replace(begin, **changes)
        self.publish(begin.sha256, "begin", encode_json(begin))
        return begin

    def publish_status(self, **changes):
        """Publish the status, with these fields changed."""
        self.link.publish(
            self.topics.format_device(self.client_id, "status"),
            encode_json(replace(self.status, **changes)),
            retain=True,
        )

    def publish(self, sha256, leaf, payload):
        self.link.publish(self.topics.format_upload(self.client_id, sha256, leaf), payload)

    def send(self, task, blob, lose=(), **changes):
        """Send a whole update without the chunks in `lose`. Return the receipt after it."""
        begin = self.begin(task, blob, **changes)
        receipt = self.next("receipt")
        if receipt.outcome == "missing":
            for index in range(begin.count):
                if index not in lose:
                    self.publish(begin.sha256, index, slice_chunk(blob, index))
            self.publish(begin.sha256, "end", encode_json(End(begin.sha256, begin.count, time.time())))
            receipt = self.next("receipt")
        return receipt

    def publish_unchecked(self, topic, payload):
        """Publish without the link's own check of sizes."""
        self.link._client.publish(topic, payload, qos=1)

    def drop_connection(self):
        """Break the connection, so that the broker publishes the will."""
        self.link._client.reconnect_delay_set(600, 600)
        with contextlib.suppress(OSError, AttributeError):
            self.link._client.socket().shutdown(socket.SHUT_RDWR)

    def close(self):
        self.link.publish(
            self.topics.format_device(self.client_id, "status"),
            encode_json(replace(self.status, online=False)),
            retain=True,
        )
        self.link.close()


class Listener:
    """Collects all messages on the topics of a filter."""

    def __init__(self, url, topic):
        self.link = Link(url, f"listener-{secrets.token_hex(4)}")
        self.link.subscribe(topic)
        self.messages = []

    def wait_for_phase(self, phase, topic="/state"):
        """Listen until a state message has that phase and return every message so far. `topic` ends the
        topic of the state.
        """

        def has_phase(message):
            is_state = message.topic.startswith(f"{TOPIC_PREFIX}/") and message.topic.endswith(topic)
            return is_state and json.loads(message.payload)["phase"] == phase

        return self.wait_for(has_phase)

    def wait_for_topic(self, leaf):
        """Listen until a message arrives on a topic with this ending and return every message so far."""
        return self.wait_for(lambda message: message.topic.endswith(f"/{leaf}"))

    def wait_until_online(self):
        """Listen until a status is online and return every message so far."""
        return self.wait_for(
            lambda message: message.topic.endswith("/status") and json.loads(message.payload)["online"]
        )

    def wait_until_offline(self):
        """Listen until a status is offline and return every message so far."""
        return self.wait_for(
            lambda message: message.topic.endswith("/status") and not json.loads(message.payload)["online"]
        )

    def wait_for(self, predicate):
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            event = self.link.get(deadline - time.monotonic())
            if isinstance(event, Message):
                self.messages.append(event)
                if predicate(event):
                    return self.messages
        raise AssertionError(
            f"no such message within {DEADLINE_S} s, received {[message.topic for message in self.messages]}"
        )

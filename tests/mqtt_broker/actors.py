"""A puppet, which is a device whose every message the test writes itself, and a listener."""

import contextlib
import hashlib
import json
import secrets
import socket
import time
from collections import deque
from dataclasses import replace

from edgefl.transport.link import Link, Message
from edgefl.wire.chunks import CHUNK_BYTES, count_chunks, slice_chunk
from edgefl.wire.messages import Begin, End, Receipt, Status, Task
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.topics import TOPIC_PREFIX, parse_topic

DEADLINE_S = 40.0


class Puppet:
    """A device without a will of its own."""

    def __init__(self, federation, client_id):
        self.topics = federation.topics
        self.client_id = client_id
        self.status = Status(client_id, secrets.token_hex(8), True, time.time(), 10, "0", time.time())
        will = Message(
            self.topics.format_device(client_id, "status"),
            encode_json(replace(self.status, online=False)),
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
        """Return the next message of that kind, task or receipt; those of the other kind are kept."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.inbox[kind] and time.monotonic() < deadline:
            event = self.link.get(deadline - time.monotonic())
            if isinstance(event, Message):
                self.inbox[parse_topic(event.topic).kind].append(event.payload)
        assert self.inbox[kind], f"no {kind} came"
        return decode_json(Task if kind == "task" else Receipt, self.inbox[kind].popleft())

    def begin(self, task, blob, **changes):
        """Announce an update; returns what was announced."""
        begin = Begin(
            self.client_id,
            task.session,
            task.round,
            task.plan,
            hashlib.sha256(blob).hexdigest(),
            len(blob),
            count_chunks(len(blob)),
            CHUNK_BYTES,
            10,
            {"loss": 1.0},
            task.nonce,
            time.time(),
        )
        begin = replace(begin, **changes)
        self.publish(begin.sha256, "begin", encode_json(begin))
        return begin

    def say(self, **changes):
        """Publish the status, with these fields changed."""
        self.link.publish(
            self.topics.format_device(self.client_id, "status"),
            encode_json(replace(self.status, **changes)),
            retain=True,
        )

    def publish(self, sha256, leaf, payload):
        self.link.publish(self.topics.format_upload(self.client_id, sha256, leaf), payload)

    def send(self, task, blob, lose=(), **changes):
        """Send a whole update, save the chunks in `lose`; returns the receipt after it."""
        begin = self.begin(task, blob, **changes)
        receipt = self.next("receipt")
        if receipt.outcome == "missing":
            for index in range(begin.count):
                if index not in lose:
                    self.publish(begin.sha256, index, slice_chunk(blob, index))
            self.publish(begin.sha256, "end", encode_json(End(begin.sha256, begin.count, time.time())))
            receipt = self.next("receipt")
        return receipt

    def shout(self, topic, payload):
        """Publish past the link's own check of sizes."""
        self.link._client.publish(topic, payload, qos=1)

    def close_hard(self):
        """Break the connection: the will speaks."""
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


class Heard:
    """All that was said on the topics under a prefix."""

    def __init__(self, url, topic):
        self.link = Link(url, f"listener-{secrets.token_hex(4)}")
        self.link.subscribe(topic)
        self.messages = []

    def until_phase(self, phase, topic="/state"):
        """Listen until the state (of the federation with that topic) says that phase; returns every message
        so far.

        The answer to devices of version 1, on a topic of version 1, is passed over.
        """

        def says_phase(message):
            is_state = message.topic.startswith(f"{TOPIC_PREFIX}/") and message.topic.endswith(topic)
            return is_state and json.loads(message.payload)["phase"] == phase

        return self._until(says_phase)

    def until(self, leaf):
        """Listen until something is said on a topic that ends so; returns every message so far."""
        return self._until(lambda message: message.topic.endswith(f"/{leaf}"))

    def until_online(self):
        """Listen until a status says online."""
        return self._until(
            lambda message: message.topic.endswith("/status") and json.loads(message.payload)["online"]
        )

    def until_offline(self):
        """Listen until the last status says offline."""
        return self._until(
            lambda message: message.topic.endswith("/status") and not json.loads(message.payload)["online"]
        )

    def _until(self, wanted):
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            event = self.link.get(deadline - time.monotonic())
            if isinstance(event, Message):
                self.messages.append(event)
                if wanted(event):
                    return self.messages
        raise AssertionError(f"it was not said; heard {[message.topic for message in self.messages]}")

"""The session of a device on the broker: its link, and the newest message of each kind."""

import contextlib
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import replace

from devices.identity import DuplicateIdError, describe_duplicate_id, should_yield
from devices.order import TaskOrder, check_masked_task, check_session
from edgefl.errors import WireError
from edgefl.security.trust import Trust
from edgefl.server.divergence import read_divergence
from edgefl.transport.link import Connected, Link, Message
from edgefl.transport.reconnects import Reconnects
from edgefl.wire.chunks import CHUNK_BYTES, Assembler, check_chunk_bytes
from edgefl.wire.masked import MASKED_CODEC, SECAGG_STEPS, parse_attempt
from edgefl.wire.messages import Claim, Manifest, Receipt, State, Status, Task, Want
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.topics import FederationTopics, check_sha256, parse_topic

LOGGER = logging.getLogger("edgefl.device")
BLOB_REQUEST_TIMEOUT_S = 2.0
STATUS_TIMEOUT_S = 30.0
"""Longest wait for this device's own status. A broker may drop messages without an error."""
UNCOUNTED_BYTES = 20 * CHUNK_BYTES
"""Maximum number of bytes in flight to a device at QoS 1: mosquitto and paho allow 20 messages."""


class Superseded(Exception):
    """Work that is obsolete, because another task arrived or the federation ended."""


def _select_state_change(state: State) -> tuple[str, int, str, str]:
    return state.session, state.started, state.phase, state.plan


class Session:
    """The session of one device on one broker.

    Args:
        link: the connection to the broker.
        topics: topics of the federation.
        status: the status that the device publishes.
        trust: checks and signs messages.
        order: decides which tasks the device accepts.

    Attributes:
        state: the newest accepted state of the federation, or None before the first.
        task: the newest accepted task that is not a step of a masked round, or None before the first.
        tasks_received: number of such tasks, with repeated tasks.
        step: the newest accepted step of a masked round, or None before the first.
        steps_received: number of such steps, with repeated steps.
        receipts: the newest receipt by the sha256 of the update.
        assemblers: the blobs that `fetch` is fetching, by sha256. None before a manifest arrived.
        limits: maximum size of these blobs in bytes, by sha256.
        early_chunks: chunks that arrived before their manifest, by sha256 and index.
        progressed_at: time of the last manifest or chunk, on the monotonic clock in seconds.
    """

    def __init__(
        self,
        link: Link,
        topics: FederationTopics,
        status: Status,
        trust: Trust,
        order: TaskOrder,
    ) -> None:
        self.link = link
        self.topics = topics
        self._status = status
        self.trust = trust
        self.order = order
        self.state: State | None = None
        self.task: Task | None = None
        self.tasks_received = 0
        self.step: Task | None = None
        self.steps_received = 0
        self._last: Task | None = None
        self.receipts: dict[str, Receipt] = {}
        self.assemblers: dict[str, Assembler | None] = {}
        self.limits: dict[str, int] = {}
        self.early_chunks: dict[str, dict[int, bytes]] = {}
        self.progressed_at = time.monotonic()
        self._reconnects = Reconnects()
        self._status_due_at = math.inf

    def start(self) -> None:
        """Subscribe to the device's topics and publish its status.

        Raises:
            LinkError: the broker does not answer or refuses a topic.
        """
        device = self.topics.format_device
        link = self.link
        client_id = self._status.client_id
        link.answer_on_network(device(client_id, "claim"), self._answer_claim)
        # A task may follow the status at once, so the task topics are subscribed first. The status topic
        # retains the status of an earlier boot until this device publishes its own, so it is subscribed last.
        # QoS 0 is enough: QoS 1 would not outlast the connection, and lost messages are sent again
        device_topics = (device(client_id, leaf) for leaf in ("claim", "task", "receipt"))
        link.subscribe(*device_topics, self.topics.state, qos=0)
        self.publish_status()
        link.subscribe(device(client_id, "status"), qos=0)
        self._status_due_at = time.monotonic() + STATUS_TIMEOUT_S

    def _answer_claim(self, message: Message) -> None:
        # Runs on the network thread, which an exception would end
        with contextlib.suppress(WireError):
            if decode_json(Claim, message.payload).boot_id != self._status.boot_id:
                self.publish_status()

    def publish_status(self, online: bool = True) -> None:
        """Publish the retained status of this device.

        Args:
            online: False if the device stops.
        """
        status = replace(self._status, online=online, ts=time.time())
        self.link.publish(
            self.topics.format_device(status.client_id, "status"), encode_json(status), retain=True
        )

    def publish_pause(self, reason: str, *, draining: bool) -> None:
        """Publish the pause of this device, if it changed.

        Args:
            reason: why the device accepts no task, empty if it accepts tasks.
            draining: whether the device still performs its current task.
        """
        if (reason, draining) != (self._status.paused, self._status.draining):
            self._status = replace(self._status, paused=reason, draining=draining)
            self.publish_status()

    def pump(self, timeout_s: float) -> None:
        """Process one event of the link, if one arrives in time. A malformed message is logged and ignored.

        Args:
            timeout_s: maximum time to wait for an event, in seconds.

        Raises:
            DuplicateIdError: an earlier device with the same id is online.
            LinkError: the link failed.
            StateError: the order of tasks cannot be written.
        """
        event = self.link.get(timeout_s)
        if event is None and time.monotonic() > self._status_due_at:
            self._status_due_at = math.inf
            LOGGER.warning(
                f"{self.link.url} does not deliver this device's own status within {STATUS_TIMEOUT_S:g} s; "
                f"check the broker's access list, or run `edgefl doctor --broker {self.link.url}`"
            )
        if isinstance(event, Connected):
            LOGGER.log(*self._reconnects.describe(event.url, time.monotonic()))
            self.publish_status()
        elif isinstance(event, Message):
            try:
                self._handle_message(event)
            except WireError as error:
                LOGGER.warning(f"ignored: {error}")

    def _handle_message(self, message: Message) -> None:
        address = parse_topic(message.topic)
        if not message.payload:
            return
        match address.kind:
            case "state":
                state = check_session(decode_json(State, message.payload))
                current = self.state
                # Most states only announce the next round, as the task also does. They are not checked
                if current is None or _select_state_change(state) != _select_state_change(current):
                    self.trust.check(state, message.payload)
                    self.state = state if self.order.accepts(state) else current
            case "task":
                task = self.trust.check(
                    decode_json(Task, message.payload), message.payload, self._status.client_id
                )
                check_chunk_bytes(task.chunk_bytes)
                check_session(task)
                check_masked_task(task)
                if self.order.accepts(task):
                    self._on_task(task)
            case "receipt":
                received = self.trust.check(
                    decode_json(Receipt, message.payload), message.payload, self._status.client_id
                )
                self.receipts[received.sha256] = received
            case "status":
                self._on_status(decode_json(Status, message.payload))
            case "manifest" if self.assemblers.get(address.sha256, 0) is None:
                m = decode_json(Manifest, message.payload)
                limit = self.limits[address.sha256]
                made = self.assemblers[address.sha256] = Assembler(
                    sha256=address.sha256, size=m.size, count=m.count, chunk_bytes=m.chunk_bytes, limit=limit
                )
                self.progressed_at = time.monotonic()
                if not m.retained:
                    self._request_blob(address.sha256, made)
                for index, content in self.early_chunks.pop(address.sha256, {}).items():
                    made.add(index, content)
            case "blob" if assembler := self.assemblers.get(address.sha256):
                if assembler.add(address.index, message.payload):
                    self.progressed_at = time.monotonic()
            case "blob" if message.payload and address.sha256 in self.assemblers:
                # A broker sends retained messages in any order. A chunk may arrive before its manifest.
                early = self.early_chunks.setdefault(address.sha256, {})
                if sum(map(len, early.values())) + len(message.payload) <= self.limits[address.sha256]:
                    early[address.index] = message.payload

    def _on_task(self, task: Task) -> None:
        self._last = task
        if task.phase in SECAGG_STEPS:
            self.step = task
            self.steps_received += 1
        else:
            self.task = task
            self.tasks_received += 1

    def _on_status(self, other: Status) -> None:
        if other.boot_id == self._status.boot_id:
            self._status_due_at = math.inf
            # A cluster of brokers may publish the will of a broken connection after this device connected to
            # another machine of the cluster
            if not other.online:
                self.publish_status()
            return
        if other.online and should_yield(self._status, other):
            raise DuplicateIdError(describe_duplicate_id(other.client_id, self.link.url))
        self.publish_status()

    def is_current(self, task: Task, within: int = 0) -> bool:
        """Return whether the aggregator still accepts the answer to a task.

        A task is current until a later task arrives or the federation ends. A task of a masked round is
        current until a task of another attempt arrives. A task whose answer must not leave this device is
        never current.

        Args:
            task: the task.
            within: number of rounds by which the newest task of the same phase may be later.
        """
        if self.order.should_withhold(task):
            return False
        new = self.task
        if task.codec == MASKED_CODEC:
            new = (
                self._last
                if self._last and parse_attempt(self._last.nonce) == parse_attempt(task.nonce)
                else None
            )
        same = (
            new is not None
            and new.session == task.session
            and 0 <= new.round - task.round <= (within if new.phase == task.phase else 0)
        )
        state = self.state if self.state and self.state.session == task.session else None
        ended = state is not None and (state.phase == "done" or read_divergence(state) is not None)
        return same and not ended

    def fetch(self, is_needed: Callable[[], bool], limits: dict[str, int]) -> dict[str, bytes]:
        """Fetch blobs.

        The device requests blobs that the broker does not retain, and requests missing chunks again.

        Args:
            is_needed: returns whether the blobs are still needed. It is called at least twice per second.
            limits: maximum size of each blob in bytes, by sha256.

        Returns:
            The blobs by sha256.

        Raises:
            WireError: a sha256 is not a digest.
            Superseded: `is_needed` returned False.
            DuplicateIdError: an earlier device with the same id is online.
            LinkError: the link failed.
        """
        blobs: dict[str, bytes] = {}
        filters = [self.topics.format_blob(check_sha256(sha256), "+") for sha256 in limits]
        self.limits = limits
        self.assemblers = dict.fromkeys(limits)
        self.early_chunks = {}
        # The broker processes messages of one client in their order, so the subscription takes effect before
        # an answer arrives. QoS 1 limits the broker's queue for a slow device. It has no other use in a
        # session that ends with its connection
        self.link.subscribe(*filters, qos=int(sum(limits.values()) > UNCOUNTED_BYTES), timeout_s=0.0)
        patience = BLOB_REQUEST_TIMEOUT_S
        asked = time.monotonic()
        try:
            while len(blobs) < len(limits):
                now = time.monotonic()
                if now - max(asked, self.progressed_at) > patience:
                    patience = min(15.0, patience * 1.5) * random.uniform(0.9, 1.1)
                    asked = now
                    for sha256 in limits.keys() - blobs.keys():
                        assembler = self.assemblers[sha256]
                        self._request_blob(sha256, assembler)
                self.pump(0.5)
                for sha256, assembler in self.assemblers.items():
                    if sha256 not in blobs and assembler and assembler.is_complete():
                        # A damaged blob loses all its chunks, and they are requested again
                        with contextlib.suppress(WireError):
                            blobs[sha256] = assembler.assemble()
                if not is_needed():
                    raise Superseded
        finally:
            self.assemblers = {}
            self.early_chunks = {}
            self.link.unsubscribe(*filters)
        return blobs

    def _request_blob(self, sha256: str, assembler: Assembler | None) -> None:
        want = Want(sha256, assembler.list_missing() if assembler else (), time.time())
        self.link.publish(self.topics.format_device(self._status.client_id, "want"), encode_json(want))

"""The upload of one answer: announces it, then sends missing chunks until the aggregator decides."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from edgefl.protocol.device.events import Answer, PublishChunk
from edgefl.protocol.wire.chunks import count_chunks
from edgefl.protocol.wire.machine_events import Publish
from edgefl.protocol.wire.messages import Begin, End, Ranges, Receipt, Task
from edgefl.protocol.wire.topics import FederationTopics

MAX_UPLOAD_CHUNKS_IN_FLIGHT = 2
"""Maximum number of unacknowledged chunks.

With more, a heartbeat on a slow link would wait behind a whole update.
"""
ACK_TIMEOUT_S = 30.0
"""Seconds after which the client announces its answer again, because no chunk was acknowledged."""
RECEIPT_TIMEOUT_S = 4.0
"""Seconds after which an announcement without an answer is repeated the first time."""
QUEUED_TIMEOUT_S = 20.0
"""Seconds after which a client that waits for an upload slot announces its answer again."""


class AnswerUpload:
    """The upload of one answer.

    The announcement is repeated until the aggregator answers. It is also repeated when another task arrives,
    because a round is then open.

    Args:
        task: the task or step that is answered.
        draw_factor: returns the factor by which the next pause is longer, about 1.6.

    Attributes:
        task: the task or step that is answered.
        sha256: digest of the answer in hex.
    """

    def __init__(
        self,
        topics: FederationTopics,
        client_id: str,
        task: Task,
        answer: Answer,
        draw_factor: Callable[[], float],
    ) -> None:
        self.task = task
        self.sha256 = answer.sha256
        self._topics = topics
        self._draw_factor = draw_factor
        self._begin = Begin(
            client_id=client_id,
            session=task.session,
            round=task.round,
            plan=task.plan,
            sha256=answer.sha256,
            size=answer.size,
            count=count_chunks(answer.size, task.chunk_bytes),
            chunk_bytes=task.chunk_bytes,
            num_samples=answer.num_samples,
            metrics=answer.metrics,
            nonce=task.nonce,
            ts=0.0,
        )
        self._timeout_s = RECEIPT_TIMEOUT_S
        self._due_at = math.inf
        self._waiting_chunks: deque[int] = deque()
        self._is_end_due = False
        """Whether `End` follows the waiting chunks. It follows only chunks that a receipt requested."""

    @property
    def is_sending(self) -> bool:
        """Whether chunks wait until fewer messages are in flight."""
        return bool(self._waiting_chunks)

    def announce(self, now: float, *, follows: bool) -> list[Publish | PublishChunk]:
        """Announce the answer.

        Args:
            now: the time in seconds.
            follows: whether all chunks follow, because an upload slot is reserved. Otherwise a receipt
                requests them.
        """
        self._due_at = now + (ACK_TIMEOUT_S if follows else self._timeout_s)
        self._timeout_s = min(QUEUED_TIMEOUT_S, self._timeout_s * self._draw_factor())
        self._waiting_chunks = deque(range(self._begin.count) if follows else ())
        self._is_end_due = False
        return [
            Publish(
                topic=self._format_topic("begin"),
                message=replace(self._begin, follows=follows),
                receiver=self._begin.client_id,
                qos=0,
            )
        ]

    def handle_receipt(self, receipt: Receipt, now: float) -> bool:
        """Handle an answer of the aggregator to this upload, and return whether the upload is over.

        A receipt for another task is ignored.

        Args:
            now: the time in seconds.
        """
        if receipt.sha256 != self.sha256 or receipt.nonce not in (self._begin.nonce, ""):
            return False
        if receipt.outcome in ("ok", "rejected"):
            return True
        self._waiting_chunks = deque(_list_chunks(receipt.missing, self._begin.count))
        self._is_end_due = True
        if receipt.outcome == "wait":
            self._due_at = now + QUEUED_TIMEOUT_S
        else:
            self._due_at = now + (ACK_TIMEOUT_S if self._waiting_chunks else RECEIPT_TIMEOUT_S)
        return False

    def send_chunks(self, in_flight: int, now: float) -> list[Publish | PublishChunk]:
        """Send chunks that wait, as many as the link may take.

        Args:
            in_flight: number of messages that the broker has not acknowledged.
            now: the time in seconds.
        """
        actions: list[Publish | PublishChunk] = []
        while self._waiting_chunks and in_flight < MAX_UPLOAD_CHUNKS_IN_FLIGHT:
            index = self._waiting_chunks.popleft()
            in_flight += 1
            actions.append(
                PublishChunk(
                    topic=self._format_topic(index),
                    sha256=self.sha256,
                    index=index,
                    chunk_bytes=self._begin.chunk_bytes,
                )
            )
        if actions:
            self._due_at = now + (ACK_TIMEOUT_S if self._waiting_chunks else RECEIPT_TIMEOUT_S)
        if actions and not self._waiting_chunks and self._is_end_due:
            message = End(self.sha256, self._begin.count, ts=0.0)
            actions.append(Publish(topic=self._format_topic("end"), message=message))
        return actions

    def handle_timer(self, now: float) -> list[Publish | PublishChunk]:
        """Repeat the announcement if it is due.

        Args:
            now: the time in seconds.
        """
        return self.announce(now, follows=False) if now >= self._due_at else []

    def get_timer(self) -> float:
        """Return the time in seconds at which `handle_timer` is due."""
        return self._due_at

    def _format_topic(self, leaf: str | int) -> str:
        return self._topics.format_upload(self._begin.client_id, self.sha256, leaf)


def _list_chunks(ranges: Ranges, count: int) -> list[int]:
    return [index for low, high in ranges for index in range(max(0, low), min(high, count))]

"""Uploads an update: announces it, then sends missing chunks until the aggregator accepts or rejects it."""

import hashlib
import random
import time
from collections.abc import Mapping
from dataclasses import replace

from devices.session import Session, Superseded
from edgefl.wire.chunks import count_chunks, slice_chunk
from edgefl.wire.messages import Begin, End, Ranges, Receipt, Task
from edgefl.wire.strict_json import encode_json

MAX_UPLOAD_CHUNKS_IN_FLIGHT = 2
ACK_TIMEOUT_S = 30.0
RECEIPT_TIMEOUT_S = 4.0
QUEUED_TIMEOUT_S = 20.0


def send_update(
    session: Session,
    client_id: str,
    task: Task,
    blob: bytes,
    metrics: Mapping[str, float],
    num_samples: int,
) -> Receipt:
    """Send the answer to a task and return the last receipt.

    Args:
        session: the session of the device.
        client_id: id of the device.
        task: the task.
        blob: the answer in the codec of the task.
        metrics: metrics of the answer.
        num_samples: weight of the answer.

    Returns:
        The receipt, whose outcome is ok or rejected. A rejected receipt has a reason.

    Raises:
        Superseded: the aggregator no longer waits for the answer.
        LinkError: the link failed.
    """
    begin = Begin(
        client_id=client_id,
        session=task.session,
        round=task.round,
        plan=task.plan,
        sha256=hashlib.sha256(blob).hexdigest(),
        size=len(blob),
        count=count_chunks(len(blob), task.chunk_bytes),
        chunk_bytes=task.chunk_bytes,
        num_samples=num_samples,
        metrics=metrics,
        nonce=task.nonce,
        ts=time.time(),
    )
    return upload_update(session, task, begin, blob)


def upload_update(session: Session, task: Task, begin: Begin, blob: bytes) -> Receipt:
    """Upload an update and return the last receipt.

    The device repeats the announcement until the aggregator answers. It also repeats the announcement when
    another task arrives, because a round is then open. An update may answer an earlier round by at most the
    `max_staleness` of its task.

    Args:
        session: the session of the device.
        task: the task that the update answers.
        begin: the announcement of the update.
        blob: the encoded update.

    Returns:
        The receipt, whose outcome is ok or rejected. A rejected receipt has a reason.

    Raises:
        Superseded: the aggregator no longer waits for the update.
        LinkError: the link failed.
    """
    topics = session.topics
    link = session.link
    last_task = session.task
    session.receipts.pop(begin.sha256, None)
    patience = RECEIPT_TIMEOUT_S
    until = 0.0
    granted = task.granted
    while True:
        if time.monotonic() >= until:
            announcement = session.trust.encode(
                replace(begin, ts=time.time(), follows=granted), begin.client_id
            )
            link.publish(topics.format_upload(begin.client_id, begin.sha256, "begin"), announcement, qos=0)
            if granted:
                _send(session, task, begin, blob, ((0, begin.count),))
            granted = False  # A receipt names the chunks that were lost
            until = time.monotonic() + patience
            patience = min(QUEUED_TIMEOUT_S, patience * random.uniform(1.4, 1.8))
        session.pump(min(0.5, max(0.0, until - time.monotonic())))
        receipt = session.receipts.pop(begin.sha256, None)
        if receipt and receipt.nonce in (begin.nonce, ""):
            if receipt.outcome in ("ok", "rejected"):
                return receipt
            if receipt.outcome == "missing":
                _send(session, task, begin, blob, receipt.missing)
                end = End(begin.sha256, begin.count, time.time())
                link.publish(topics.format_upload(begin.client_id, begin.sha256, "end"), encode_json(end))
            until = time.monotonic() + (QUEUED_TIMEOUT_S if receipt.outcome == "wait" else RECEIPT_TIMEOUT_S)
        elif not session.is_current(task, task.max_staleness):
            raise Superseded
        elif session.task is not last_task:
            last_task = session.task
            until = 0.0
            granted = last_task is not None and last_task.granted


def _send(session: Session, task: Task, begin: Begin, blob: bytes, missing: Ranges) -> None:
    link = session.link
    topics = session.topics
    for low, high in missing:
        for index in range(max(0, low), min(high, begin.count)):
            # Few at a time. Otherwise, a heartbeat on a slow link would wait behind a whole update
            if not link.wait_in_flight(MAX_UPLOAD_CHUNKS_IN_FLIGHT, ACK_TIMEOUT_S):
                return
            link.publish(
                topics.format_upload(begin.client_id, begin.sha256, index),
                slice_chunk(blob, index, begin.chunk_bytes),
            )
            session.pump(0.0)
            if not session.is_current(task, task.max_staleness):
                raise Superseded

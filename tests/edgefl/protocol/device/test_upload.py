"""The upload of one answer, with hand-worked times."""

from dataclasses import replace

import pytest

from edgefl.protocol.device.events import PublishChunk
from edgefl.protocol.device.upload import ACK_TIMEOUT_S, QUEUED_TIMEOUT_S, RECEIPT_TIMEOUT_S, AnswerUpload
from edgefl.protocol.wire.messages import Begin, End, Receipt
from tests.edgefl.protocol.device.machines import TOPICS, make_answer, make_task

CHUNK_BYTES = 1024


def make_upload(size, granted=False):
    return AnswerUpload(
        topics=TOPICS,
        client_id="pi-1",
        task=make_task(1, chunk_bytes=CHUNK_BYTES, granted=granted),
        answer=replace(make_answer("1"), size=size),
        draw_factor=lambda: 1.5,
    )


def make_receipt(outcome, missing=(), nonce="nonce1federate", sha256="1" * 64):
    return Receipt(round=1, sha256=sha256, outcome=outcome, missing=missing, reason="", nonce=nonce, ts=0.0)


def list_chunks(actions):
    return [action.index for action in actions if isinstance(action, PublishChunk)]


def test_announcement_is_repeated_after_pauses_that_grow():
    upload = make_upload(5)
    [announced] = upload.announce(0.0, follows=False)
    begin = announced.message
    assert (begin.size, begin.count, begin.chunk_bytes, begin.follows) == (5, 1, CHUNK_BYTES, False)
    now = 0.0
    for pause in (4.0, 6.0, 9.0, 13.5, 20.0, 20.0):
        assert upload.get_timer() == now + pause
        assert not upload.handle_timer(now + pause - 0.1)
        now += pause
        [announced] = upload.handle_timer(now)
        assert isinstance(announced.message, Begin)


def test_missing_chunks_are_sent_two_at_a_time_and_then_the_end():
    upload = make_upload(5 * CHUNK_BYTES)
    upload.announce(0.0, follows=False)
    assert not upload.handle_receipt(make_receipt("missing", ((0, 2), (3, 9))), 1.0)
    assert upload.is_sending
    assert upload.send_chunks(2, 1.0) == []
    assert list_chunks(upload.send_chunks(1, 1.0)) == [0]
    assert list_chunks(upload.send_chunks(0, 1.0)) == [1, 3]
    last, end = upload.send_chunks(1, 2.0)
    assert last.index == 4, "a chunk that the answer does not have is not sent"
    assert end.message == End("1" * 64, 5, 0.0)
    assert not upload.is_sending and upload.get_timer() == 2.0 + RECEIPT_TIMEOUT_S
    assert upload.handle_receipt(make_receipt("ok"), 3.0)


def test_chunks_of_a_reserved_slot_follow_without_an_end():
    upload = make_upload(2 * CHUNK_BYTES, granted=True)
    [announced] = upload.announce(0.0, follows=True)
    assert announced.message.follows
    assert list_chunks(upload.send_chunks(0, 0.0)) == [0, 1]
    assert not upload.is_sending


def test_announcement_is_repeated_when_the_broker_acknowledges_no_chunk():
    upload = make_upload(4 * CHUNK_BYTES)
    upload.announce(0.0, follows=False)
    upload.handle_receipt(make_receipt("missing", ((0, 4),)), 1.0)
    upload.send_chunks(0, 1.0)
    assert upload.get_timer() == 1.0 + ACK_TIMEOUT_S
    [announced] = upload.handle_timer(1.0 + ACK_TIMEOUT_S)
    assert isinstance(announced.message, Begin) and not upload.is_sending


def test_client_without_a_slot_waits_longer():
    upload = make_upload(5)
    upload.announce(0.0, follows=True)
    upload.handle_receipt(make_receipt("wait"), 1.0)
    assert not upload.is_sending and upload.get_timer() == 1.0 + QUEUED_TIMEOUT_S


@pytest.mark.parametrize("receipt", [make_receipt("ok", nonce="other"), make_receipt("ok", sha256="2" * 64)])
def test_receipt_for_another_task_or_answer_is_ignored(receipt):
    upload = make_upload(5)
    upload.announce(0.0, follows=False)
    assert not upload.handle_receipt(receipt, 1.0)
    assert upload.handle_receipt(make_receipt("rejected", nonce=""), 1.0), "an aggregator may omit the nonce"

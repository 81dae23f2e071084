"""Receives updates, a bounded number at a time, so that memory and the broker's queues do not grow with the
cohort.
"""

from dataclasses import dataclass

from edgefl.protocol.server.rounds import UpdateVerdict
from edgefl.protocol.wire.chunks import Assembler, check_manifest
from edgefl.protocol.wire.messages import Begin, Ranges, Receipt

MAX_UPLOAD_IDLE_S = 10.0
"""Maximum time without a new chunk before a client loses its slot, while other clients wait for a slot."""


@dataclass
class Upload:
    """One update that has a slot.

    Attributes:
        begin: the announcement of the update.
        assembler: collects the chunks.
        progressed_at: time of the client's last new chunk, in seconds.
    """

    begin: Begin
    assembler: Assembler
    progressed_at: float


def make_receipt(begin: Begin, outcome: str, reason: str = "", missing: Ranges = ()) -> Receipt:
    """Return the receipt that answers an update. The driver sets its time.

    Args:
        begin: the announcement of the update.
        outcome: `ok`, `wait`, `missing` or `rejected`.
        reason: why the update waits or is rejected. It is cut to 1000 characters.
        missing: the ranges of chunks that the server lacks.
    """
    return Receipt(
        round=begin.round,
        sha256=begin.sha256,
        outcome=outcome,
        missing=missing,
        reason=reason[:1000],
        nonce=begin.nonce,
        ts=0.0,
    )


def _open_upload(begin: Begin, limit: int, now: float) -> Upload:
    assembler = Assembler(
        sha256=begin.sha256, size=begin.size, count=begin.count, chunk_bytes=begin.chunk_bytes, limit=limit
    )
    return Upload(begin, assembler, now)


def make_verdict_receipt(begin: Begin, verdict: UpdateVerdict) -> Receipt:
    """Return the receipt of an update that the round does not accept.

    An update that was accepted before gets `ok` again. Any other update is rejected, which does not count as
    a failure of its client.

    Args:
        begin: the announcement of the update.
        verdict: the verdict `repeated` or `rejected`.
    """
    return make_receipt(begin, "ok" if verdict.kind == "repeated" else "rejected", verdict.reason)


class Uploads:
    """Grants upload slots and assembles chunks.

    It does no I/O. Each call returns the receipts to send, as (client id, receipt). All times are in seconds,
    of any clock that does not go back.

    Args:
        slots: maximum number of clients that may send an update at a time. Granted tasks come on top.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._open: dict[str, Upload] = {}
        self._queue: dict[str, tuple[Begin, int]] = {}

    def begin(
        self, begin: Begin, limit: int, now: float, *, follows: bool = False
    ) -> list[tuple[str, Receipt]]:
        """Answer the announcement of an update: a slot, or the request to wait.

        Args:
            begin: the announcement.
            limit: maximum size of the update in bytes.
            now: the time in seconds.
            follows: whether the chunks follow at once, in a slot that was granted with the task. There is no
                receipt then.

        Returns:
            The receipts to send.

        Raises:
            WireError: size, number of chunks and chunk size do not fit together, or the update is too large.
        """
        check_manifest(begin.sha256, begin.size, begin.count, begin.chunk_bytes, limit)
        upload = self._open.get(begin.client_id)
        if upload and upload.begin.sha256 == begin.sha256:
            upload.begin = begin
            if follows:
                return []
            return [
                (begin.client_id, make_receipt(begin, "missing", missing=upload.assembler.list_missing()))
            ]
        self._open.pop(begin.client_id, None)
        if follows:
            self._queue.pop(begin.client_id, None)
            self._open[begin.client_id] = _open_upload(begin, limit, now)
            return []
        self._queue[begin.client_id] = (begin, limit)
        granted = self._grant_slots(now)
        if begin.client_id in self._queue:
            granted.append((begin.client_id, make_receipt(begin, "wait", "all upload slots are taken")))
        return granted

    def _grant_slots(self, now: float) -> list[tuple[str, Receipt]]:
        receipts = []
        while self._queue and len(self._open) < self._slots:
            client_id = next(iter(self._queue))
            begin, limit = self._queue.pop(client_id)
            opened = self._open[client_id] = _open_upload(begin, limit, now)
            receipts.append(
                (client_id, make_receipt(begin, "missing", missing=opened.assembler.list_missing()))
            )
        return receipts

    def add_chunk(self, client_id: str, sha256: str, index: int, payload: bytes, now: float) -> Begin | None:
        """Add a chunk to a client's update. A chunk of an unknown update is ignored.

        Args:
            sha256: the update.
            index: the number of the chunk, from 0.
            payload: the bytes of the chunk.
            now: the time in seconds.

        Returns:
            The announcement of the update if it is complete now, otherwise None.

        Raises:
            WireError: the chunk does not belong to the update, by its index or its size.
        """
        upload = self._open.get(client_id)
        if upload is None or upload.begin.sha256 != sha256:
            return None
        if upload.assembler.add(index, payload):
            upload.progressed_at = now
        return upload.begin if upload.assembler.is_complete() else None

    def end(self, client_id: str, sha256: str) -> list[tuple[str, Receipt]]:
        """Answer a client that has sent all requested chunks with the chunks that are still missing.

        Args:
            sha256: the sha256 of the update, in hexadecimal.

        Returns:
            The receipts to send. Empty if the client has no slot for this update.
        """
        upload = self._open.get(client_id)
        if upload is None or upload.begin.sha256 != sha256:
            return []
        return [(client_id, make_receipt(upload.begin, "missing", missing=upload.assembler.list_missing()))]

    def read_blob(self, client_id: str) -> bytes:
        """Return the bytes of a complete update.

        Args:
            client_id: the client, which must have a slot.

        Raises:
            WireError: the bytes do not have the announced sha256. All chunks are missing again then.
        """
        return self._open[client_id].assembler.assemble()

    def close(self, client_id: str, now: float) -> list[tuple[str, Receipt]]:
        """Free a client's slot or its position in the queue, and grant free slots.

        Args:
            client_id: the client. It may have no slot and no position.
            now: the time in seconds.

        Returns:
            The receipts to send.
        """
        self._open.pop(client_id, None)
        self._queue.pop(client_id, None)
        return self._grant_slots(now)

    def expire(self, now: float) -> list[tuple[str, Receipt]]:
        """Free slots without a new chunk for ten seconds while other clients wait, and grant free slots.

        Returns:
            The receipts to send.
        """
        if self._queue:
            for client_id in [
                c for c, upload in self._open.items() if now - upload.progressed_at > MAX_UPLOAD_IDLE_S
            ]:
                del self._open[client_id]
        return self._grant_slots(now)

    @property
    def is_queued(self) -> bool:
        """Whether clients wait for a slot."""
        return bool(self._queue)

    def clear(self) -> None:
        """Forget all uploads, because the round is over."""
        self._open.clear()
        self._queue.clear()

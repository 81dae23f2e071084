"""Updates on their way in: a bounded number at a time, so that neither memory nor the broker's queues grow
with the cohort.
"""

import time
from dataclasses import dataclass

from edgefl.server.rounds import UpdateVerdict
from edgefl.wire.chunks import Assembler, check_manifest
from edgefl.wire.messages import Begin, Ranges, Receipt

MAX_UPLOAD_IDLE_S = 10.0


@dataclass
class Upload:
    """One update that has a slot."""

    begin: Begin
    assembler: Assembler
    last_active_at: float


def make_receipt(begin: Begin, outcome: str, reason: str = "", missing: Ranges = ()) -> Receipt:
    """Return the answer to an update."""
    return Receipt(begin.round, begin.sha256, outcome, missing, reason[:1000], begin.nonce, time.time())


def _open_upload(begin: Begin, limit: int, now: float) -> Upload:
    return Upload(begin, Assembler(begin.sha256, begin.size, begin.count, begin.chunk_bytes, limit), now)


def make_verdict_receipt(begin: Begin, verdict: UpdateVerdict) -> Receipt:
    """Return the receipt of an update that is not taken: it was before, or it changes nothing, and is no
    failure of its round.
    """
    return make_receipt(begin, "ok" if verdict.kind == "repeated" else "rejected", verdict.reason)


class Uploads:
    """Grants slots and puts chunks together.

    No I/O: each call returns the receipts to send, as (client id, receipt).
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._open: dict[str, Upload] = {}
        self._queue: dict[str, tuple[Begin, int]] = {}

    def begin(
        self, begin: Begin, limit: int, now: float, *, follows: bool = False
    ) -> list[tuple[str, Receipt]]:
        """Answer a device that has an update of at most `limit` bytes: send (a slot), or wait.

        WireError for a bad manifest.

        follows: its chunks come at once in a place that was kept for it, so there is nothing to say.
        """
        check_manifest(begin.sha256, begin.size, begin.count, begin.chunk_bytes, limit)
        upload = self._open.get(begin.client_id)
        if upload and upload.begin.sha256 == begin.sha256:
            upload.begin = begin
            upload.last_active_at = now
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
        """Take a chunk; return the Begin of an update that is complete now.

        WireError for a chunk that is none of it.
        """
        upload = self._open.get(client_id)
        if upload is None or upload.begin.sha256 != sha256:
            return None
        upload.last_active_at = now
        upload.assembler.add(index, payload)
        return upload.begin if upload.assembler.is_complete() else None

    def end(self, client_id: str, sha256: str, now: float) -> list[tuple[str, Receipt]]:
        """Say what is still missing when a device is through with sending."""
        upload = self._open.get(client_id)
        if upload is None or upload.begin.sha256 != sha256:
            return []
        upload.last_active_at = now
        return [(client_id, make_receipt(upload.begin, "missing", missing=upload.assembler.list_missing()))]

    def read_blob(self, client_id: str) -> bytes:
        """Return a complete update; WireError when its bytes are not those that were announced."""
        return self._open[client_id].assembler.assemble()

    def close(self, client_id: str, now: float) -> list[tuple[str, Receipt]]:
        """Free a client's slot or place in the queue, and grant what is free."""
        self._open.pop(client_id, None)
        self._queue.pop(client_id, None)
        return self._grant_slots(now)

    def expire(self, now: float) -> list[tuple[str, Receipt]]:
        """Take slots back from devices that were silent for ten seconds while others wait."""
        if self._queue:
            for client_id in [
                c for c, upload in self._open.items() if now - upload.last_active_at > MAX_UPLOAD_IDLE_S
            ]:
                del self._open[client_id]
        return self._grant_slots(now)

    @property
    def is_queued(self) -> bool:
        """Whether clients wait for a slot."""
        return bool(self._queue)

    def clear(self) -> None:
        """Forget all: a round is over."""
        self._open.clear()
        self._queue.clear()

"""What an MQTT client does not ask of its sockets: to send at once, to read TLS records whole, and to end
without a reset.
"""

import contextlib
import socket
import ssl
import time
from typing import Any

MAX_RECORD_BYTES = 16 * 1024
"""Most bytes of a TLS record, and so of what one read gives (RFC 8446, 5.1)."""


def send_at_once(client: object, userdata: object, opened: Any) -> None:
    """Set TCP_NODELAY on a socket that was opened.

    Else an acknowledgement or a chunk's end waits for the peer's kernel, which puts its own off by 40 ms (RFC
    896 meets RFC 1122, 4.2.3.2).
    """
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def read_to_end(opened: Any, timeout_s: float = 1.0) -> None:
    """Say that nothing more is sent, and read until the peer has closed too.

    A socket that is closed over unread bytes resets its connection, and what was sent last may be lost with
    it (RFC 1122, 4.2.2.13): a broker that had not read the DISCONNECT yet then published the will of a client
    that had left in order.
    """
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(OSError, ValueError):
        opened.shutdown(socket.SHUT_WR)
        while (left := deadline - time.monotonic()) > 0:
            opened.settimeout(left)
            if not opened.recv(MAX_RECORD_BYTES):
                return


class RecordSocket(ssl.SSLSocket):
    """For `SSLContext.sslsocket_class`: a packet's head, asked for byte by byte, need not go through OpenSSL
    each time.

    A record is always read whole, so that OpenSSL never has anything left: what is read ahead is all that is
    pending, and to ask OpenSSL for it would give the interpreter to another thread each time.
    """

    _ahead = b""
    _offset = 0

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return at most so many bytes, from what is read ahead where there is any."""
        if not self._ahead:
            try:
                data = self.read(MAX_RECORD_BYTES)
            except ValueError:  # shut down by another thread: the plain socket says so as an OSError
                return super().recv(buflen, flags)
            if len(data) <= buflen:
                return data if len(data) == buflen else self._read_more(data, buflen)
            self._ahead = data
        data = self._ahead[self._offset : self._offset + buflen]
        self._offset += len(data)
        if self._offset == len(self._ahead):
            self._ahead = b""
            self._offset = 0
        return data

    def _read_more(self, data: bytes, size: int) -> bytes:
        """Return what is found and, up to so many bytes, what else can be had without waiting: each read of
        paho's costs it more.
        """
        parts = [data]
        lacking = size - len(data)
        while lacking and self.gettimeout() == 0.0:
            try:
                record = self.read(MAX_RECORD_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not record:  # the next read says so again
                break
            if len(record) > lacking:
                self._ahead = record
                self._offset = lacking
                record = record[:lacking]
            parts.append(record)
            lacking -= len(record)
        return b"".join(parts)

    def pending(self) -> int:
        """Return how many bytes can be had without waiting."""
        return len(self._ahead) - self._offset


def use_record_sockets(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context, whose sockets read whole records from now on."""
    context.sslsocket_class = RecordSocket
    return context

"""Socket options and a TLS socket for the MQTT client: no send delay, whole TLS records, no reset."""

import contextlib
import socket
import ssl
import time
from typing import Any

MAX_RECORD_BYTES = 16 * 1024
"""Maximum size of a TLS record in bytes, and so of one read (RFC 8446, section 5.1)."""


def send_at_once(client: object, userdata: object, opened: Any) -> None:
    """Set TCP_NODELAY on an opened socket.

    Without it an acknowledgement or the end of a chunk waits for the peer's kernel, which delays its own
    acknowledgement by 40 ms. paho calls this function as `on_socket_open`.

    Args:
        client: not used.
        userdata: not used.
        opened: the socket.

    Source: RFC 896 together with RFC 1122, section 4.2.3.2.
    """
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def read_to_end(opened: Any, timeout_s: float = 1.0) -> None:
    """Shut down sending, and read until the peer has closed the connection too.

    Closing a socket with unread bytes resets the connection, which can discard the last bytes sent. A broker
    that had not read the DISCONNECT would then publish the will of a client that left in order.

    Args:
        opened: the socket.
        timeout_s: maximum duration in seconds.

    Source: RFC 1122, section 4.2.2.13.
    """
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(OSError, ValueError):
        opened.shutdown(socket.SHUT_WR)
        while (left := deadline - time.monotonic()) > 0:
            opened.settimeout(left)
            if not opened.recv(MAX_RECORD_BYTES):
                return


class RecordSocket(ssl.SSLSocket):
    """A TLS socket that reads whole records, for `SSLContext.sslsocket_class`.

    The MQTT client reads the head of a packet byte by byte. These reads are served from memory instead of
    OpenSSL.

    Each record is read completely, so OpenSSL never has pending bytes. Asking OpenSSL for them would let the
    interpreter switch to another thread each time.
    """

    _ahead = b""
    _offset = 0

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return at most `buflen` bytes, from memory if bytes were read ahead."""
        if not self._ahead:
            try:
                data = self.read(MAX_RECORD_BYTES)
            except ValueError:  # shut down by another thread: the plain socket raises an OSError
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
        """Return the data and, up to `size` bytes, whatever more can be read without waiting.

        Each read of the MQTT client costs more than a loop in this function.
        """
        parts = [data]
        lacking = size - len(data)
        while lacking and self.gettimeout() == 0.0:
            try:
                record = self.read(MAX_RECORD_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not record:  # end of the stream: the next read returns it again
                break
            if len(record) > lacking:
                self._ahead = record
                self._offset = lacking
                record = record[:lacking]
            parts.append(record)
            lacking -= len(record)
        return b"".join(parts)

    def pending(self) -> int:
        """Return the number of bytes that can be read without waiting."""
        return len(self._ahead) - self._offset


def use_record_sockets(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context after making its sockets read whole records."""
    context.sslsocket_class = RecordSocket
    return context

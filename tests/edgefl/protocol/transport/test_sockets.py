"""A TLS socket that reads ahead gives the same bytes in the same order."""

import socket
import threading
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from edgefl.protocol.transport.sockets import MAX_RECORD_BYTES, RecordSocket, read_to_end


def make_socket(records, timeout=None):
    """Return a socket without a connection that reads these records and then the end of the stream.

    Args:
        records: the records.
        timeout: 0 for a socket that does not block.
    """
    made = RecordSocket.__new__(RecordSocket)
    remaining = list(records)

    def read(size):
        assert size >= MAX_RECORD_BYTES, "a record is never cut"
        return remaining.pop(0) if remaining else b""

    made.read = read
    made._sslobj = SimpleNamespace()
    made.gettimeout = lambda: timeout
    return made, remaining


@given(
    st.lists(st.binary(min_size=1, max_size=60), max_size=8),
    st.lists(st.integers(1, 40), min_size=1),
    st.sampled_from([None, 0.0]),
)
def test_records_are_read_in_pieces_of_any_size(records, sizes, timeout):
    tls, remaining = make_socket(records, timeout)
    received = b""
    turn = 0
    while piece := tls.recv(size := sizes[turn % len(sizes)]):
        assert len(piece) <= size
        received = received + piece
        turn = turn + 1
        assert tls.pending() == len(b"".join(records)) - len(received) - len(b"".join(remaining))
    assert received == b"".join(records)
    assert tls.pending() == 0


def test_read_after_shutdown_by_another_thread_returns_end_of_stream():
    """The thread of paho may read at that moment. An error other than OSError would end it."""
    mine, _other = socket.socketpair()
    with RecordSocket.__new__(RecordSocket) as made:
        socket.socket.__init__(made, fileno=mine.detach())
        made._sslobj = None
        made.shutdown(socket.SHUT_RDWR)
        assert made.recv(1) == b""


def test_last_sent_bytes_arrive_when_socket_closes_with_unread_bytes():
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    with mine, peer:
        peer.sendall(bytes(1_000))
        mine.recv(1)
        mine.sendall(b"bye")
        leaving = threading.Thread(target=lambda: (read_to_end(mine, 20.0), mine.close()))
        leaving.start()
        assert (peer.recv(9), peer.recv(9)) == (b"bye", b"")  # a reset would be an error
        peer.close()
        leaving.join(20.0)
        assert not leaving.is_alive()

"""A TLS socket that reads ahead gives the same bytes in the same order."""

import socket
import threading
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from edgefl.transport.sockets import MAX_RECORD_BYTES, RecordSocket, read_to_end


def socket_of(records, timeout=None):
    """A socket without a connection, whose reads give these records and then the end; `timeout` 0: one that
    does not wait.
    """
    made = RecordSocket.__new__(RecordSocket)
    left = list(records)

    def read(size):
        assert size >= MAX_RECORD_BYTES, "a record is never cut"
        return left.pop(0) if left else b""

    made.read = read
    made._sslobj = SimpleNamespace()
    made.gettimeout = lambda: timeout
    return made, left


@given(
    st.lists(st.binary(min_size=1, max_size=60), max_size=8),
    st.lists(st.integers(1, 40), min_size=1),
    st.sampled_from([None, 0.0]),
)
def test_records_come_in_pieces_of_any_size(records, sizes, timeout):
    tls, left = socket_of(records, timeout)
    found = b""
    turn = 0
    while piece := tls.recv(size := sizes[turn % len(sizes)]):
        assert len(piece) <= size
        found = found + piece
        turn = turn + 1
        assert tls.pending() == len(b"".join(records)) - len(found) - len(b"".join(left))
    assert found == b"".join(records)
    assert tls.pending() == 0


def test_a_socket_that_another_thread_shut_down_has_ended():
    """paho's thread may be about to read then: an error that is no OSError would end it."""
    mine, _other = socket.socketpair()
    with RecordSocket.__new__(RecordSocket) as made:
        socket.socket.__init__(made, fileno=mine.detach())
        made._sslobj = None
        made.shutdown(socket.SHUT_RDWR)
        assert made.recv(1) == b""


def test_what_was_sent_last_arrives_from_a_socket_that_is_closed_over_unread_bytes():
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

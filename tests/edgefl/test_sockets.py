"""A TLS socket that reads ahead gives the same bytes in the same order."""

from hypothesis import given
from hypothesis import strategies as st

from edgefl.link.sockets import RECORD, RecordSocket


def socket_of(records):
    """A socket without a connection, whose reads give these records and then the end."""
    made, left = RecordSocket.__new__(RecordSocket), list(records)

    def read(size):
        assert size >= RECORD, "a record is never cut"
        return left.pop(0) if left else b""

    made.read = read
    return made, left


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_records_come_in_pieces_of_any_size(records, sizes):
    socket, left = socket_of(records)
    socket._sslobj = None
    found, turn = b"", 0
    while piece := socket.recv(size := sizes[turn % len(sizes)]):
        assert len(piece) <= size
        found, turn = found + piece, turn + 1
        assert socket.pending() == len(b"".join(records)) - len(found) - len(b"".join(left))
    assert found == b"".join(records)
    assert socket.pending() == 0

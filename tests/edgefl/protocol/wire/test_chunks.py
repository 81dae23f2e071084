"""Chunks: any order, repeats and losses give the same bytes, and the assembler lists the missing chunks."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.errors import WireError
from edgefl.protocol.wire.chunks import Assembler, count_chunks, slice_chunk, to_indices, to_ranges


def make_assembler(blob, chunk_bytes=1024, **changes):
    fields = {
        "sha256": hashlib.sha256(blob).hexdigest(),
        "size": len(blob),
        "count": count_chunks(len(blob), chunk_bytes),
    }
    return Assembler(**{**fields, "chunk_bytes": chunk_bytes, **changes})


@given(size=st.integers(0, 9000), order=st.randoms(use_true_random=False), lost=st.floats(0, 0.9))
@settings(deadline=None, max_examples=50)
def test_blob_is_assembled_despite_lost_and_repeated_chunks(size, order, lost):
    blob = hashlib.shake_128(str(size).encode()).digest(size)
    assembler = make_assembler(blob)
    for _ in range(200):
        if assembler.is_complete():
            break
        requested = to_indices(assembler.list_missing(), assembler.count)
        assert requested
        for index in order.sample(requested, len(requested)):
            if order.random() >= lost:
                assert assembler.add(index, slice_chunk(blob, index, 1024))
                assert not assembler.add(index, slice_chunk(blob, index, 1024))
    assert assembler.assemble() == blob


@given(st.sets(st.integers(0, 300)))
@settings(deadline=None, max_examples=50)
def test_ranges_and_indices_are_inverse(indices):
    assert to_indices(to_ranges(sorted(indices)), 301) == sorted(indices)


def test_damaged_chunk_is_detected_and_all_chunks_are_missing_again():
    blob = bytes(3000)
    assembler = make_assembler(blob)
    for index in range(3):
        assembler.add(index, bytes([index == 1]) * len(slice_chunk(blob, index, 1024)))
    with pytest.raises(WireError, match="a chunk was damaged"):
        assembler.assemble()
    assert assembler.list_missing() == ((0, 3),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 10**12}, "expected at most 5000"),
        ({"size": -1}, "expected at most"),
        ({"count": 10**9}, "expected 3 of 1024"),
        ({"chunk_bytes": 1}, "expected 1024 to"),
        ({"chunk_bytes": 10**9}, "expected 1024 to"),
    ],
)
def test_manifest_is_checked_before_memory_is_allocated(changes, message):
    with pytest.raises(WireError, match=message):
        make_assembler(bytes(3000), **changes, limit=5000)


@pytest.mark.parametrize(
    ("index", "payload"), [(3, bytes(952)), (-1, bytes(1024)), (0, bytes(1023)), (2, bytes(1024))]
)
def test_chunk_with_wrong_index_or_length_is_refused(index, payload):
    with pytest.raises(WireError, match="expected"):
        make_assembler(bytes(3000)).add(index, payload)


@pytest.mark.parametrize("ranges", [((0, 4),), ((2, 2),), ((-1, 1),), ((0, 1),) * 300])
def test_ranges_outside_the_blob_are_refused(ranges):
    with pytest.raises(WireError):
        to_indices(ranges, 3)

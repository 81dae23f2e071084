"""The download of blobs: any order of manifests and chunks, losses and damage."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import WireError
from edgefl.protocol.device.download import FIRST_REQUEST_TIMEOUT_S, MAX_QOS_0_BYTES, Download
from edgefl.protocol.wire.chunks import count_chunks, slice_chunk
from edgefl.protocol.wire.messages import Manifest

CHUNK_BYTES = 1024
CONTENT = bytes(range(256)) * 10
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def make_manifest(content=CONTENT, retained=False, **changes):
    values = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "count": count_chunks(len(content), CHUNK_BYTES),
        "chunk_bytes": CHUNK_BYTES,
        "ts": 0.0,
        "retained": retained,
    }
    return Manifest(**values | changes)


def make_download(limit=10_000, cached=None):
    download = Download({SHA256: limit}, lambda: 1.5)
    download.begin(cached or {}, 0.0)
    return download


def add(download, index, now=0.0):
    download.add_chunk(SHA256, index, slice_chunk(CONTENT, index, CHUNK_BYTES), now)


@given(st.permutations(["manifest", 0, 1, 2]), st.booleans())
def test_blob_is_assembled_in_any_order(order, retained):
    download = make_download()
    for each in order:
        assert not download.is_complete
        if each == "manifest":
            wants = download.add_manifest(make_manifest(retained=retained), 0.0)
            assert bool(wants) == (not retained and not download.is_complete)
        else:
            add(download, each)
    assert download.is_complete and download.blobs == {SHA256: CONTENT}


def test_missing_chunks_are_requested_after_pauses_that_grow():
    download = make_download()
    assert download.get_timer() == FIRST_REQUEST_TIMEOUT_S
    [want] = download.handle_timer(2.0)
    assert (want.sha256, want.missing) == (SHA256, ()), "the manifest too"
    assert download.get_timer() == 2.0 + 3.0
    [want] = download.add_manifest(make_manifest(), 3.0)
    assert want.missing == ((0, 3),)
    add(download, 1, now=4.0)
    assert download.handle_timer(6.9) == []
    [want] = download.handle_timer(7.0)
    assert want.missing == ((0, 1), (2, 3))
    add(download, 1, now=8.0)  # a repeated chunk is no progress
    assert download.get_timer() == pytest.approx(7.0 + 4.5)


def test_damaged_blob_is_requested_again():
    download = make_download()
    download.add_manifest(make_manifest(), 0.0)
    add(download, 0)
    add(download, 1)
    download.add_chunk(SHA256, 2, bytes(512), 0.0)
    assert not download.is_complete
    [want] = download.handle_timer(60.0)
    assert want.missing == ((0, 3),)
    for index in range(3):
        add(download, index)
    assert download.blobs == {SHA256: CONTENT}


def test_blob_that_is_too_large_is_refused_and_early_chunks_are_limited():
    download = make_download(limit=2000)
    with pytest.raises(WireError, match="is 2560 bytes, expected at most 2000"):
        download.add_manifest(make_manifest(), 0.0)
    for index in range(3):
        add(download, index)
    with pytest.raises(WireError, match="is 2560 bytes"):
        download.add_manifest(make_manifest(), 0.0)


def test_blob_from_before_is_not_downloaded():
    download = Download({SHA256: 10_000, "f" * 64: 10_000}, lambda: 1.5)
    assert not download.is_complete and download.get_timer() == float("inf"), "the cache is not read yet"
    download.begin({"f" * 64: b"cached"}, 5.0)
    assert download.missing == (SHA256,) and download.get_timer() == 5.0 + FIRST_REQUEST_TIMEOUT_S
    download.add_manifest(make_manifest(), 5.0)
    for index in range(3):
        add(download, index)
    assert download.is_complete and download.blobs == {"f" * 64: b"cached", SHA256: CONTENT}
    assert make_download(cached={SHA256: CONTENT}).is_complete


def test_early_chunk_that_does_not_fit_is_left_out():
    download = make_download()
    download.add_chunk(SHA256, 7, b"x", 0.0)
    add(download, 0)
    [want] = download.add_manifest(make_manifest(), 0.0)
    assert want.missing == ((1, 3),)


def test_other_blobs_are_ignored():
    download = make_download()
    assert download.add_manifest(make_manifest(b"other"), 0.0) == []
    download.add_chunk("f" * 64, 0, b"x", 0.0)
    assert not download.blobs


def test_broker_counts_messages_only_for_large_blobs():
    assert [make_download(limit).qos for limit in (MAX_QOS_0_BYTES, MAX_QOS_0_BYTES + 1)] == [0, 1]

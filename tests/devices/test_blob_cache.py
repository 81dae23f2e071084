"""The blob cache: it is named by content and bounded, and it treats a damaged file as absent."""

import errno
import hashlib
import os

import pytest

from devices.blob_cache import BlobCache
from edgefl.base.errors import StateError, WireError


def test_cached_blob_is_found_by_its_hash(tmp_path):
    cache = BlobCache(tmp_path / "blobs")
    sha256 = cache.put(b"expert")
    assert sha256 == hashlib.sha256(b"expert").hexdigest()
    assert cache.get(sha256) == b"expert"
    assert cache.get("0" * 64) is None


def test_cached_blob_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    def fail(descriptor):
        raise AssertionError("a blob that a power cut damages is fetched again")

    monkeypatch.setattr("os.fsync", fail)
    cache = BlobCache(tmp_path)
    assert cache.get(cache.put(b"blob")) == b"blob"


def test_truncated_file_is_removed_from_cache(tmp_path):
    cache = BlobCache(tmp_path)
    sha256 = cache.put(b"expert")
    (tmp_path / sha256).write_bytes(b"exp")
    assert cache.get(sha256) is None
    assert not (tmp_path / sha256).exists()


def test_cache_evicts_least_recently_used_and_stores_oversized_blob(tmp_path):
    cache = BlobCache(tmp_path, limit_bytes=250)
    names = [cache.put(bytes([i]) * 100) for i in range(2)]
    for age, name in enumerate(names):
        os.utime(tmp_path / name, (age, age))
    assert cache.get(names[0]) is not None
    os.utime(tmp_path / names[1], (0, 0))
    third = cache.put(b"c" * 100)
    assert [cache.get(name) is not None for name in (*names, third)] == [True, False, True]
    huge = cache.put(bytes(1000))
    assert cache.get(huge) == bytes(1000)
    assert cache.get(names[0]) is None


def test_file_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / ("0" * 64)
    path.mkdir()
    with pytest.raises(StateError, match=rf"cannot read {path}: Is a directory, expected a file .*; remove"):
        BlobCache(tmp_path).get(path.name)


@pytest.mark.parametrize(
    ("function", "content", "message"),
    [("pathlib.Path.unlink", b"exp", "cannot remove"), ("os.utime", b"expert", "cannot write")],
)
def test_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, function, content, message):
    cache = BlobCache(tmp_path)
    path = tmp_path / cache.put(b"expert")
    path.write_bytes(content)

    def fail(*arguments, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(function, fail)
    with pytest.raises(StateError, match=rf"{message} {path}: Read-only file system; its disk is read-only"):
        cache.get(path.name)


def test_name_other_than_hash_is_rejected(tmp_path):
    with pytest.raises(WireError, match="64 lower-case hex digits"):
        BlobCache(tmp_path).get("../../etc/passwd")

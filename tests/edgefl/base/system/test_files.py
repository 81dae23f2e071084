"""Atomic files have the old or the new content, and the mode of the umask except for secrets."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgefl.base.errors import StateError
from edgefl.base.system.files import open_no_link, write_atomic, write_errors, write_state


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_file_follows_the_umask(umask: int, tmp_path: Path) -> None:
    write_atomic(tmp_path / "report.html", b"1")
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o666 & ~umask


def test_secret_file_is_private_from_the_start(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    sync = os.fsync

    def observe(descriptor: int) -> None:
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", observe)
    write_atomic(tmp_path / "key", b"1", 0o600)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600 == modes[0]


def test_failed_write_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "a", b"old")

    def fail_to_sync(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail_to_sync)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_atomic(tmp_path / "a", b"new")
    assert raised.value.filename == str(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_refused_write_names_file_cause_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "state.json"
    with pytest.raises(StateError) as raised:
        write_state(path, b"", remedy="choose another --out")
    assert str(raised.value) == f"cannot write {path}: {os.strerror(errno.EEXIST)}; choose another --out"
    with (
        pytest.raises(StateError, match=r"^cannot write log: closed; free some space$"),
        write_errors(Path("log")),
    ):
        raise OSError("closed")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "its disk is read-only: make it writable, or choose a directory on another disk"),
        (errno.EACCES, "let this account write there, or choose another directory"),
    ],
)
def test_remedy_fits_the_cause(number: int, remedy: str) -> None:
    with pytest.raises(StateError) as raised, write_errors(Path("log")):
        raise OSError(number, os.strerror(number))
    assert str(raised.value) == f"cannot write log: {os.strerror(number)}; {remedy}"


def test_file_of_a_state_directory_is_no_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(OSError, match="it is a symbolic link, expected a file; remove the link"):
        open_no_link(tmp_path / "link", os.O_RDWR | os.O_CREAT)
    with (
        pytest.raises(OSError, match="symbolic link"),
        open(tmp_path / "link", "w", opener=open_no_link),
    ):
        pass
    assert target.read_text() == "precious"
    with open(tmp_path / "file", "a+", opener=open_no_link) as file:
        file.write("new")
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600

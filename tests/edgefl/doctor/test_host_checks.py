"""The host checks of `edgefl doctor`."""

import importlib.util
import shutil
import time
from collections import namedtuple

from edgefl.doctor.host_checks import check_board, check_clock, check_disk, check_enrolment, check_software
from edgefl.security.authority import create_enrolment, create_key_directory


def test_this_machine_can_train():
    assert [finding.level for finding in check_software()] == ["ok", "ok"]


def test_a_board_with_and_without_a_quantizer(monkeypatch, tmp_path):
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_bytes(b"Raspberry Pi 3 Model B Rev 1.2\0")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000000 kB\n")
    found = check_board(tmp_path)
    assert found.found.startswith("Raspberry Pi 3 Model B Rev 1.2, 1,024 MB, ")
    assert found.level == "ok"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = check_board(tmp_path)
    assert (found.level, "64-bit machine" in found.remedy) == ("warn", True)


def test_a_clock_that_was_never_set():
    assert check_clock(1_800_000_000.0).level == "ok"
    found = check_clock(12.0)
    assert (found.level, found.found) == (
        "fail",
        "1970-01-01T00:00:12+00:00, before this program was released",
    )
    assert "timedatectl" in found.remedy


def test_a_full_disk(monkeypatch, tmp_path):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(1, 1, 50e6))
    found = check_disk(tmp_path / "not" / "there" / "yet")
    assert (found.level, found.found) == ("fail", f"50 MB free at {tmp_path}")


def test_a_certificate_runs_out(tmp_path):
    create_key_directory(tmp_path / "keys", ["localhost"], 8883, 30)
    made = create_enrolment(tmp_path / "keys", "pi-1", 100)
    now = time.time()
    levels = [check_enrolment(made, now + days * 86400) for days in (0, 80, 101)]
    assert [finding.level for finding in levels] == ["ok", "warn", "fail"]
    assert "expired 1 days ago" in levels[2].found
    assert "edgefl device enrol pi-1" in levels[1].remedy

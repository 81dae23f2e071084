"""The host checks of `edgefl doctor`."""

import importlib.util
import shutil
import time
from collections import namedtuple

from edgefl.cli.doctor.host_checks import (
    check_board,
    check_clock,
    check_disk,
    check_enrolment,
    check_software,
)
from edgefl.protocol.security.authority import create_enrolment, create_key_directory


def test_installed_software_passes_the_check():
    assert [result.level for result in check_software()] == ["ok", "ok"]


def test_board_without_a_quantizer_is_a_warning(monkeypatch, tmp_path):
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_bytes(b"Raspberry Pi 3 Model B Rev 1.2\0")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000000 kB\n")
    result = check_board(tmp_path)
    assert result.found.startswith("Raspberry Pi 3 Model B Rev 1.2, 1,024 MB, ")
    assert result.level == "ok"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = check_board(tmp_path)
    assert (result.level, "64-bit machine" in result.remedy) == ("warn", True)


def test_unset_clock_fails():
    assert check_clock(1_800_000_000.0).level == "ok"
    result = check_clock(12.0)
    assert (result.level, result.found) == (
        "fail",
        "1970-01-01T00:00:12+00:00, before this program was released",
    )
    assert "timedatectl" in result.remedy


def test_full_disk_fails(monkeypatch, tmp_path):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 50e6))
    result = check_disk(tmp_path / "not" / "there" / "yet")
    assert (result.level, result.found) == ("fail", f"50 MB free at {tmp_path}")


def test_certificate_warns_before_and_fails_after_its_expiry(tmp_path):
    create_key_directory(tmp_path / "keys", ["localhost"], 8883, 30)
    enrolment = create_enrolment(tmp_path / "keys", "pi-1", 100)
    now = time.time()
    results = [check_enrolment(enrolment, now + days * 86400) for days in (0, 80, 101)]
    assert [result.level for result in results] == ["ok", "warn", "fail"]
    assert "expired 1 days ago" in results[2].found
    assert "edgefl device enrol pi-1" in results[1].remedy

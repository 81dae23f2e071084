"""What the doctor finds on this machine."""

import shutil
import time
from collections import namedtuple

from edgefl.doctor.here import check_clock, check_disk, check_enrolment, check_software
from edgefl.security.authority import create, enrol


def test_this_machine_can_train():
    assert [finding.level for finding in check_software()] == ["ok", "ok"]


def test_a_clock_that_was_never_set():
    assert check_clock(1_800_000_000.0).level == "ok"
    found = check_clock(12.0)
    assert (found.level, found.found) == ("fail", "1970-01-01T00:00:12+00:00, before this program was written")
    assert "timedatectl" in found.remedy


def test_a_full_disk(monkeypatch, tmp_path):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(1, 1, 50e6))
    found = check_disk(tmp_path / "not" / "there" / "yet")
    assert (found.level, found.found) == ("fail", f"50 MB free at {tmp_path}")


def test_a_certificate_runs_out(tmp_path):
    create(tmp_path / "keys", ["localhost"], 8883, 30)
    made = enrol(tmp_path / "keys", "pi-1", 100)
    now = time.time()
    levels = [check_enrolment(made, now + days * 86400) for days in (0, 80, 101)]
    assert [finding.level for finding in levels] == ["ok", "warn", "fail"]
    assert "expired 1 days ago" in levels[2].found
    assert "edgefl device enrol pi-1" in levels[1].remedy

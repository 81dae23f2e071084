"""Measurements of another process."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.process import read_cpu_s, start_program

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def test_processor_time_is_finer_than_a_clock_tick():
    answering = "import sys\nprint(flush=True)\nfor _ in sys.stdin: print(flush=True)"
    with start_program([sys.executable, "-c", answering], **PIPES) as process:
        process.stdout.readline()
        times = [read_cpu_s(process.pid)]
        for _ in range(20):
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            times.append(read_cpu_s(process.pid))
        process.stdin.close()
    assert all(after > before for before, after in itertools.pairwise(times))
    assert read_cpu_s(process.pid) == 0


def test_processor_time_includes_all_threads():
    working = """
import hashlib, threading
thread = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"a", b"b", 500_000))
thread.start(); thread.join(); print(flush=True); input()
"""
    with start_program([sys.executable, "-c", working], **PIPES) as process:
        process.stdout.readline()
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        assert read_cpu_s(process.pid) == pytest.approx((int(fields[11]) + int(fields[12])) / 100, abs=0.05)
        process.stdin.close()

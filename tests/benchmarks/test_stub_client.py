"""The stub clients of the fleet benchmark: one of their processes that fails or is killed ends them all, at
once and with an error.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mqtt_broker.broker.dev_broker import find_mosquitto

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
DEADLINE_S = 60.0


@pytest.fixture
def start_stubs(secured_broker, tmp_path):
    files = [tmp_path / f"{client_id}.enrol" for client_id in ("a", "b")]
    for path in files:
        secured_broker.enrol(path.stem, path)
    command = [sys.executable, "-m", "tests.benchmarks.fleet.stub_client", "fleet", "1", *map(str, files)]
    made = []

    def start():
        made.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return made[-1]

    yield start
    for process in made:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def children(pid):
    """The processes of a process; none once it has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_there(pid):
    return Path(f"/proc/{pid}/exe").exists()  # a zombie has none


def test_one_that_is_killed_ends_all(start_stubs):
    process = start_stubs()
    until = time.monotonic() + DEADLINE_S
    while len(each := children(process.pid)) < 2:
        assert time.monotonic() < until
    os.kill(each[1], signal.SIGKILL)
    assert process.wait(DEADLINE_S) == 1
    assert "was killed; run them again" in process.stderr.read()
    assert not is_there(each[0])


def test_one_that_fails_says_why(start_stubs, secured_broker):
    secured_broker.stop()
    process = start_stubs()
    assert process.wait(DEADLINE_S) == 1
    assert "no broker at mqtts://localhost:" in process.stderr.read()


def test_ended_they_leave_no_process(start_stubs):
    process = start_stubs()
    until = time.monotonic() + DEADLINE_S
    while len(each := children(process.pid)) < 2:
        assert time.monotonic() < until
    process.terminate()
    assert process.wait(DEADLINE_S) == 1
    assert not any(map(is_there, each))

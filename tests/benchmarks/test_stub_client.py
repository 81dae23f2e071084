"""The stub clients of the fleet benchmark. If one process fails or is killed, all stop at once."""

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


def list_children(pid):
    """Return the children of a process. The list is empty after the process has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_running(pid):
    return Path(f"/proc/{pid}/exe").exists()  # a zombie has no exe


def test_killed_stub_process_stops_the_others(start_stubs):
    process = start_stubs()
    deadline = time.monotonic() + DEADLINE_S
    while len(pids := list_children(process.pid)) < 2:
        assert time.monotonic() < deadline
    os.kill(pids[1], signal.SIGKILL)
    assert process.wait(DEADLINE_S) == 1
    assert "was killed; run them again" in process.stderr.read()
    assert not is_running(pids[0])


def test_failed_stub_process_reports_the_cause(start_stubs, secured_broker):
    secured_broker.stop()
    process = start_stubs()
    assert process.wait(DEADLINE_S) == 1
    assert "no broker at mqtts://localhost:" in process.stderr.read()


def test_terminated_stub_clients_leave_no_process(start_stubs):
    process = start_stubs()
    deadline = time.monotonic() + DEADLINE_S
    while len(pids := list_children(process.pid)) < 2:
        assert time.monotonic() < deadline
    process.terminate()
    assert process.wait(DEADLINE_S) == 1
    assert not any(map(is_running, pids))

"""Fixtures: a broker, processes of the command line, invented snapshots and a dashboard server."""

import contextlib
import http.client
import importlib.util
import json
import sys
import threading
from pathlib import Path

import pytest

from edgefl.dashboard.latest_snapshot import LatestSnapshot
from edgefl.dashboard.server import DashboardServer

DEADLINE_S = 40.0


def load(path):
    key = f"edgefl_tests_{path.stem}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, path)
        sys.modules[key] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[key])
    return sys.modules[key]


processes = load(Path(__file__).parents[2] / "mqtt_broker" / "processes.py")
browsers = load(Path(__file__).with_name("browsers.py"))
samples = load(Path(__file__).with_name("samples.py"))


class Stream:
    """Reads the Server-Sent Events of a dashboard."""

    def __init__(self, url, timeout_s=DEADLINE_S):
        host = url.removeprefix("http://").rstrip("/")
        self.connection = http.client.HTTPConnection(host, timeout=timeout_s)
        self.connection.request("GET", "/events")
        self.response = self.connection.getresponse()

    def next(self):
        """Return (kind, data) of the next event that is not a tick."""
        while True:
            kind = self.response.readline().decode().removeprefix("event: ").strip()
            data = self.response.readline().decode().removeprefix("data: ")
            self.response.readline()
            assert kind, "the stream ended"
            if kind != "tick":
                return kind, json.loads(data)

    def until(self, holds, state=None):
        """Apply events until `holds(state)`, and return the state."""
        state = state or {}
        while True:
            kind, data = self.next()
            state = data if kind == "whole" else merged(state, data)
            if holds(state):
                return state

    def close(self):
        self.response.close()
        self.connection.close()


def merged(target, patch):
    """Apply a merge patch, as defined in RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made


@pytest.fixture
def apply():
    return merged


@pytest.fixture
def sample():
    return samples.sample


@pytest.fixture
def served():
    """A dashboard server whose snapshots come from the test."""
    latest = LatestSnapshot()
    server = DashboardServer(latest)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield latest, server.url
    latest.close()
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture
def stream():
    with contextlib.ExitStack() as ends:

        def open_stream(url):
            made = Stream(url)
            ends.callback(made.close)
            return made

        yield open_stream


@pytest.fixture
def start():
    with contextlib.ExitStack() as ends:

        def make(*arguments):
            made = processes.Process(*arguments)
            ends.callback(made.close)
            return made

        yield make


@pytest.fixture
def dashboard(start):
    """Start the command on a broker, and return (process, address of the page)."""

    def make(url, *more):
        process = start("dashboard", "--broker", url, "--port", "0", "--json", *more)
        return process, json.loads(process.first_line())["url"]

    return make


@pytest.fixture
def broker():
    """A broker for this test only, which the test may kill."""
    made = processes.Broker()
    # Another program took the free port before the broker used it
    while made.popen.poll() is not None:
        made = processes.Broker()
    made.url = f"mqtt://127.0.0.1:{made.port}"
    yield made
    if made.popen.poll() is None:
        made.kill()


@pytest.fixture
def federate(start, tmp_path):
    return lambda url, **settings: processes.Federation(url, tmp_path, start, **settings)


@pytest.fixture
def toys():
    return processes.Toys


@pytest.fixture(scope="module")
def chromium():
    """A browser for one module.

    Its driver runs an event loop in this thread, so that tests of other modules could not run theirs.
    """
    with browsers.chromium() as browser:
        yield browser


@pytest.fixture
def visitor(chromium, tmp_path):
    """Visits pages. A warning or an error in a console fails the test."""
    made = browsers.Visitor(chromium, tmp_path / "pictures")
    yield made
    made.close()
    assert not made.complaints


@pytest.fixture
def severe():
    pytest.importorskip("axe_playwright_python")
    return browsers.severe

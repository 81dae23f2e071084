"""Fixtures: a broker, processes of the command line, invented snapshots and a dashboard server."""

import contextlib
import http.client
import importlib.util
import json
import sys
import threading
from pathlib import Path

import pytest

from edgefl.watch.dashboard.latest_snapshot import LatestSnapshot
from edgefl.watch.dashboard.server import DashboardServer

DEADLINE_S = 40.0


def load_module(path):
    key = f"edgefl_tests_{path.stem}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, path)
        sys.modules[key] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[key])
    return sys.modules[key]


processes = load_module(Path(__file__).parents[3] / "mqtt_broker" / "processes.py")
browsers = load_module(Path(__file__).with_name("browsers.py"))
samples = load_module(Path(__file__).with_name("samples.py"))


class Stream:
    """Reads the Server-Sent Events of a dashboard."""

    def __init__(self, url, timeout_s=DEADLINE_S):
        host = url.removeprefix("http://").rstrip("/")
        self.connection = http.client.HTTPConnection(host, timeout=timeout_s)
        self.connection.request("GET", "/events")
        self.response = self.connection.getresponse()

    def read_event(self):
        """Return (kind, data) of the next event that is not a tick."""
        while True:
            kind = self.response.readline().decode().removeprefix("event: ").strip()
            data = self.response.readline().decode().removeprefix("data: ")
            self.response.readline()
            assert kind, "the stream ended"
            if kind != "tick":
                return kind, json.loads(data)

    def read_until(self, is_expected, state=None):
        """Apply events until `is_expected(state)`, and return the state."""
        state = state or {}
        while True:
            kind, data = self.read_event()
            state = data if kind == "whole" else apply_merge_patch(state, data)
            if is_expected(state):
                return state

    def close(self):
        self.response.close()
        self.connection.close()


def apply_merge_patch(target, patch):
    """Apply a merge patch, as defined in RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result


@pytest.fixture
def apply_patch():
    return apply_merge_patch


@pytest.fixture
def make_snapshot():
    return samples.make_snapshot


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
def open_stream():
    with contextlib.ExitStack() as exit_stack:

        def connect(url):
            stream = Stream(url)
            exit_stack.callback(stream.close)
            return stream

        yield connect


@pytest.fixture
def start_process():
    with contextlib.ExitStack() as exit_stack:

        def start(*arguments):
            process = processes.Process(*arguments)
            exit_stack.callback(process.close)
            return process

        yield start


@pytest.fixture
def start_dashboard(start_process):
    """Start the command on a broker, and return (process, address of the page)."""

    def start(url, *options):
        process = start_process("dashboard", "--broker", url, "--port", "0", "--json", *options)
        return process, json.loads(process.first_line())["url"]

    return start


@pytest.fixture
def broker():
    """A broker for this test only, which the test may kill."""
    process = processes.Broker()
    # Another program took the free port before the broker used it
    while process.popen.poll() is not None:
        process = processes.Broker()
    process.url = f"mqtt://127.0.0.1:{process.port}"
    yield process
    if process.popen.poll() is None:
        process.kill()


@pytest.fixture
def make_federation(start_process, tmp_path):
    return lambda url, **settings: processes.Federation(url, tmp_path, start_process, **settings)


@pytest.fixture
def toys():
    return processes.Toys


@pytest.fixture(scope="module")
def chromium():
    """A browser for one module.

    Its driver runs an event loop in this thread, so that tests of other modules could not run theirs.
    """
    with browsers.open_chromium() as browser:
        yield browser


@pytest.fixture
def visitor(chromium):
    """Visits pages. A warning or an error in a console fails the test."""
    page_visitor = browsers.Visitor(chromium)
    yield page_visitor
    page_visitor.close()
    assert not page_visitor.console_errors


@pytest.fixture
def list_violations():
    pytest.importorskip("axe_playwright_python")
    return browsers.list_severe_violations

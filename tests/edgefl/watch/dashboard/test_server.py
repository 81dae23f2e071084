"""The dashboard server with the standard library's client: files, refused requests and the event stream."""

import http.client
import re
import socket
import time

import pytest

from edgefl.base.errors import ConfigError
from edgefl.protocol.transport.link import Link
from edgefl.protocol.wire.messages import State, Status
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics
from edgefl.watch.dashboard.latest_snapshot import LatestSnapshot
from edgefl.watch.dashboard.server import (
    MAX_BROWSERS,
    PAGE_DIRECTORY,
    DashboardServer,
    is_trusted_host,
    list_host_names,
)


def send_request(url, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=30)
    connection.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_page_and_its_files_are_served_with_a_strict_policy(served):
    _, url = served
    response, body = send_request(url)
    assert (response.status, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    page = body.decode()
    paths = re.findall(r'(?:src|href)="([^"#]+)"', page)
    modules = [f"/{path.name}" for path in PAGE_DIRECTORY.glob("*.js")]
    assert {"app.js", "style.css", "vendor/uplot-1.6.32/uPlot.iife.min.js"} <= set(paths)
    for path in [*(f"/{name}" for name in paths), *modules]:
        file_response, content = send_request(url, path)
        assert file_response.status == 200 and content, path
        assert file_response.headers["Content-Security-Policy"] == policy
    assert send_request(url, "/app.js")[0].headers["Content-Type"].startswith("text/javascript")
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=", page), "the policy would stop what is inline"


def test_page_contacts_no_other_host_and_inserts_no_html():
    for path in [*PAGE_DIRECTORY.glob("*.js"), *PAGE_DIRECTORY.glob("*.html"), *PAGE_DIRECTORY.glob("*.css")]:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
        ), path.name
    assert "MIT" in (PAGE_DIRECTORY / "vendor" / "uplot-1.6.32" / "LICENSE").read_text()


@pytest.mark.parametrize(
    "path", ["/nothing", "/../server.py", "/%2e%2e/server.py", "/vendor/uplot-1.6.32/LICENSE", "//etc/passwd"]
)
def test_files_outside_the_page_are_not_served(served, path):
    assert send_request(served[1], path)[0].status == 404


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_methods_other_than_get_are_refused(served, method):
    response, _ = send_request(served[1], method=method)
    assert (response.status, response.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("192.168.1.10:8080", 200),
        (socket.gethostname(), 200),
        ("rebound.example:8080", 421),
        ("127.0.0.1.rebound.example", 421),
        ("localhost.rebound.example", 421),
        ("", 421),
        ("[::1", 200),
    ],
)
def test_only_trusted_host_headers_are_served(served, host, status):
    assert send_request(served[1], Host=host)[0].status == status
    assert send_request(served[1], "/events", Host="rebound.example")[0].status == 421


def test_trusted_host_must_match_the_whole_name():
    names = list_host_names("kitchen.lan")
    assert is_trusted_host("KITCHEN.lan:80", names) and is_trusted_host("localhost.", names)
    assert not is_trusted_host("kitchen.lan.example", names)


def test_event_stream_is_refused_to_pages_of_other_sites(served):
    assert send_request(served[1], "/events", Sec_Fetch_Site="cross-site")[0].status == 403
    assert send_request(served[1], "/events", Sec_Fetch_Site="same-site")[0].status == 403


def test_answer_to_an_invalid_request_does_not_repeat_it(served):
    port = int(served[1].rsplit(":", 1)[1].rstrip("/"))
    with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(b"<script>alert(1)</script>\r\n\r\n")
        answer = raw.makefile("rb").read()
    assert (
        b"400" in answer.split(b"\r\n")[0]
        and b"text/plain" in answer
        and b"nosniff" in answer
        and b"alert" not in answer
    )


def test_event_stream_starts_with_a_snapshot_followed_by_patches(served, open_stream, make_snapshot):
    latest, url = served
    snapshot = make_snapshot(3)
    latest.put(snapshot)
    events = open_stream(url)
    assert events.response.headers["Content-Type"] == "text/event-stream"
    kind, whole = events.read_event()
    assert kind == "whole" and whole["devices"]["pi-2"]["state"] == "sent"
    latest.put({**snapshot, "devices": [{**record, "state": "idle"} for record in snapshot["devices"][:2]]})
    assert events.read_event() == (
        "patch",
        {"devices": {"pi-1": {"state": "idle"}, "pi-2": {"state": "idle"}, "pi-3": None}},
    )
    assert open_stream(url).read_event()[1]["devices"].keys() == {"pi-1", "pi-2"}, (
        "another browser, or this one again, gets the whole"
    )


def test_event_streams_beyond_the_limit_are_refused(served, open_stream):
    _, url = served
    streams = [open_stream(url) for _ in range(MAX_BROWSERS)]
    assert all(stream.response.status == 200 for stream in streams)
    response, body = send_request(url, "/events")
    assert response.status == 503 and str(MAX_BROWSERS).encode() in body
    assert send_request(url)[0].status == 200


def test_unusable_port_or_address_is_reported(served, start_process, broker):
    port = served[1].rsplit(":", 1)[1].rstrip("/")
    process = start_process("dashboard", "--broker", broker.url, "--port", port)
    assert process.end() == 1
    assert f"port {port} of 127.0.0.1 is in use; give another --port" in process.err
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        DashboardServer(LatestSnapshot(), "192.0.2.1")


def test_missing_broker_is_reported_with_a_remedy(start_process):
    process = start_process("dashboard", "--broker", "mqtt://127.0.0.1:9", "--port", "0")
    assert process.end() == 1
    assert "no broker at mqtt://127.0.0.1:9" in process.err and "edgefl broker start" in process.err
    assert start_process("dashboard", "--port", "0", "--federation", "Not A Name").end() == 1


def publish_state(link, name, **changes):
    fields = {
        "phase": "federate",
        "round": 3,
        "rounds": 9,
        "cohort_size": 2,
        "deadline_s": 60.0,
        "plan": "p",
        "ts": time.time(),
        **changes,
    }
    link.publish(
        FederationTopics(name).state, encode_json(State(federation=name, session="s1", **fields)), retain=True
    )


def test_dashboard_follows_a_broker_through_a_restart(broker, start_dashboard, open_stream):
    process, url = start_dashboard(broker.url)
    events = open_stream(url)
    state = events.read_until(lambda state: "notice" in state)
    assert state["notice"] == f"No federation at {broker.url} yet. Waiting for the first one."
    link = Link(broker.url, "teller")
    try:
        publish_state(link, "kitchen")
        state = events.read_until(lambda state: state.get("round") == 3, state)
        assert state["federation"] == "kitchen" and "notice" not in state
        status = Status(
            client_id="pi-1",
            boot_id="b1",
            online=True,
            born=time.time(),
            num_samples=40,
            version="1.0",
            ts=time.time(),
        )
        link.publish(
            FederationTopics("kitchen").format_device("pi-1", "status"), encode_json(status), retain=True
        )
        state = events.read_until(lambda state: "pi-1" in state["devices"], state)
        assert state["devices"]["pi-1"]["samples"] == 40
        broker.kill()
        state = events.read_until(lambda state: not state["broker"]["connected"], state)
        broker.start()
        state = events.read_until(lambda state: state["broker"]["connected"], state)
        publish_state(link, "kitchen", round=4)
        events.read_until(lambda state: state["round"] == 4, state)
    finally:
        link.close(1.0)
    process.popen.terminate()
    assert process.end() == 0, process.err


def test_several_federations_require_the_federation_option(
    broker, start_process, start_dashboard, open_stream
):
    link = Link(broker.url, "teller")
    try:
        publish_state(link, "kitchen")
        publish_state(link, "garage", round=5)
        assert link.wait_in_flight(1, 30)
    finally:
        link.close(1.0)
    process = start_process("dashboard", "--broker", broker.url, "--port", "0")
    assert process.end() == 1
    assert (
        "2 federations" in process.err
        and "garage (federate), kitchen (federate)" in process.err
        and "--federation" in process.err
    )
    _, url = start_dashboard(broker.url, "--federation", "kitchen")
    assert open_stream(url).read_until(lambda state: state.get("round"))["round"] == 3

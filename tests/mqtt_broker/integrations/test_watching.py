"""Real federations on a real broker, and the ways to watch them: lines, a snapshot, and the terminal view
in a pseudo-terminal.
"""

import asyncio
import json
import subprocess
import sys
import time

import pytest

from edgefl.base.errors import LinkError
from edgefl.watch.monitor.connection import choose_federation, open_link
from edgefl.watch.monitor.feed import Feed

DEADLINE_S = 90.0


def test_terminal_view_follows_federation_and_shows_killed_device_offline(
    mosquitto_url, federate, toys, terminal
):
    pytest.importorskip("textual")
    federation = federate(mosquitto_url, rounds=5000, min_clients=3)
    aggregator = federation.aggregator()
    aggregator.wait_for("plan")
    view = terminal("monitor", "--broker", mosquitto_url, "--federation", federation.name)
    view.wait_for(f"{federation.name}: waiting for 3 of 3 devices", "no message from a device yet")
    devices = {name: federation.device(name, toys.shard(i)) for i, name in enumerate(("one", "two", "three"))}
    view.wait_for("3 devices: ", "one ", "two ", "three ", " of 5000, federate, ", "loss ")
    before = len(view.drawn)
    view.wait_for(": loss ", since=before)  # the round continues
    before = len(view.drawn)
    devices["two"].popen.kill()
    view.wait_for("two            offline", since=before)
    view.press("/")
    view.wait_for("part of an id", since=before)
    view.press("two\r")
    view.wait_for("1 match 'two'", since=before)
    view.press("d")
    at = view.wait_for("two: offline", "last message ", since=before)
    view.press("\x1b")
    view.wait_for("why not in the round", since=at)
    view.press("q")
    assert view.end() == 0
    assert b"Traceback" not in view.drawn
    aggregator.popen.terminate()


def test_sigterm_restores_the_terminal(mosquitto_url, terminal):
    pytest.importorskip("textual")
    view = terminal("monitor", "--broker", mosquitto_url, "--federation", "nobody")
    view.wait_for("nobody: no message from an aggregator yet")
    view.popen.terminate()
    assert view.end() == 0
    # The alternate screen is left
    assert view.drawn.rstrip().endswith(b"\x1b[?1004l") or b"\x1b[?1049l" in view.drawn


def test_watch_lines_and_snapshot_show_a_federation(mosquitto_url, federate, toys, start):
    federation = federate(mosquitto_url, rounds=3, min_clients=2)
    lines = start("watch", "--broker", mosquitto_url, "--federation", federation.name, "--json")
    text = start(
        "watch",
        "device/+/metrics",
        "--broker",
        mosquitto_url,
        "--federation",
        federation.name,
        "--count",
        "4",
    )
    link = open_link(mosquitto_url, None)
    try:
        feed = Feed(link, federation.name)
        aggregator = federation.aggregator()
        aggregator.wait_for("plan")
        # Both processes listen before the first message, or receive it as a retained message
        with lines.changed:
            assert lines.changed.wait_for(lambda: "state" in lines.out, DEADLINE_S)
        devices = [federation.device(name, toys.shard(i)) for i, name in enumerate(("one", "two"))]
        assert aggregator.end() == 0, aggregator.err
        assert [device.end() for device in devices] == [0, 0]
        deadline = time.monotonic() + DEADLINE_S
        while feed.snapshot()["phase"] != "done" or len(feed.snapshot()["history"]) < 4:
            assert time.monotonic() < deadline, feed.snapshot()
            feed.pump(1.0)
        feed.pump_for(1.0)
    finally:
        link.close()
    assert text.end() == 0
    assert [line.split()[1].rpartition("/")[2] for line in text.out.splitlines()] == ["metrics"] * 4
    assert "loss=" in text.out
    with lines.changed:
        assert lines.changed.wait_for(lambda: '"phase": "done"' in lines.out, DEADLINE_S)
    lines.popen.terminate()
    assert lines.end() == 0, lines.err
    found = [json.loads(line) for line in lines.out.splitlines()]
    assert not [each for each in found if "broken" in each]
    assert {"state", "summary", "status", "metrics", "task", "receipt", "begin", "chunk", "want"} - {
        each["kind"] for each in found
    } <= {
        "want",
        "chunk",
    }

    tree = feed.snapshot()
    result = federation.result()
    assert (tree["broken"], tree["round"], [row["round"] for row in tree["history"]]) == (0, 4, [1, 2, 3, 4])
    clients = {row["id"]: row for row in result["clients"]}
    for device in tree["devices"]:
        assert device["state"] == "finished"
        assert device["accuracy_shipped"] == clients[device["id"]]["accuracy_shipped"]
        assert device["gate"] == pytest.approx([clients[device["id"]][f"gate_{k}"] for k in range(2)])
        assert [number for number, _ in device["trace"]] == [1, 2, 3]
    assert tree["history"][-1]["accuracy_mean"] == pytest.approx(
        sum(row["accuracy_shipped"] for row in clients.values()) / 2
    )

    once = start("monitor", "--broker", mosquitto_url, "--federation", federation.name, "--once")
    assert once.end() == 0, once.err
    assert once.out.splitlines()[0] == f"{federation.name}: done after 3 rounds"
    # a row in the verdict's table, and one below it
    above, _, below = once.out.partition("why not in the round")
    for part in (above, below):
        assert [line.split()[0] for line in part.splitlines() if line.startswith(("one ", "two "))] == [
            "one",
            "two",
        ]
    as_json = start("monitor", "--broker", mosquitto_url, "--federation", federation.name, "--json")
    assert as_json.end() == 0
    assert json.loads(as_json.out)["phase"] == "done"


@pytest.mark.slow
def test_monitor_chooses_the_only_federation_or_lists_all(federate, start, own_broker):
    """The broker has no federation, then one, then two."""
    url = f"mqtt://127.0.0.1:{own_broker.port}"
    without_federation = start("monitor", "--broker", url, "--once")
    assert without_federation.end() == 1
    assert "no federation is on" in without_federation.err
    for kind in ("--once", "--json"):
        with_typo = start("monitor", "--broker", url, "--federation", "kitchn", kind)
        assert (with_typo.end(), with_typo.out) == (1, "")
        assert "no message of the federation 'kitchn' is on" in with_typo.err
    first, second = (federate(url, rounds=1, min_clients=9) for _ in range(2))
    first_aggregator = first.aggregator()
    first_aggregator.wait_for("plan")
    link = open_link(url, None)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := _choose_federation(link)):
            assert time.monotonic() < deadline
        assert found == first.name
    finally:
        link.close()
    second_aggregator = second.aggregator()
    second_aggregator.wait_for("plan")
    deadline = time.monotonic() + DEADLINE_S
    with_several = without_federation
    while "2 federations are on" not in with_several.err:
        assert time.monotonic() < deadline, with_several.err
        with_several = start("monitor", "--broker", url, "--once")
        with_several.end()
    assert f"{first.name} (joining)" in with_several.err
    assert "choose one with --federation" in with_several.err


def _choose_federation(link):
    try:
        return choose_federation(link, "")
    except LinkError:  # no federation exists yet
        return ""


def test_closed_pipe_ends_watch_without_error(mosquitto_url):
    """As `| head -0` does, at a broker without messages."""
    command = [
        sys.executable,
        "-m",
        "edgefl",
        "watch",
        "state",
        "--broker",
        mosquitto_url,
        "--federation",
        "quiet",
    ]
    popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    popen.stdout.close()
    assert popen.wait(DEADLINE_S) == 0
    assert popen.stderr.read() == b""
    popen.stderr.close()


def test_monitor_app_follows_a_real_federation(mosquitto_url, federate, toys):
    pytest.importorskip("textual")
    from edgefl.watch.monitor.device_list import DeviceList
    from edgefl.watch.monitor.terminal import Monitor

    federation = federate(mosquitto_url, rounds=5000, min_clients=2)
    aggregator = federation.aggregator()
    devices = [federation.device(name, toys.shard(i)) for i, name in enumerate(("one", "two"))]
    link = open_link(mosquitto_url, None, in_bursts=True)

    async def follow():
        feed = Feed(link, federation.name)
        app = Monitor(feed.pump, feed.snapshot, lambda: link.is_connected)
        async with app.run_test(size=(80, 24)) as pilot:

            async def wait_for(condition):
                deadline = time.monotonic() + DEADLINE_S
                while not condition():
                    assert time.monotonic() < deadline, app.last_snapshot
                    await pilot.pause(0.2)

            await wait_for(lambda: len(app.last_snapshot["history"]) >= 2)
            assert {each["state"] for each in app.last_snapshot["devices"]} <= {"training", "sent", "idle"}
            devices[0].popen.kill()
            await wait_for(lambda: any(each["state"] == "offline" for each in app.last_snapshot["devices"]))
            assert app.query_one(DeviceList).devices[0]["id"] == "one"
            reached = app.last_snapshot["round"]
            await wait_for(lambda: app.last_snapshot["round"] > reached)

    try:
        asyncio.run(follow())
    finally:
        link.close()
    aggregator.popen.terminate()


def test_terminal_monitor_waits_for_the_first_federation(federate, own_broker, terminal):
    pytest.importorskip("textual")
    url = f"mqtt://127.0.0.1:{own_broker.port}"
    view = terminal("monitor", "--broker", url)
    view.wait_for(f"no federation is on {url} yet; waiting for the first one")
    federation = federate(url, min_clients=3)
    federation.aggregator()
    view.wait_for(f"{federation.name}: waiting for 3 of 3 devices")
    view.press("q")
    assert view.end() == 0

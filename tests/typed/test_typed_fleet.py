"""The commands of four pages about a fleet that is enrolled, watched, paused and revoked, run with mosquitto
and real processes.
"""

import json
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from edgefl.protocol.transport.link import Link
from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.support.ports import choose_port

JQ = shutil.which("jq")
FEDERATION = """
[federation]
name = "kitchen"
rounds = 3
min_clients = 2
[model]
name = "softmax"
input_shape = [4]
num_classes = 3
[algorithm]
name = "pfl-mfe"
"""


def read_page(dashboard: Any) -> str:
    """Return the page that a dashboard serves at its printed address."""
    dashboard.wait_for_output("http://")
    address = re.search(r"http://[\d.:]+/", dashboard.output)
    assert address is not None
    with urllib.request.urlopen(address[0], timeout=20) as answer:
        return str(answer.read(), "utf-8")


@contextmanager
def retain_messages(url: str, *topics: str) -> Iterator[None]:
    """Retain a message on topics of the federation during the block, so that each watcher receives it at
    once.

    Watchers receive one more message when it is deleted.
    """
    link = Link(url, "test")
    try:
        for payload in (b"{}", b""):
            for topic in topics:
                link.publish(f"edgefl/v2/kitchen/{topic}", payload, retain=True)
            assert link.wait_in_flight(1, 60)
            if payload:
                yield
    finally:
        link.close()


def format_later_hours() -> str:
    """Return a time window that begins in three hours."""
    now = datetime.now()
    return f"{now + timedelta(hours=3):%H:%M}-{now + timedelta(hours=5):%H:%M}"


def test_commands_of_open_and_enrolled_fleets_work(workspace: Any, page: Callable[[str], Any]) -> None:
    """This is one test, because two of the pages describe both fleets."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    watch_page = page("docs/how-to/watch-a-federation.md")
    workspace.write_shards("shard.npz", "pi-1.npz", "pi-2.npz")
    check_open_fleet(workspace, page("README.md"), watch_page)
    check_enrolled_fleet(
        workspace, page("docs/how-to/enrol-a-fleet.md"), page("docs/how-to/run-on-a-board.md"), watch_page
    )


def check_open_fleet(workspace: Any, readme_page: Any, watch_page: Any) -> None:
    broker = workspace.start(
        readme_page.take("edgefl broker start --bind"), {"0.0.0.0": "127.0.0.1 --port 0"}
    )
    broker.wait_for_output("mqtt://")
    url = re.search(r"mqtt://\S+", broker.output)
    assert url is not None
    workspace.replacements |= {"mqtt://localhost:1883": url[0], "mqtt://192.168.1.10:1883": url[0]}
    (workspace / "federation.toml").write_text(
        f'{FEDERATION}[broker]\nurl = "{url[0]}"\n[data]\nname = "npz:shard.npz"\n'
    )
    any_port = {"--port 8080": "--port 0"}
    dashboards = [
        workspace.start(opened.take("edgefl dashboard --broker"), any_port)
        for opened in (readme_page, watch_page)
    ]
    aggregator = workspace.start("edgefl aggregator start --out open")
    aggregator.wait_for_output("waiting for devices")
    watchers = [
        workspace.start(
            readme_page.take("edgefl watch"), {"metrics'": f"metrics' --broker {url[0]} --count 5"}
        ),
        workspace.start(
            watch_page.take("edgefl watch 'device/+/metrics'"),
            {"metrics'": f"metrics' --broker {url[0]} --count 5"},
        ),
        workspace.start(
            watch_page.take("edgefl watch 'round/+/summary'"),
            {"--json": f"--json --broker {url[0]} --count 5", "jq": "jq --unbuffered"},
        ),
        workspace.start(
            watch_page.take("edgefl watch 'device/pi-1/#'"), {"--count 20": f"--count 5 --broker {url[0]}"}
        ),
    ]
    with retain_messages(url[0], "device/pi-0/metrics", "round/0/summary"):
        for command, text in zip(watchers[:3], ("pi-0", "pi-0", "null" if JQ else "round/0"), strict=True):
            command.wait_for_output(text)
    devices = [
        workspace.start(readme_page.take("edgefl device start --broker")),
        workspace.start(f"edgefl device start --broker {url[0]} --id pi-2 --data pi-2.npz"),
    ]
    for command in (*devices, aggregator, *watchers):
        command.wait_for_end()
    assert (
        not JQ
        or len([line for line in watchers[2].output.splitlines() if line != "null" and float(line) > 0]) == 3
    ), watchers[2].output
    for monitor in (readme_page, watch_page, watch_page, watch_page):
        line = monitor.take("edgefl monitor")
        assert "pi-1" in workspace.run(
            line, None if "--broker" in line else {"edgefl monitor": f"edgefl monitor --broker {url[0]}"}
        )
    for command in dashboards:
        assert "<html" in read_page(command)
    assert "accuracy" in workspace.run(readme_page.take("edgefl infer"))
    workspace.run(readme_page.take("edgefl export"))
    workspace.run(readme_page.take("edgefl simulate"))
    workspace.run(readme_page.take("edgefl report"))


def check_enrolled_fleet(workspace: Any, enrol_page: Any, board_page: Any, watch_page: Any) -> None:
    (workspace / "federation.toml").write_text(FEDERATION)
    port = choose_port()
    workspace.run(
        enrol_page.take("edgefl broker init"),
        {"aggregator.local": f"localhost --bind 127.0.0.1 --port {port}"},
    )
    mosquitto = workspace.start(enrol_page.take("mosquitto -c"))
    mosquitto.wait_for_output(" running")
    workspace.run(enrol_page.take("edgefl device enrol pi-7 "))
    workspace.run("edgefl device enrol pi-8 --security broker -o pi-8.enrol")
    workspace.run(watch_page.take("edgefl broker watcher"))
    # All watchers share one file
    workspace.run("edgefl broker watcher --security broker -o second.enrol", code=1)
    aggregator = workspace.start(enrol_page.take("edgefl aggregator start"))
    aggregator.wait_for_output("waiting for devices")

    # A device that trains only at night waits during the day
    assert "generic" in workspace.run(board_page.take("edgefl device boards"))
    night_device = workspace.start(
        board_page.take("edgefl device start"), {"22:00-06:00": format_later_hours()}
    )
    night_device.wait_for_output("outside")
    night_device.stop()
    pi_7 = workspace.start(enrol_page.take("edgefl device start"))
    aggregator.wait_for_output("pi-7 is online")
    workspace.run(board_page.take("edgefl device pause"))
    aggregator.wait_for_output("pi-7 is paused")
    workspace.run(board_page.take("edgefl device resume"))
    workspace.run(board_page.take("edgefl aggregator pause"))
    workspace.run(board_page.take("edgefl aggregator resume"))
    assert "pi-8" in workspace.run(board_page.take("edgefl aggregator status"))
    workspace.run("edgefl aggregator resume --out kitchen pi-8")
    workspace.run(board_page.take("edgefl device status"))
    workspace.run(board_page.take("edgefl doctor"))
    workspace.run(board_page.take("edgefl device install"))
    assert "22:00-06:00" in (workspace / "edgefl-pi-7.service").read_text()

    # Watchers
    assert "<html" in read_page(
        workspace.start(
            watch_page.take("edgefl dashboard --enrol"), {"watcher.enrol": "watcher.enrol --port 0"}
        )
    )
    assert "pi-7" in workspace.run(watch_page.take("edgefl monitor --enrol"))
    assert aggregator.process.poll() is None

    pi_8 = workspace.start("edgefl device start --enrol pi-8.enrol --data shard.npz --state state-8")
    for command in (aggregator, pi_7, pi_8):
        command.wait_for_end()
    assert [row["id"] for row in json.loads((workspace / "kitchen/result.json").read_text())["clients"]] == [
        "pi-7",
        "pi-8",
    ]
    assert (workspace / "state/model/model.tflite").exists()

    # A lost device is revoked, and the broker is restarted
    workspace.run(enrol_page.take("edgefl device revoke"))
    mosquitto.stop()
    workspace.start("mosquitto -c broker/mosquitto.conf").wait_for_output(" running")
    workspace.run(enrol_page.take("edgefl device enrol pi-7 "))
    assert "receives its own message" in workspace.run("edgefl doctor --enrol pi-7-again.enrol")

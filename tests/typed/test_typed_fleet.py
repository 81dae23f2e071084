"""A fleet with keys: enrolled, watched, paused, revoked, as four pages have it typed, with mosquitto and real
processes.
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

from edgefl.transport.link import Link
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


def page_of(dashboard: Any) -> str:
    """Return the page that a dashboard serves where it says that it does."""
    dashboard.until("http://")
    address = re.search(r"http://[\d.:]+/", dashboard.said)
    assert address is not None
    with urllib.request.urlopen(address[0], timeout=20) as answer:
        return str(answer.read(), "utf-8")


@contextmanager
def kept(url: str, *topics: str) -> Iterator[None]:
    """Have the broker keep a word on topics of the federation meanwhile: who listens, hears it at once, and
    once more when it goes.
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


def later_than_now() -> str:
    """Return hours of the day that begin in three hours."""
    now = datetime.now()
    return f"{now + timedelta(hours=3):%H:%M}-{now + timedelta(hours=5):%H:%M}"


def test_an_open_fleet_and_one_with_keys(desk: Any, page: Callable[[str], Any]) -> None:
    """One test, because two of the pages speak of both."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    watch = page("docs/how-to/watch-a-federation.md")
    desk.deal("shard.npz", "pi-1.npz", "pi-2.npz")
    an_open_fleet(desk, page("README.md"), watch)
    one_with_keys(desk, page("docs/how-to/enrol-a-fleet.md"), page("docs/how-to/run-on-a-board.md"), watch)


def an_open_fleet(desk: Any, readme: Any, watch: Any) -> None:
    broker = desk.start(readme.take("edgefl broker start --bind"), {"0.0.0.0": "127.0.0.1 --port 0"})
    broker.until("mqtt://")
    url = re.search(r"mqtt://\S+", broker.said)
    assert url is not None
    desk.instead |= {"mqtt://localhost:1883": url[0], "mqtt://192.168.1.10:1883": url[0]}
    (desk / "federation.toml").write_text(
        f'{FEDERATION}[broker]\nurl = "{url[0]}"\n[data]\nname = "npz:shard.npz"\n'
    )
    any_port = {"--port 8080": "--port 0"}
    dashboards = [desk.start(each.take("edgefl dashboard --broker"), any_port) for each in (readme, watch)]
    leader = desk.start("edgefl aggregator start --out open")
    leader.until("waiting for devices")
    watchers = [
        desk.start(readme.take("edgefl watch"), {"metrics'": f"metrics' --broker {url[0]} --count 5"}),
        desk.start(
            watch.take("edgefl watch 'device/+/metrics'"),
            {"metrics'": f"metrics' --broker {url[0]} --count 5"},
        ),
        desk.start(
            watch.take("edgefl watch 'round/+/summary'"),
            {"--json": f"--json --broker {url[0]} --count 5", "jq": "jq --unbuffered"},
        ),
        desk.start(
            watch.take("edgefl watch 'device/pi-1/#'"), {"--count 20": f"--count 5 --broker {url[0]}"}
        ),
    ]
    with kept(url[0], "device/pi-0/metrics", "round/0/summary"):
        for each, text in zip(watchers[:3], ("pi-0", "pi-0", "null" if JQ else "round/0"), strict=True):
            each.until(text)
    boards = [
        desk.start(readme.take("edgefl device start --broker")),
        desk.start(f"edgefl device start --broker {url[0]} --id pi-2 --data pi-2.npz"),
    ]
    for each in (*boards, leader, *watchers):
        each.ended()
    assert (
        not JQ
        or len([line for line in watchers[2].said.splitlines() if line != "null" and float(line) > 0]) == 3
    ), watchers[2].said
    for monitor in (readme, watch, watch, watch):
        line = monitor.take("edgefl monitor")
        assert "pi-1" in desk.run(
            line, None if "--broker" in line else {"edgefl monitor": f"edgefl monitor --broker {url[0]}"}
        )
    for each in dashboards:
        assert "<html" in page_of(each)
    assert "accuracy" in desk.run(readme.take("edgefl infer"))
    desk.run(readme.take("edgefl export"))
    desk.run(readme.take("edgefl simulate"))
    desk.run(readme.take("edgefl report"))


def one_with_keys(desk: Any, enrol: Any, board: Any, watch: Any) -> None:
    (desk / "federation.toml").write_text(FEDERATION)
    port = choose_port()
    desk.run(
        enrol.take("edgefl broker init"), {"aggregator.local": f"localhost --bind 127.0.0.1 --port {port}"}
    )
    mosquitto = desk.start(enrol.take("mosquitto -c"))
    mosquitto.until(" running")
    desk.run(enrol.take("edgefl device enrol pi-7 "))
    desk.run("edgefl device enrol pi-8 --security broker -o pi-8.enrol")
    desk.run(watch.take("edgefl broker watcher"))
    # There is one file for everybody who watches.
    desk.run("edgefl broker watcher --security broker -o second.enrol", code=1)
    leader = desk.start(enrol.take("edgefl aggregator start"))
    leader.until("waiting for devices")

    # a board that trains at night only, by day
    assert "generic" in desk.run(board.take("edgefl device boards"))
    night = desk.start(board.take("edgefl device start"), {"22:00-06:00": later_than_now()})
    night.until("outside")
    night.stop()
    pi_7 = desk.start(enrol.take("edgefl device start"))
    leader.until("pi-7 is online")
    desk.run(board.take("edgefl device pause"))
    leader.until("pi-7 is paused")
    desk.run(board.take("edgefl device resume"))
    desk.run(board.take("edgefl aggregator pause"))
    desk.run(board.take("edgefl aggregator resume"))
    assert "pi-8" in desk.run(board.take("edgefl aggregator status"))
    desk.run("edgefl aggregator resume --out kitchen pi-8")
    desk.run(board.take("edgefl device status"))
    desk.run(board.take("edgefl doctor"))
    desk.run(board.take("edgefl device install"))
    assert "22:00-06:00" in (desk / "edgefl-pi-7.service").read_text()

    # who watches
    assert "<html" in page_of(
        desk.start(watch.take("edgefl dashboard --enrol"), {"watcher.enrol": "watcher.enrol --port 0"})
    )
    assert "pi-7" in desk.run(watch.take("edgefl monitor --enrol"))
    assert leader.process.poll() is None

    pi_8 = desk.start("edgefl device start --enrol pi-8.enrol --data shard.npz --state state-8")
    for each in (leader, pi_7, pi_8):
        each.ended()
    assert [row["id"] for row in json.loads((desk / "kitchen/result.json").read_text())["clients"]] == [
        "pi-7",
        "pi-8",
    ]
    assert (desk / "state/model/model.tflite").exists()

    # a lost board: the broker is restarted
    desk.run(enrol.take("edgefl device revoke"))
    mosquitto.stop()
    desk.start("mosquitto -c broker/mosquitto.conf").until(" running")
    desk.run(enrol.take("edgefl device enrol pi-7 "))
    assert "receives its own message" in desk.run("edgefl doctor --enrol pi-7-again.enrol")

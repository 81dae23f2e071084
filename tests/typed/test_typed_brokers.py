"""Several brokers, and other tools on one, as their pages have them typed, with real processes."""

import json
import shutil
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from edgefl.transport.link import Link
from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.support.ports import choose_port

FEDERATION = """
[federation]
name = "kitchen"
rounds = 2
min_clients = 1
[model]
name = "softmax"
input_shape = [4]
num_classes = 3
[algorithm]
name = "fedavg"
"""
DATA = '[data]\nname = "npz:shard.npz"\n[partition]\nname = "iid"\nnum_clients = 2\n'


@pytest.fixture(autouse=True)
def _mosquitto() -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")


def test_run_a_cluster(desk: Any, page: Callable[[str], Any]) -> None:
    """Of three addresses one answers, as when two machines are down; in
    tests/mqtt_broker/broker/test_nats_cluster.py three servers run.
    """
    cluster = page("docs/how-to/run-a-cluster.md")
    desk.deal("shard.npz")
    url = desk.broker()
    plain = {
        "a.local:1883": f"localhost:{choose_port()}",
        "b.local:1883": url.removeprefix("mqtt://"),
        "c.local:1883": "localhost:1",
    }
    desk.instead |= plain
    (desk / "federation.toml").write_text(f'{FEDERATION}[broker]\nurl = "{url}"\n')
    assert f"broker     {url}" in desk.run(cluster.take("edgefl doctor --broker"))
    board = desk.start(cluster.take("edgefl device start --broker"))
    leader = desk.start(cluster.take("edgefl aggregator start --config federation.toml --broker mqtt:"))
    for each in (board, leader):
        each.ended()

    port = choose_port()
    here = {"--host a.local": f"--host localhost --port {port} --bind 127.0.0.1 --host a.local"}
    desk.run(cluster.take("edgefl broker init"), here)
    desk.start("mosquitto -c broker/mosquitto.conf").until(" running")
    desk.run(cluster.take("edgefl device enrol"))
    desk.instead |= {"mqtts://a.local:8883": f"mqtts://localhost:{port}"}
    board = desk.start(cluster.take("edgefl device start --enrol"), {"--state state": "--state second"})
    leader = desk.start(
        cluster.take("edgefl aggregator start"), {"--security": "--out second-out --security"}
    )
    for each in (board, leader):
        each.ended()
    assert all(
        json.loads((desk / out / "result.json").read_text())["clients"]
        for out in ("kitchen-out", "second-out")
    )
    (desk / "mqtt_broker").symlink_to(desk.root / "mqtt_broker")
    desk.run(cluster.take("sed -e"))
    assert "@" not in "".join(
        line for line in (desk / "nats.conf").read_text().splitlines() if not line.strip().startswith("#")
    )


def metrics(leader: Any) -> str:
    """Return what the aggregator answers Prometheus."""
    leader.until("/metrics")
    address = next(word for word in leader.said.split() if word.startswith("http://"))
    with urllib.request.urlopen(address, timeout=20) as answer:
        return str(answer.read(), "utf-8")


def test_connect_other_tools(desk: Any, page: Callable[[str], Any]) -> None:
    for module in ("prometheus_client", "tensorboardX", "mlflow"):
        pytest.importorskip(module)
    connect = page("docs/how-to/connect-other-tools.md")
    desk.deal("shard.npz")
    url = desk.broker()
    (desk / "federation.toml").write_text(f'{FEDERATION}[broker]\nurl = "{url}"\n{DATA}')
    # three aggregators of the page's are one here, with the options of all
    home = connect.take("edgefl aggregator start")
    prometheus = connect.take("edgefl aggregator start")
    log = connect.take("edgefl simulate")
    tracked = connect.take("edgefl aggregator start")
    options = " ".join(line.partition("--config federation.toml")[2] for line in (home, prometheus, tracked))
    leader = desk.start(
        f"edgefl aggregator start --config federation.toml {options}",
        {
            "--metrics-port 9464": "--metrics-port 0",
            "mlflow:http://localhost:5000": "mlflow:sqlite:///rounds.db",
        },
    )
    leader.until("waiting for devices")
    assert "edgefl_devices_online" in metrics(leader)
    link = Link(url, "home")
    try:
        link.subscribe("homeassistant/#")
        found = link.get(30)
        while not hasattr(found, "topic"):
            found = link.get(30)
        assert found.topic.startswith("homeassistant/sensor/edgefl_kitchen/")
    finally:
        link.close()
    board = desk.start(f"edgefl device start --broker {url} --id pi-1 --data shard.npz")
    for each in (board, leader):
        each.ended()
    desk.run(log)
    assert (
        (desk / "mlflow.db").exists() and (desk / "rounds.db").exists() and list((desk / "logs/x").iterdir())
    )
    desk.run(connect.take("edgefl broker examples"))
    assert json.loads((desk / "examples/node-red/flow.json").read_text())
    desk.run(f"edgefl broker init broker --host localhost --port {choose_port()}")
    desk.run(connect.take("edgefl broker watcher"))
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    for name in ("ca.pem", "watcher.pem", "watcher.key"):
        desk.run(connect.take("jq -r"))
        assert "-----BEGIN" in (desk / name).read_text()

"""The commands of the pages about several brokers and about other tools, run in real processes."""

import json
import shutil
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from edgefl.protocol.transport.link import Link
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


def test_commands_of_the_cluster_page_work(workspace: Any, page: Callable[[str], Any]) -> None:
    """One of three addresses answers, as if two machines were down.

    tests/mqtt_broker/broker/test_nats_cluster.py runs three servers.
    """
    cluster = page("docs/how-to/run-a-cluster.md")
    workspace.write_shards("shard.npz")
    url = workspace.start_broker()
    plain = {
        "a.local:1883": f"localhost:{choose_port()}",
        "b.local:1883": url.removeprefix("mqtt://"),
        "c.local:1883": "localhost:1",
    }
    workspace.replacements |= plain
    (workspace / "federation.toml").write_text(f'{FEDERATION}[broker]\nurl = "{url}"\n')
    assert f"broker     {url}" in workspace.run(cluster.take("edgefl doctor --broker"))
    device = workspace.start(cluster.take("edgefl device start --broker"))
    aggregator = workspace.start(
        cluster.take("edgefl aggregator start --config federation.toml --broker mqtt:")
    )
    for command in (device, aggregator):
        command.wait_for_end()

    port = choose_port()
    port_options = {"--host a.local": f"--host localhost --port {port} --bind 127.0.0.1 --host a.local"}
    workspace.run(cluster.take("edgefl broker init"), port_options)
    workspace.start("mosquitto -c broker/mosquitto.conf").wait_for_output(" running")
    workspace.run(cluster.take("edgefl device enrol"))
    workspace.replacements |= {"mqtts://a.local:8883": f"mqtts://localhost:{port}"}
    device = workspace.start(cluster.take("edgefl device start --enrol"), {"--state state": "--state second"})
    aggregator = workspace.start(
        cluster.take("edgefl aggregator start"), {"--security": "--out second-out --security"}
    )
    for command in (device, aggregator):
        command.wait_for_end()
    assert all(
        json.loads((workspace / out / "result.json").read_text())["clients"]
        for out in ("kitchen-out", "second-out")
    )
    (workspace / "mqtt_broker").symlink_to(workspace.root / "mqtt_broker")
    workspace.run(cluster.take("sed -e"))
    assert "@" not in "".join(
        line
        for line in (workspace / "nats.conf").read_text().splitlines()
        if not line.strip().startswith("#")
    )


def read_metrics(aggregator: Any) -> str:
    """Return the aggregator's metrics for Prometheus."""
    aggregator.wait_for_output("/metrics")
    address = next(word for word in aggregator.output.split() if word.startswith("http://"))
    with urllib.request.urlopen(address, timeout=20) as answer:
        return str(answer.read(), "utf-8")


def test_commands_of_the_integrations_page_work(workspace: Any, page: Callable[[str], Any]) -> None:
    for module in ("prometheus_client", "tensorboardX", "mlflow"):
        pytest.importorskip(module)
    connect = page("docs/how-to/connect-other-tools.md")
    workspace.write_shards("shard.npz")
    url = workspace.start_broker()
    (workspace / "federation.toml").write_text(f'{FEDERATION}[broker]\nurl = "{url}"\n{DATA}')
    # One aggregator gets the options of the three aggregators of the page
    home = connect.take("edgefl aggregator start")
    prometheus = connect.take("edgefl aggregator start")
    log = connect.take("edgefl simulate")
    tracked = connect.take("edgefl aggregator start")
    options = " ".join(line.partition("--config federation.toml")[2] for line in (home, prometheus, tracked))
    aggregator = workspace.start(
        f"edgefl aggregator start --config federation.toml {options}",
        {
            "--metrics-port 9464": "--metrics-port 0",
            "mlflow:http://localhost:5000": "mlflow:sqlite:///rounds.db",
        },
    )
    aggregator.wait_for_output("waiting for devices")
    assert "edgefl_devices_online" in read_metrics(aggregator)
    link = Link(url, "home")
    try:
        link.subscribe("homeassistant/#")
        message = link.get(30)
        while not hasattr(message, "topic"):
            message = link.get(30)
        assert message.topic.startswith("homeassistant/sensor/edgefl_kitchen/")
    finally:
        link.close()
    device = workspace.start(f"edgefl device start --broker {url} --id pi-1 --data shard.npz")
    for command in (device, aggregator):
        command.wait_for_end()
    workspace.run(log)
    assert (
        (workspace / "mlflow.db").exists()
        and (workspace / "rounds.db").exists()
        and list((workspace / "logs/x").iterdir())
    )
    workspace.run(connect.take("edgefl broker examples"))
    assert json.loads((workspace / "examples/node-red/flow.json").read_text())
    workspace.run(f"edgefl broker init broker --host localhost --port {choose_port()}")
    workspace.run(connect.take("edgefl broker watcher"))
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    for name in ("ca.pem", "watcher.pem", "watcher.key"):
        workspace.run(connect.take("jq -r"))
        assert "-----BEGIN" in (workspace / name).read_text()

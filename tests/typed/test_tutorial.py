"""The commands of the tutorials with boards, run in real processes."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.support.ports import choose_port


def test_commands_of_the_tutorial_work(workspace: Any, page: Callable[[str], Any]) -> None:
    if find_mosquitto() is None:
        pytest.importorskip("amqtt")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the last line")
    tutorial = page("docs/tutorial/two-boards.md")
    workspace.replacements["1883"] = str(choose_port())
    (workspace / "deal.py").write_text(tutorial.blocks("python")[0])
    (workspace / "federation.toml").write_text(tutorial.blocks("toml")[0])
    workspace.run(tutorial.take("python deal.py"))
    workspace.start(tutorial.take("edgefl broker start"))
    aggregator = workspace.start(tutorial.take("edgefl aggregator start"))
    devices = [workspace.start(tutorial.take("edgefl device start")) for _ in range(2)]
    for command in (aggregator, *devices):
        command.wait_for_end()
    rows = json.loads((workspace / "kitchen/result.json").read_text())["clients"]
    assert [row["id"] for row in rows] == ["pi-1", "pi-2"]
    assert {"accuracy_federated", "accuracy_mixture", "accuracy_shipped_int8", "accuracy_local"} <= rows[
        0
    ].keys()
    assert min(row["accuracy_shipped_int8"] for row in rows) > 0.8, rows
    workspace.run(tutorial.take("edgefl infer"))
    workspace.run(tutorial.take("edgefl export"))
    assert (workspace / "exported/c/model.h").exists()


def test_commands_of_the_tutorial_on_anomalies_work(workspace: Any, page: Callable[[str], Any]) -> None:
    """Fewer windows and rounds than on the page, and a free port."""
    if find_mosquitto() is None:
        pytest.importorskip("amqtt")
    tutorial = page("docs/tutorial/anomalies-in-five-commands.md")
    port = choose_port()
    few = {"-d windows=40 --clients 8": "-d windows=40 -d machines=3 -d test_windows=20 --clients 3"}
    workspace.run(tutorial.take("edgefl data split"), few)
    workspace.run(tutorial.take("edgefl init"))
    config = workspace / "federation.toml"
    text = config.read_text()
    assert "\nrounds = 20\n" in text and ":1883" in text
    config.write_text(text.replace("\nrounds = 20\n", "\nrounds = 3\n").replace(":1883", f":{port}"))
    broker = workspace.start(tutorial.take("edgefl broker start").removesuffix(" &") + f" --port {port}")
    broker.wait_for_output(str(port))
    devices = {
        "seq 8": "seq 3",
        "--state": f"--broker mqtt://localhost:{port} --state",
        "& done": ">/dev/null 2>&1 & done",
    }
    workspace.run(tutorial.take("for i in $(seq 8)"), devices)
    output = workspace.start(tutorial.take("edgefl aggregator start")).wait_for_end()
    assert "AUC" in output and "pi-3" in output
    rows = json.loads((workspace / "plant-out/result.json").read_text())["clients"]
    assert [row["id"] for row in rows] == ["pi-1", "pi-2", "pi-3"]
    assert all(0 <= row["auc_shipped_int8"] <= 1 for row in rows)
    detected = json.loads(workspace.run(tutorial.take("edgefl device detect")))
    assert {"recall", "false_alarm_rate"} <= detected.keys(), detected

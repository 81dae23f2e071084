"""The commands of the tutorial with two boards, run in real processes."""

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

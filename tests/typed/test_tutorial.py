"""What a newcomer types, typed: the tutorial's two boards, with real processes, in a directory of their
own.
"""

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.support.ports import choose_port


def test_two_boards(desk: Any, page: Callable[[str], Any]) -> None:
    if find_mosquitto() is None:
        pytest.importorskip("amqtt")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the last line")
    tutorial = page("docs/tutorial/two-boards.md")
    desk.instead["1883"] = str(choose_port())
    (desk / "deal.py").write_text(tutorial.blocks("python")[0])
    (desk / "federation.toml").write_text(tutorial.blocks("toml")[0])
    desk.run(tutorial.take("python deal.py"))
    desk.start(tutorial.take("edgefl broker start"))
    leader = desk.start(tutorial.take("edgefl aggregator start"))
    devices = [desk.start(tutorial.take("edgefl device start")) for _ in range(2)]
    for each in (leader, *devices):
        each.ended()
    rows = json.loads((desk / "kitchen/result.json").read_text())["clients"]
    assert [row["id"] for row in rows] == ["pi-1", "pi-2"]
    assert {"accuracy_federated", "accuracy_mixture", "accuracy_shipped_int8", "accuracy_local"} <= rows[
        0
    ].keys()
    assert min(row["accuracy_shipped_int8"] for row in rows) > 0.8, rows
    desk.run(tutorial.take("edgefl infer"))
    desk.run(tutorial.take("edgefl export"))
    assert (desk / "exported/c/model.h").exists()

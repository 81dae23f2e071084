"""From a device's state to a firmware and its update, as the pages have it typed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.targets import TARGETS

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _programs() -> None:
    for module in ("tflite_micro",):
        pytest.importorskip(module)
    if reason := explain_not_runnable(TARGETS["cortex-m4"]):
        pytest.skip(reason)
    if shutil.which("cmake") is None or shutil.which("cc") is None:
        pytest.skip("cmake or cc is not on PATH")


def federate(desk: Any) -> None:
    """Play a federation of one board, whose state directory is `state`. Played again, the board has learned
    on.
    """
    (desk / "federation.toml").write_text(
        '[federation]\nname = "kitchen"\nrounds = 2\nmin_clients = 1\n[model]\nname = '
        '"softmax"\ninput_shape = [4]\nnum_classes = 3\n[algorithm]\nname = "pfl-mfe"\n'
    )
    url = desk.broker()
    board = desk.start(f"edgefl device start --broker {url} --id pi-1 --data shard.npz --state state")
    desk.run(f"edgefl aggregator start --broker {url} --fresh")
    board.ended()


def test_to_a_microcontroller_and_an_update(desk: Any, page: Callable[[str], Any]) -> None:
    go = page("docs/how-to/go-to-a-microcontroller.md")
    update = page("docs/how-to/update-firmware.md")
    desk.deal("shard.npz")
    federate(desk)
    assert "cortex-m4: flash" in desk.run(go.take("edgefl export --state"))
    assert json.loads((desk / "out/certificate.json").read_text())
    assert "every output byte the same" in desk.run(go.take("edgefl export verify"))
    assert "FULLY_CONNECTED" in desk.run(go.take("edgefl export profile"))
    # --weights 3: the one dense layer here is too small for it
    desk.run(go.take("edgefl export --state"), code=1)

    desk.run(update.take("edgefl export key"))
    desk.run(update.take("edgefl export --state"))
    desk.run("cd old/firmware && " + update.take("cmake -B build"))
    desk.run("cd old/firmware && " + update.take("cmake --build build --target field"))
    with np.load(desk / "shard.npz") as shard:
        np.savez(desk / "shard.npz", x=shard["x"] + 0.1, y=shard["y"])
    federate(desk)
    desk.run(update.take("edgefl export --state"))
    assert desk.run(update.take("edgefl export update"))
    assert (desk / "update.bin").stat().st_size > 0
    assert desk.run(update.take("edgefl export drift"))


def test_firmware_is_measured(desk: Any, page: Callable[[str], Any]) -> None:
    measured = page("docs/results/firmware.md").take("python -m tests.benchmarks firmware")
    said = desk.run(
        f"cd {ROOT}; {measured}", {"--samples 1000 --cmsis-nn PATH": "--samples 20 --data digits"}
    )
    assert "20 samples, the same bytes in tflite-micro" in said

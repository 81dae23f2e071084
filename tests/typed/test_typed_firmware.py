"""The commands of the pages that lead from a device's state to firmware and its update."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.targets import TARGETS
from tests.firmware_export.graphs import Op, T, make_tflite

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _programs() -> None:
    for module in ("tflite_micro",):
        pytest.importorskip(module)
    if reason := explain_not_runnable(TARGETS["cortex-m4"]):
        pytest.skip(reason)
    if shutil.which("cmake") is None or shutil.which("cc") is None:
        pytest.skip("cmake or cc is not on PATH")


def federate(workspace: Any) -> None:
    """Run a federation of one device with the state directory `state`. A second call trains it further.

    Without selection the device ships the mixture, whose gate the firmware counts.
    """
    (workspace / "federation.toml").write_text(
        '[federation]\nname = "kitchen"\nrounds = 2\nmin_clients = 1\n[model]\nname = '
        '"softmax"\ninput_shape = [4]\nnum_classes = 3\n[algorithm]\nname = "pfl-mfe"\n'
        "[personalization]\nselect = false\n"
    )
    url = workspace.start_broker()
    device = workspace.start(f"edgefl device start --broker {url} --id pi-1 --data shard.npz --state state")
    workspace.run(f"edgefl aggregator start --broker {url} --fresh")
    device.wait_for_end()


def test_commands_of_the_microcontroller_and_update_pages_work(
    workspace: Any, page: Callable[[str], Any]
) -> None:
    export_page = page("docs/how-to/go-to-a-microcontroller.md")
    update_page = page("docs/how-to/update-firmware.md")
    workspace.write_shards("shard.npz")
    federate(workspace)
    assert "cortex-m4: flash" in workspace.run(export_page.take("edgefl export --state"))
    assert json.loads((workspace / "out/certificate.json").read_text())
    workspace.run(export_page.take("cmake -S out/firmware"))
    board = workspace.start(export_page.take("cmake --build selftest"))
    board.wait_for_output("(label serial0)")
    port = board.output.split("redirected to ")[1].split()[0]
    check = export_page.take("edgefl export verify out/ --serial")
    assert "golden inputs, every output byte the same" in workspace.run(check, {"/dev/ttyACM0": port})
    assert json.loads((workspace / "out/board.json").read_text())["board"] == "NUCLEO-L4R5ZI, revision C"
    assert "every output byte the same" in workspace.run(export_page.take("edgefl export verify"))
    assert "FULLY_CONNECTED" in workspace.run(export_page.take("edgefl export profile"))
    # The only dense layer is too small for --weights 3
    workspace.run(export_page.take("edgefl export --state"), code=1)

    workspace.run(update_page.take("edgefl export key"))
    workspace.run(update_page.take("edgefl export --state"))
    workspace.run("cd old/firmware && " + update_page.take("cmake -B build"))
    workspace.run("cd old/firmware && " + update_page.take("cmake --build build --target field"))
    with np.load(workspace / "shard.npz") as shard:
        np.savez(workspace / "shard.npz", x=shard["x"] + 0.1, y=shard["y"])
    federate(workspace)
    workspace.run(update_page.take("edgefl export --state"))
    assert workspace.run(update_page.take("edgefl export update"))
    assert (workspace / "update.bin").stat().st_size > 0
    assert workspace.run(update_page.take("edgefl export drift"))


def test_commands_from_a_downloaded_model_to_an_inference_work(
    workspace: Any, page: Callable[[str], Any]
) -> None:
    """A keyword model of MLPerf Tiny where it is at hand, otherwise a dense layer."""
    export_page = page("docs/how-to/export-any-model.md")
    rng = np.random.default_rng(1)
    weights = rng.integers(-128, 128, (12, 8)).astype(np.int8)
    tensors = [
        T(shape=(1, 8), scales=0.1),
        T(shape=(12, 8), scales=0.01, zero=0, data=weights),
        T(shape=(1, 12), scales=0.2),
    ]
    dense = make_tflite(
        tensors,
        [
            Op(
                name="FULLY_CONNECTED",
                inputs=(0, 1, -1),
                outputs=(2,),
                options={},
                options_class="FullyConnected",
            )
        ],
    )
    (workspace / "model.tflite").write_bytes(dense)
    downloaded = ROOT.parent / "shared/data/mlperf_tiny/kws.tflite"
    (workspace / "kws.tflite").write_bytes(downloaded.read_bytes() if downloaded.exists() else dense)
    np.savez(workspace / "samples.npz", x=rng.normal(0, 5, (40, 8)).astype(np.float32), y=np.arange(40) % 12)
    output = workspace.run(export_page.take("edgefl export model.tflite"))
    assert "accuracy: int8" in output and "40 samples, every output byte the same" in output
    assert "100 random inputs, every output byte the same" in workspace.run(
        export_page.take("edgefl export kws.tflite")
    )
    for command in ("mkdir -p project", "cp -r out/c", "cp out/c/examples"):
        workspace.run(export_page.take(command))
    lines = workspace.run(export_page.take("gcc -O2")).splitlines()
    assert lines[0].startswith("class ") and len(lines) == 13


def test_command_of_the_firmware_benchmark_works(workspace: Any, page: Callable[[str], Any]) -> None:
    command = page("docs/results/firmware.md").take("python -m tests.benchmarks firmware")
    output = workspace.run(
        f"cd {ROOT}; {command}",
        {"--samples 1000 --cmsis-nn PATH --models PATH": "--samples 20 --data digits"},
    )
    assert "20 samples, the same bytes in tflite-micro" in output

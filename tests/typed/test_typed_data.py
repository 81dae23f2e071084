"""The commands of the pages about the user's data and models."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgefl.protocol.transport.link import Link

ACTIVITIES = ["jump", "lie", "run", "sit", "stand", "walk"]


def make_config(shape: list[int], classes: list[str], clients: int) -> str:
    return (
        f'[federation]\nname = "kitchen"\nrounds = 1\nmin_clients = {clients}\n[model]\nname = '
        f'"softmax"\ninput_shape = {shape}\nnum_classes = {len(classes)}\n[samples]\nclasses = '
        f'{json.dumps(classes)}\n[algorithm]\nname = "fedavg"\nepochs = 1\n'
    )


def write_recordings(workspace: Any) -> None:
    """Write six activities, each in a file with the rows of two and a half windows at 50 Hz."""
    rng = np.random.default_rng(1)
    (workspace / "recordings").mkdir()
    for number, activity in enumerate(ACTIVITIES):
        rows = rng.normal(number, 0.1, (320, 3))
        lines = [f"{i / 50:.2f},{x:.3f},{y:.3f},{z:.3f},{activity}" for i, (x, y, z) in enumerate(rows)]
        (workspace / f"recordings/{activity}.csv").write_text(
            "\n".join(["time,ax,ay,az,activity", *lines]) + "\n"
        )


def publish_readings(url: str) -> None:
    """Publish six labels of one sensor, and three windows of readings after each label."""
    rng = np.random.default_rng(2)
    link = Link(url, "sensor")
    try:
        for label, activity in enumerate(ACTIVITIES):
            link.publish("sensors/wrist/activity", activity.encode())
            for reading in rng.normal(label, 0.1, (3 * 128, 3)).round(3).tolist():
                link.publish("sensors/wrist/accel", json.dumps(reading).encode())
        assert link.wait_in_flight(1, 60)
    finally:
        link.close()


def test_commands_of_the_data_page_work(workspace: Any, page: Callable[[str], Any]) -> None:
    image = pytest.importorskip("PIL.Image")
    bring = page("docs/how-to/bring-your-data.md")
    workspace.write_shards("pi-1.npz", "pi-2.npz")
    assert "2 devices, 120 samples of 4, 3 classes" in workspace.run(bring.take("edgefl data show"))
    assert "</html>" in (workspace / "data.html").read_text()
    url = workspace.start_broker()
    rng = np.random.default_rng(0)
    for number, animal in enumerate(("cat", "dog")):
        (workspace / f"samples/{animal}").mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(100 * number, 100 * number + 100, (8, 8)).astype(np.uint8)
            image.fromarray(pixels).save(workspace / f"samples/{animal}/{i:03}.png")
    (workspace / "federation.toml").write_text(make_config([8, 8, 1], ["cat", "dog"], 1))
    device = workspace.start(bring.take("edgefl device start"))
    workspace.run(f"edgefl aggregator start --broker {url}")
    device.wait_for_end()
    assert (workspace / "state/model/model.tflite").exists()

    write_recordings(workspace)
    (workspace / "grouped.py").write_text(bring.blocks("python")[0])
    workspace.run("python grouped.py")
    (workspace / "own_sensors.py").write_text(bring.blocks("python")[1])
    (workspace / "federation.toml").write_text(
        make_config([128, 3], ACTIVITIES, 3).replace("kitchen", "wrists")
    )
    devices = [
        workspace.start(
            bring.take("edgefl device start"), {"pi-1": f"pi-{i}", "--state state": f"--state state-{i}"}
        )
        for i in (1, 2)
    ]
    (workspace / "classes.txt").write_text("\n".join(ACTIVITIES))
    record = workspace.start(
        bring.take("edgefl device record"), {"--window 128": "--window 128 --count 18 --classes classes.txt"}
    )
    record.wait_for_output("listening")
    publish_readings(url)
    record.wait_for_end()
    devices.append(
        workspace.start(
            bring.take("edgefl device start"), {"pi-1": "pi-3", "--state state": "--state state-3"}
        )
    )
    workspace.run(f"edgefl aggregator start --broker {url}")
    for device in devices:
        device.wait_for_end()
    rows = json.loads((workspace / "wrists-out/result.json").read_text())["clients"]
    assert [row["id"] for row in rows] == ["pi-1", "pi-2", "pi-3"]
    assert all((workspace / f"state-{i}/model/model.tflite").exists() for i in (1, 2, 3))


def test_commands_of_the_model_page_work(workspace: Any, page: Callable[[str], Any]) -> None:
    bring = page("docs/how-to/bring-your-model.md")
    (workspace / "make.py").write_text(bring.blocks("python")[0])
    workspace.run("python make.py")
    workspace.run(bring.take("edgefl plan build"))
    assert "train" in workspace.run(bring.take("edgefl plan inspect"))

"""Own data and own models, as their pages have them typed."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgefl.transport.link import Link

CSV = ["walk", "run", "sit", "stand", "lie", "jump"]


def kitchen(shape: list[int], classes: int, clients: int) -> str:
    return (
        f'[federation]\nname = "kitchen"\nrounds = 1\nmin_clients = {clients}\n[model]\nname = '
        f'"softmax"\ninput_shape = {shape}\nnum_classes = {classes}\n[algorithm]\nname = "fedavg"\nepochs = '
        "1\n"
    )


def write_recordings(desk: Any) -> None:
    """Six activities, each in a file of its own: two windows and a half of rows at 50 Hz."""
    rng = np.random.default_rng(1)
    (desk / "recordings").mkdir()
    for number, activity in enumerate(CSV):
        rows = rng.normal(number, 0.1, (320, 3))
        lines = [f"{i / 50:.2f},{x:.3f},{y:.3f},{z:.3f},{activity}" for i, (x, y, z) in enumerate(rows)]
        (desk / f"recordings/{activity}.csv").write_text("\n".join(["time,ax,ay,az,activity", *lines]) + "\n")


def speak(url: str) -> None:
    """Be one sensor that tells six labels, and three readings of a window's length after each."""
    rng = np.random.default_rng(2)
    link = Link(url, "sensor")
    try:
        for label in range(6):
            link.publish("sensors/wrist/activity", str(label).encode())
            for reading in rng.normal(label, 0.1, (3 * 128, 3)).round(3).tolist():
                link.publish("sensors/wrist/accel", json.dumps(reading).encode())
        assert link.wait_in_flight(1, 60)
    finally:
        link.close()


def test_bring_your_data(desk: Any, page: Callable[[str], Any]) -> None:
    image = pytest.importorskip("PIL.Image")
    bring = page("docs/how-to/bring-your-data.md")
    desk.deal("pi-1.npz", "pi-2.npz")
    assert "2 devices, 120 samples of 4, 3 classes" in desk.run(bring.take("edgefl data show"))
    assert "</html>" in (desk / "data.html").read_text()
    url = desk.broker()
    rng = np.random.default_rng(0)
    for number, animal in enumerate(("cat", "dog")):
        (desk / f"samples/{animal}").mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(100 * number, 100 * number + 100, (8, 8)).astype(np.uint8)
            image.fromarray(pixels).save(desk / f"samples/{animal}/{i:03}.png")
    (desk / "federation.toml").write_text(kitchen([8, 8, 1], 2, 1))
    board = desk.start(bring.take("edgefl device start"))
    desk.run(f"edgefl aggregator start --broker {url}")
    board.ended()
    assert (desk / "state/model/model.tflite").exists()

    write_recordings(desk)
    (desk / "grouped.py").write_text(bring.blocks("python")[0])
    desk.run("python grouped.py")
    (desk / "own_sensors.py").write_text(bring.blocks("python")[1])
    (desk / "federation.toml").write_text(kitchen([128, 3], 6, 3).replace("kitchen", "wrists"))
    boards = [
        desk.start(
            bring.take("edgefl device start"), {"pi-1": f"pi-{i}", "--state state": f"--state state-{i}"}
        )
        for i in (1, 2)
    ]
    record = desk.start(bring.take("edgefl device record"), {"--window 128": "--window 128 --count 18"})
    record.until("listening")
    speak(url)
    record.ended()
    boards.append(
        desk.start(bring.take("edgefl device start"), {"pi-1": "pi-3", "--state state": "--state state-3"})
    )
    desk.run(f"edgefl aggregator start --broker {url}")
    for board in boards:
        board.ended()
    rows = json.loads((desk / "wrists-out/result.json").read_text())["clients"]
    assert [row["id"] for row in rows] == ["pi-1", "pi-2", "pi-3"]
    assert all((desk / f"state-{i}/model/model.tflite").exists() for i in (1, 2, 3))


def test_bring_your_model(desk: Any, page: Callable[[str], Any]) -> None:
    bring = page("docs/how-to/bring-your-model.md")
    (desk / "make.py").write_text(bring.blocks("python")[0])
    desk.run("python make.py")
    desk.run(bring.take("edgefl plan build"))
    assert "train" in desk.run(bring.take("edgefl plan inspect"))

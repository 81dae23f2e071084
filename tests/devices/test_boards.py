"""Board detection from a directory that stands for the root of a file system."""

import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

from devices.boards import BOARDS, GENERIC_BOARD, detect_machine, find_board, match_board
from devices.commands.boards import boards
from edgefl.base.errors import ConfigError
from edgefl.base.system.host import read_board_model, read_total_memory_mb

MODELS = [
    ("Raspberry Pi Zero 2 W Rev 1.0", "pi-zero-2-w"),
    ("Raspberry Pi Zero W Rev 1.1", "generic"),
    ("Raspberry Pi 2 Model B Rev 1.1", "generic"),
    ("Raspberry Pi 3 Model A Plus Rev 1.0", "pi-3"),
    ("Raspberry Pi 3 Model B Plus Rev 1.3", "pi-3"),
    ("Raspberry Pi Compute Module 3 Plus Rev 1.0", "pi-3"),
    ("Raspberry Pi 4 Model B Rev 1.4", "pi-4"),
    ("Raspberry Pi 400 Rev 1.0", "pi-4"),
    ("Raspberry Pi Compute Module 4S Rev 1.0", "pi-4"),
    ("Raspberry Pi 5 Model B Rev 1.0", "pi-5"),
    ("Raspberry Pi 500 Rev 1.0", "pi-5"),
    ("Raspberry Pi Compute Module 5 Rev 1.0", "pi-5"),
    ("NVIDIA Jetson Nano Developer Kit", "jetson-nano"),
    ("NVIDIA Jetson Nano 2GB Developer Kit", "jetson-nano"),
    ("NVIDIA Jetson Orin Nano Developer Kit", "jetson-orin"),
    ("NVIDIA Orin Nano Developer Kit", "jetson-orin"),
    ("Radxa ROCK 5 Model B", "generic"),
    ("", "generic"),
]


@pytest.mark.parametrize(("model", "name"), MODELS)
def test_device_tree_model_matches_board(model, name):
    assert match_board(model).name == name


def test_raspberry_pi_4_is_detected(tmp_path):
    """A Raspberry Pi 4 of 4 GB: the model ends with a NUL, MemTotal is in units of 1,024 bytes."""
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_bytes(b"Raspberry Pi 4 Model B Rev 1.4\0")
    (tmp_path / "proc/meminfo").write_text("MemTotal:        3885396 kB\nMemFree:         2956108 kB\n")
    (tmp_path / "proc/cpuinfo").write_text(
        "".join(f"processor\t: {i}\nBogoMIPS\t: 108.00\n\n" for i in range(4))
    )
    machine = detect_machine(tmp_path)
    assert (machine.board.name, machine.model, machine.cores) == ("pi-4", "Raspberry Pi 4 Model B Rev 1.4", 4)
    assert machine.memory_mb == pytest.approx(3885396 * 1024 / 1e6)
    assert (machine.board.threads, machine.bits, machine.runtime, machine.can_quantize) == (
        2,
        64,
        "ai-edge-litert",
        True,
    )
    on_32_bits = replace(machine, bits=32)
    assert (on_32_bits.runtime, on_32_bits.can_quantize) == ("tflite-runtime", False)


@pytest.mark.parametrize("content", [None, "", "MemTotal:", "MemTotal: many kB", "MemFree: 5 kB"])
def test_unreadable_machine_information_gives_generic_board(tmp_path, content):
    if content is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/meminfo").write_text(content)
    machine = detect_machine(tmp_path)
    assert (machine.board, machine.model) == (GENERIC_BOARD, "")
    assert machine.cores >= 1
    assert math.isnan(read_total_memory_mb(tmp_path))
    assert read_board_model(tmp_path) == ""


def test_board_profiles_are_plausible_and_have_a_source():
    for board in BOARDS:
        assert 1 <= board.threads <= board.cores
        assert board.ram_mb >= 512
        assert board.source.startswith("https://")
        assert set(board.runtimes) <= {32, 64}
        assert find_board(board.name) == board
    with pytest.raises(ConfigError, match="no board 'pi-6', expected one of pi-zero-2-w"):
        find_board("pi-6")


def test_boards_command_marks_this_machine(monkeypatch, tmp_path):
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_bytes(b"Raspberry Pi 5 Model B Rev 1.0\0")
    machine = detect_machine(tmp_path)
    monkeypatch.setattr("devices.boards.detect_machine", lambda: machine)
    report = json.loads(CliRunner().invoke(boards, ["--json"]).stdout)
    assert (report["here"]["board"], report["here"]["memory_mb"]) == ("pi-5", None)
    assert [board["name"] for board in report["boards"]] == [*(board.name for board in BOARDS), "generic"]
    table = CliRunner().invoke(boards, []).stdout
    assert [line.split()[1] for line in table.splitlines() if line.startswith("* ")] == ["pi-5", "this"]

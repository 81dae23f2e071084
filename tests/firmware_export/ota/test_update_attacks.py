"""Attacks on firmware updates with public commands.

They use an update for another board, and an old update after both slots were lost.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgefl.base.types import Mixture
from edgefl.data.npz import save_shard
from edgefl.learning.checkpoint import encode_mixture
from edgefl.program.plan.spec import save_plan
from firmware_export.commands import export
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.targets import TARGETS

pytest.importorskip("tflite_micro")


def run_export(*arguments: Any) -> Result:
    return CliRunner().invoke(export, [str(argument) for argument in arguments])


def run_successfully(*arguments: Any) -> str:
    done = run_export(*arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def run_field_program(project: Path) -> str:
    """Build the field program if necessary, and run it once, as a board does after each start."""
    build = [["cmake", "-B", "build"], ["cmake", "--build", "build", "--target", "field.elf"]]
    for command in [*(build if not (project / "build" / "field.elf").exists() else []), ["build/field.elf"]]:
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def reset_board(home: Path, name: str) -> Path:
    """Return the firmware folder of an export, reset to its factory state."""
    for state_file in ("slots.bin", "update_counter.bin", "update.bin"):
        (home / name / "firmware" / state_file).unlink(missing_ok=True)
    return home / name / "firmware"


@pytest.fixture(scope="module")
def home(digits: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports of the boards pi-1 and pi-2, an export of pi-1 after more training, and their key.

    The boards share trunk and gate, and both trust the key.
    """
    if reason := explain_not_runnable(TARGETS["host"]):
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("boards")
    run_successfully("key", home / "keys" / "updates")
    save_shard(home / "shard.npz", digits.shard)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(home))  # nothing is compiled or measured
        for number, (name, device) in enumerate((("a", "pi-1"), ("a-new", "pi-1"), ("b", "pi-2"))):
            rng = np.random.default_rng(number)
            moved = {
                name: value
                + number * rng.normal(0, 0.003, value.shape).astype(np.float32) * ("local" in name)
                for name, value in digits.mixture.weights.items()
            }
            state = home / f"state-{name}"
            save_plan(digits.plan, state / "plan")
            (state / "mixture.safetensors").write_bytes(encode_mixture(Mixture(weights=moved)))
            note = {"data": str(home / "shard.npz"), "id": device, "federation": "boards", "seed": 1}
            (state / "device.json").write_text(json.dumps(note))
            options = ["--state", state, "-o", home / name, "--target", "host", "--samples", 5]
            run_successfully(*options, "--update-key", home / "keys" / "updates.pub")
    return home


def make_update(home: Path, *options: Any) -> Path:
    out = home / "update.bin"
    run_successfully(
        "update", home / "a", home / "a-new", "--key", home / "keys" / "updates", "-o", out, *options
    )
    return out


def test_update_for_another_board_is_refused(home: Path) -> None:
    board = reset_board(home, "b")
    run_field_program(board)
    outputs = (board / "outputs.bin").read_bytes()
    shutil.copy(make_update(home, "--counter", 1), board / "update.bin")
    assert "update.bin: made for another device\nrunning update 0" in run_field_program(board)
    assert (board / "outputs.bin").read_bytes() == outputs
    other = reset_board(home, "a")
    shutil.copy(board / "update.bin", other)
    assert "update.bin: done\nrunning update 1" in run_field_program(other)


def test_an_old_update_is_refused_after_both_slots_were_lost(home: Path) -> None:
    board = reset_board(home, "a")
    run_field_program(board)
    built_in = (board / "outputs.bin").read_bytes()
    first = make_update(home, "--counter", 1).read_bytes()
    for counter in (1, 2, 3):
        shutil.copy(make_update(home, "--counter", counter), board / "update.bin")
        assert f"update.bin: done\nrunning update {counter}" in run_field_program(board)
    slots = bytearray((board / "slots.bin").read_bytes())
    for start in (0, len(slots) // 2):
        slots[start] ^= 1
    (board / "slots.bin").write_bytes(slots)
    (board / "update.bin").write_bytes(first)
    printed = run_field_program(board)
    assert "update.bin: old counter\nrunning update 0" in printed
    assert "running update 0, highest counter 3" in printed
    assert (board / "outputs.bin").read_bytes() == built_in


def test_update_is_bound_to_the_device_of_its_export(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "update.bin"
    key = ("--key", home / "keys" / "updates")
    summary = json.loads(run_successfully("update", home / "a", home / "a-new", *key, "-o", out, "--json"))
    assert summary["device"] == "pi-1"
    assert "for pi-7:" in run_successfully(
        "update", home / "a", home / "a-new", *key, "-o", out, "--device", "pi-7"
    )
    assert "for all devices:" in run_successfully(
        "update", home / "b", home / "a-new", *key, "-o", out, "--all-devices"
    )
    refused = run_export("update", home / "b", home / "a-new", *key, "-o", out)
    assert refused.exit_code != 0
    assert all(text in str(refused.exception) for text in ("'pi-2'", "'pi-1'", "--device", "--all-devices"))
    for options in (["--device", ""], ["--device", "pi-1", "--all-devices"]):
        assert (
            "use either --device ID or --all-devices"
            in run_export("update", home / "a", home / "a-new", *key, "-o", out, *options).output
        )
    nameless = Path(shutil.copytree(home / "a-new", tmp_path / "nameless"))
    (nameless / "report.json").unlink()
    failed = run_export("update", home / "a", nameless, *key, "-o", out)
    assert all(text in str(failed.exception) for text in ("report.json names no device", "--device ID"))

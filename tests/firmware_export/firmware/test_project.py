"""The firmware project. The two commands of its README compile and run it in a clean folder."""

import re
import shlex
import shutil
import subprocess

import numpy as np
import pytest

from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.project import make_project_files, read_macro
from firmware_export.firmware.targets import TARGETS

INPUTS = np.random.default_rng(2).integers(-128, 128, (5, 3)).astype(np.int8)


@pytest.mark.parametrize(
    "name",
    [
        "cortex-m0",
        "cortex-m3",
        "cortex-m4",
        "cortex-m7",
        "cortex-m33",
        "cortex-m55",
        "rv32imc",
        "lx106",
        "host",
    ],
)
def test_both_readme_commands_build_and_run_the_firmware(name, tmp_path, hand) -> None:
    target = TARGETS[name]
    reason = explain_not_runnable(target) or ("" if shutil.which("cmake") else "cmake is not installed")
    if reason:
        pytest.skip(reason)
    folder = tmp_path / "a folder" / "firmware"
    for path, text in make_project_files(hand.FILES, target).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "samples.bin").write_bytes(INPUTS.tobytes())
    commands = re.findall(r"^    (cmake .*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        done = subprocess.run(
            shlex.split(command), cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    output = done.stdout + done.stderr
    outputs = np.frombuffer((folder / "outputs.bin").read_bytes(), np.int8).reshape(-1, 2)
    np.testing.assert_array_equal(outputs, hand.compute_outputs(INPUTS))
    for number, row in enumerate(hand.compute_outputs(INPUTS)):
        assert re.search(rf"^sample {number}: class {row.argmax()}, ticks \d+$", output, re.MULTILINE), output


def test_project_files_are_reproducible(hand) -> None:
    for target in TARGETS.values():
        first = make_project_files(hand.FILES, target)
        assert first == make_project_files(dict(hand.FILES), target)
        assert not [name for name, text in first.items() if re.search(r"@[A-Z_]+@", text)]
        assert {"README.md", "CMakeLists.txt", "model/model.c", "main.c"} <= set(first)


def test_read_macro_returns_the_number() -> None:
    assert read_macro("#define A 3\n#define MODEL_INPUT_BYTES 784\n", "MODEL_INPUT_BYTES") == 784
    assert read_macro("#define Z (-5)\n", "Z") == -5


def test_readme_names_private_samples_of_every_origin(hand) -> None:
    """The inputs of an imported model are random, or samples of a file."""
    text = make_project_files(hand.FILES, TARGETS["rv32imc"])["README.md"]
    assert "the device's own data" not in text and "private: remove the file before you share" in text
    assert "that is 1 instruction;" in text
    assert "compiles with Clang instead" in text
    assert "Clang 14 does not compile for" in make_project_files(hand.FILES, TARGETS["lx106"])["README.md"]

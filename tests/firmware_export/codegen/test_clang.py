"""The generated C under Clang.

It compiles for every core at every level, and gives tflite-micro's bytes in QEMU.
"""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firmware_export.codegen.c_source import generate_c
from firmware_export.codegen.c_text import KERNEL_ORDER, read_c_template
from firmware_export.firmware.project import choose_clang_flags, make_project_files
from firmware_export.firmware.targets import COMPILER_OPTIONS, TARGETS, XTENSA
from firmware_export.tflite.quantized_model import read_quantized_model

CLANG = "clang-14"
CORES = tuple(
    name for name, target in TARGETS.items() if not target.is_host and target.architecture is not XTENSA
)
"""Clang 14 does not compile for Xtensa."""
MARKED_CORES = [
    pytest.param(core, marks=[pytest.mark.slow] * (core not in ("cortex-m0", "cortex-m4", "rv32imc")))
    for core in CORES
]
LEVELS = ("-O0", "-O1", "-O2", "-O3", "-Os")


MAKERS = (
    "make_every_kernel_model",
    "make_every_stateful_kernel_model",
    "make_every_wide_kernel_model",
)
"""Functions of random_models.py whose models have every kernel together."""


@pytest.fixture(scope="module", params=MAKERS)
def model(request: pytest.FixtureRequest, graphs: Any, random_models: Any) -> bytes:
    made: bytes = getattr(random_models, request.param)(graphs)
    return made


def test_the_models_have_every_kernel(graphs: Any, random_models: Any) -> None:
    texts = [
        generate_c(getattr(random_models, maker)(graphs), optimize="ram").files["model.c"] for maker in MAKERS
    ]
    assert [
        kernel for kernel in KERNEL_ORDER if not any(read_c_template(kernel) in text for text in texts)
    ] == []


@pytest.mark.parametrize("core", MARKED_CORES)
def test_every_kernel_compiles_at_every_level(core: str, model: bytes, compiled: Any, tmp_path: Path) -> None:
    source = compiled.write_files(generate_c(model, optimize="ram"), tmp_path)[0]
    warnings = [option for option in COMPILER_OPTIONS if option not in ("-O2", "-Werror")]
    for level in LEVELS:
        command = [
            CLANG,
            f"--target={TARGETS[core].architecture.triple}",
            *TARGETS[core].flags,
            *choose_clang_flags(TARGETS[core]),
            "-ffreestanding",
            *warnings,
            level,
            "-c",
            str(source),
        ]
        done = subprocess.run(
            [*command, "-o", str(tmp_path / "model.o")], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{core} {level}: {done.stderr[:2000]}"
        assert done.stderr == "", f"{core} {level}"


@pytest.mark.parametrize("core", MARKED_CORES)
def test_clang_firmware_in_qemu_gives_tflite_micro_bytes(
    core: str, model: bytes, compiled: Any, tmp_path: Path
) -> None:
    """Use the commands of the project's README. Clang compiles with -O2, and GCC links."""
    pytest.importorskip("tflite_micro")
    files = generate_c(model, optimize="ram").files
    for name, text in make_project_files(files, TARGETS[core]).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    network = read_quantized_model(model)
    samples = compiled.draw_inputs(network, np.random.default_rng(1), 20)
    (tmp_path / "samples.bin").write_bytes(samples.tobytes())
    for arguments in (["-B", "build", f"-DCLANG={CLANG}"], ["--build", "build", "--target", "run"]):
        done = subprocess.run(
            ["cmake", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    expected = compiled.run_micro(model, samples)
    assert len(np.unique(expected, axis=0)) > 10, "the outputs do not depend on the inputs"
    assert (tmp_path / "outputs.bin").read_bytes() == expected.tobytes()
    assert (
        b"clang"
        in subprocess.run(
            ["strings", "-n", "5", tmp_path / "build/libmodel.a"], capture_output=True, check=True
        ).stdout
    )

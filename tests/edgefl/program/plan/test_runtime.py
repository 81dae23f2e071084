"""The selection of a runtime, and its errors for bytes that are not models."""

import subprocess
import sys

import pytest

from edgefl.base.errors import PlanError
from edgefl.program.plan import runtime


def test_runtime_has_a_name_and_a_version() -> None:
    assert runtime.list_runtimes()
    name, version = runtime.RUNTIME_VERSION.split(" ")
    assert name in {"ai-edge-litert", "tflite-runtime"}
    assert version[0].isdigit()


@pytest.mark.parametrize("blob", [b"", b"abc", b"\x00" * 64, b"GIF89a..TFL3"])
def test_foreign_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(PlanError, match="TFL3"):
        runtime.load_interpreter(blob)


def test_a_truncated_model_is_refused() -> None:
    with pytest.raises(PlanError, match="rejects this model"):
        runtime.load_interpreter(b"\x1c\x00\x00\x00TFL3" + b"\x00" * 8)


def test_error_names_the_unknown_runtime() -> None:
    with pytest.raises(PlanError, match="'nnom' is not installed"):
        runtime.load_interpreter(b"\x1c\x00\x00\x00TFL3", runtime="nnom")


def test_import_loads_no_runtime_and_no_tensorflow() -> None:
    code = (
        "import sys, edgefl.program.plan.runtime; print([m for m in ('tensorflow', 'ai_edge_litert') if m in "
        "sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )

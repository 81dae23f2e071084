"""The runtime check reports an installed runtime that does not work, for each kind of failure."""

import sys

import pytest

from edgefl.cli.doctor import runtimes
from edgefl.cli.doctor.runtimes import check_runtimes
from edgefl.program.plan.runtime import list_runtimes


def test_installed_runtimes_work():
    results = check_runtimes()
    assert [result.level for result in results] == ["ok"] * len(list_runtimes())
    assert results[0].found.split()[0] in ("ai-edge-litert", "tflite-runtime")


def test_missing_runtime_fails(monkeypatch):
    monkeypatch.setattr(runtimes, "list_runtimes", lambda: ())
    [result] = check_runtimes()
    assert (result.level, result.found) == ("fail", "neither ai-edge-litert nor tflite-runtime")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "raise ImportError('libtensorflowlite.so: cannot open shared object file')",
            "does not work: ImportError: libtensorflowlite.so",
        ),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)", "was killed by SIGILL"),
        ("raise SystemExit(3)", "does not work: exit code 3"),
    ],
)
def test_broken_runtime_fails_with_its_reason(code, reason, monkeypatch, tmp_path):
    """The child process imports a fake runtime that fails like a broken one."""
    package = tmp_path / list_runtimes()[0].replace("litert", "ai_edge_litert").replace(
        "tflite-runtime", "tflite_runtime"
    )
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "interpreter.py").write_text(code + "\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(path for path in sys.path if path)}")
    result = check_runtimes()[0]
    assert result.level == "fail"
    assert reason in result.found
    assert "--force-reinstall" in result.remedy

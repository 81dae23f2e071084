"""The runtime check finds an installed runtime that does not work, however it fails."""

import sys

import pytest

from edgefl.doctor import runtimes
from edgefl.doctor.runtimes import check_runtimes
from edgefl.plan.runtime import list_runtimes


def test_the_runtime_of_this_machine_computes():
    found = check_runtimes()
    assert [finding.level for finding in found] == ["ok"] * len(list_runtimes())
    assert found[0].found.split()[0] in ("ai-edge-litert", "tflite-runtime")


def test_no_runtime(monkeypatch):
    monkeypatch.setattr(runtimes, "list_runtimes", lambda: ())
    [found] = check_runtimes()
    assert (found.level, found.found) == ("fail", "neither ai-edge-litert nor tflite-runtime")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "raise ImportError('libtensorflowlite.so: cannot open shared object file')",
            "does not work: ImportError: libtensorflowlite.so",
        ),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)", "was killed by SIGILL"),
        ("raise SystemExit(3)", "does not work: exit code 3"),
    ],
)
def test_a_broken_runtime(code, told, monkeypatch, tmp_path):
    """The child process imports a fake runtime that fails like a broken one."""
    package = tmp_path / list_runtimes()[0].replace("litert", "ai_edge_litert").replace(
        "tflite-runtime", "tflite_runtime"
    )
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "interpreter.py").write_text(code + "\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(path for path in sys.path if path)}")
    found = check_runtimes()[0]
    assert found.level == "fail"
    assert told in found.found
    assert "--force-reinstall" in found.remedy

"""The tests name missing Debian packages once, and end with the command that installs them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import debian_packages

ROOT = Path(__file__).parents[1]


def test_packages_are_found_by_program_or_path(monkeypatch, tmp_path):
    (tmp_path / "tool").touch(mode=0o755)
    monkeypatch.setattr(debian_packages, "SEARCH_PATH", str(tmp_path))
    traces = {"a": ("tool",), "b": ("other",), "c": ("/no/such/path", str(tmp_path)), "d": ("/no/such/path",)}
    monkeypatch.setattr(debian_packages, "PACKAGES", traces)
    assert debian_packages.list_missing() == ["b", "d"]
    assert debian_packages.format_command(["b", "d"]) == "sudo apt-get install --no-install-recommends b d"


def test_run_of_tests_names_what_is_missing_at_the_start_and_the_remedy_at_the_end(tmp_path):
    """Two tests are skipped for one reason."""
    (tmp_path / "test_two.py").write_text(
        "import pytest\n\n\n@pytest.mark.parametrize('i', [1, 2])\ndef test_i(i):\n    pytest.skip('no jq')\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml"]
    command += ["--confcutdir", tmp_path, "-p", "tests.conftest", tmp_path]
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    header = next(line for line in lines if line.startswith("not installed: "))
    assert "qemu-system-arm" in header and header.endswith("; the tests that need them are skipped")
    assert lines.index(header) < next(i for i, line in enumerate(lines) if "test_two.py" in line)
    assert "2 skipped: no jq" in lines
    command = next(line for line in lines if line.startswith("install what the tests lack: "))
    assert {"qemu-system-arm", "jq"} <= set(command.split())

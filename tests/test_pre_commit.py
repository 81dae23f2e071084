"""The hooks of .pre-commit-config.yaml run the commands of `make lint` and download nothing."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.rooms import ROOT

CONFIG = ROOT / ".pre-commit-config.yaml"


@pytest.fixture
def hooks() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    repositories = yaml.safe_load(CONFIG.read_text())["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    return list(repositories[0]["hooks"])


def test_the_hooks_are_local(hooks: list[dict[str, Any]]) -> None:
    assert len({hook["id"] for hook in hooks}) == len(hooks)
    for hook in hooks:
        assert hook["language"] == "system"
        assert hook["pass_filenames"] is False, "the command names its files itself, as in `make lint`"


def test_hooks_run_the_commands_of_make_lint(hooks: list[dict[str, Any]]) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    # -o: make treats the environment as installed
    command = ["make", "--no-print-directory", "-n", "-o", ".venv/.installed", "VENV=.venv", "lint"]
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS"}}
    printed = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert [hook["entry"] for hook in hooks] == printed.splitlines()


def test_the_commands_of_the_hooks_exist(hooks: list[dict[str, Any]]) -> None:
    for hook in hooks:
        program = Path(shlex.split(hook["entry"])[0])
        assert program.parent == Path(".venv/bin")
        # The tests may run in an environment with another path than .venv
        installed = Path(sys.executable).parent / program.name
        assert os.access(installed, os.X_OK), f"{installed} is missing; say make install"


def test_codespell_reports_a_misspelling(tmp_path: Path) -> None:
    """The configuration includes pages and hidden folders."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("docs/page.md", "edgefl/module.py", ".github/template.md"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("rec" + "ieve\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "page.md").write_text("rec" + "ieve\n")
    ran = subprocess.run(
        [sys.executable, "-m", "codespell_lib"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    reported = {line.partition(":")[0] for line in ran.stdout.splitlines()}
    assert reported == {"./docs/page.md", "./edgefl/module.py", "./.github/template.md"}
    assert ran.returncode != 0

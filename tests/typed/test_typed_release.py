"""The steps of a release, typed in a repository that holds a copy of the project."""

import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.project_copy import copy_project


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_release(desk: Any, page: Callable[[str], Any]) -> None:
    opened = page("docs/contributing/release.md")
    copy_project(desk.directory)
    shutil.copy(desk.root / ".gitignore", desk.directory)
    # The page names the same version after the release of that version.
    (desk / "edgefl" / "__init__.py").write_text('__version__ = "0.2.9"\n')
    for role in ("AUTHOR", "COMMITTER"):
        desk.environment |= {f"GIT_{role}_NAME": "test", f"GIT_{role}_EMAIL": "test@localhost"}
    desk.run("git init --quiet && git add . && git commit --quiet --message 'Copy the project'")

    assert desk.run(opened.take("git status")) == ""
    desk.run(opened.take("sed -i 's/^__version__"))
    desk.run(opened.take('sed -i "s/^## Unreleased'))
    changed = desk.run(opened.take("git diff"))
    assert '+__version__ = "0.3.0"' in changed
    assert "+## 0.3.0 - 20" in changed
    changelog = (desk / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[:2] == ["Unreleased", "0.3.0"]
    desk.run(opened.take("git commit"))
    desk.run(opened.take("rm -rf dist"))
    python = {".venv/bin/python": sys.executable}
    desk.run(opened.take(".venv/bin/python -m build"), python)
    checked = desk.run(opened.take(".venv/bin/python -m twine"), python)
    assert checked.count("PASSED") == 2
    assert (desk / "dist" / "edgefl_tinyml-0.3.0-py3-none-any.whl").exists()
    desk.run(opened.take("git tag"))
    assert desk.run("git tag --points-at HEAD") == "v0.3.0\n"
    assert desk.run("git status --short") == ""

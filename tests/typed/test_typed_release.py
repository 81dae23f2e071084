"""The commands of the release page, run in a repository with a copy of the project."""

import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.project_copy import copy_project


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commands_of_the_release_page_work(workspace: Any, page: Callable[[str], Any]) -> None:
    opened = page("docs/contributing/release.md")
    copy_project(workspace.directory)
    shutil.copy(workspace.root / ".gitignore", workspace.directory)
    # The page names the same version after the release of that version.
    (workspace / "edgefl" / "__init__.py").write_text('__version__ = "0.2.9"\n')
    for role in ("AUTHOR", "COMMITTER"):
        workspace.environment |= {f"GIT_{role}_NAME": "test", f"GIT_{role}_EMAIL": "test@localhost"}
    workspace.run("git init --quiet && git add . && git commit --quiet --message 'Copy the project'")

    assert workspace.run(opened.take("git status")) == ""
    workspace.run(opened.take("sed -i 's/^__version__"))
    workspace.run(opened.take('sed -i "s/^## Unreleased'))
    changed = workspace.run(opened.take("git diff"))
    assert '+__version__ = "0.3.0"' in changed
    assert "+## 0.3.0 - 20" in changed
    changelog = (workspace / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[:2] == ["Unreleased", "0.3.0"]
    workspace.run(opened.take("git commit"))
    workspace.run(opened.take("rm -rf dist"))
    python = {".venv/bin/python": sys.executable}
    workspace.run(opened.take(".venv/bin/python -m build"), python)
    checked = workspace.run(opened.take(".venv/bin/python -m twine"), python)
    assert checked.count("PASSED") == 2
    assert (workspace / "dist" / "edgefl_tinyml-0.3.0-py3-none-any.whl").exists()
    workspace.run(opened.take("git tag"))
    assert workspace.run("git tag --points-at HEAD") == "v0.3.0\n"
    assert workspace.run("git status --short") == ""

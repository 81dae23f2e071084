"""A copy of the project to build from."""

import shutil
from pathlib import Path

from tests.support.rooms import PACKAGES, ROOT

FILES = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml")


def copy_project(target: Path) -> None:
    """Copy the packages, the tests and the files of a build into an existing directory.

    A build in the checkout would leave its build/ there, and would include files of an earlier build.
    """
    for folder in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, target)

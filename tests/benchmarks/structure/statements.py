"""Number of statements of packages: statement nodes of the syntax tree, without docstrings."""

import ast
import io
import subprocess
import tarfile
from collections.abc import Iterable, Iterator

from edgefl.base.errors import ConfigError
from tests.benchmarks.structure.call_path import PACKAGES, ROOT

FORMER_FOLDERS = {
    "edgefl/protocol/server": ("edgefl/server",),
    "edgefl/protocol/transport": ("edgefl/transport", "edgefl/link"),
}
"""What a measured folder was called in earlier commits."""
MEASURED = ("mqtt_broker", "devices", *FORMER_FOLDERS, *PACKAGES)


def count_statements(source: str) -> int:
    """Return the number of statements. A docstring does not count."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return sum(not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant) for node in nodes)


def count_by_package(sources: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Return the number of files and statements of each measured package.

    Args:
        sources: path in the repository and content of each Python file.
    """
    counts = {package: {"files": 0, "statements": 0} for package in MEASURED}
    for path, content in sources:
        for package in counts:
            if path.startswith(tuple(f"{name}/" for name in (package, *FORMER_FOLDERS.get(package, ())))):
                counts[package]["files"] += 1
                counts[package]["statements"] += count_statements(content)
    return counts


def list_working_tree() -> Iterator[tuple[str, str]]:
    """Yield the Python files of the packages in the working tree."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def read_commit(commit: str) -> Iterator[tuple[str, str]]:
    """Yield the Python files of a commit of this repository.

    Raises:
        ConfigError: the commit is unknown.
    """
    command = ["git", "archive", "--format=tar", "--end-of-options", commit]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if ran.returncode:
        raise ConfigError(f"git has no commit {commit!r}: {ran.stderr.decode().strip()}; see `git log`")
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)):
                yield member.name, file.read().decode()

"""Size of each room: files, lines, statements, and the share of lines that are docstrings."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.structure.call_path import PACKAGES
from tests.benchmarks.structure.statements import count_statements, list_working_tree, read_commit

FORMER_PARTS = {
    "base": ("errors.py", "types.py", "rng.py", "verdict.py", "system", "tasks", "config", "storage"),
    "program": ("plan", "learner", "compiler", "models"),
    "data": ("data",),
    "learning": ("algorithms", "client", "privacy"),
    "protocol": ("wire", "transport", "link", "security", "server", "client_machine"),
    "simulation": ("simulation", "runs"),
    "watch": ("monitor", "dashboard", "report", "loggers", "audit"),
    "lab": ("reproduce", "tune"),
    "cli": ("cli", "init", "demo", "doctor", "bench", "commands"),
}
"""Files and folders below edgefl of each room, before decision 36 and since."""


@dataclass
class RoomSize:
    """The size of a room.

    Attributes:
        files: number of Python files.
        lines: number of lines.
        statements: number of statements. A docstring does not count.
        docstring_lines: number of lines in docstrings, of attributes too.
    """

    files: int = 0
    lines: int = 0
    statements: int = 0
    docstring_lines: int = 0


def name_room(path: str) -> str:
    """Return the room of a file, such as `edgefl/base` or `devices`. Empty for a file outside the packages.

    Args:
        path: path in the repository.
    """
    package, *parts = path.split("/")
    if package not in PACKAGES or package != "edgefl" or not parts:
        return package if package in PACKAGES else ""
    if parts[0] in FORMER_PARTS and len(parts) > 1:
        return f"edgefl/{parts[0]}"
    return next((f"edgefl/{room}" for room, names in FORMER_PARTS.items() if parts[0] in names), "edgefl")


def count_docstring_lines(source: str) -> int:
    """Return the number of lines in docstrings, of attributes too."""
    return sum(
        node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and node.end_lineno is not None
    )


def measure_rooms(sources: Iterable[tuple[str, str]]) -> dict[str, RoomSize]:
    """Return the size of each room by its name, and of all as `all`.

    Args:
        sources: path in the repository and content of each Python file.
    """
    sizes: dict[str, RoomSize] = {}
    for path, content in sources:
        if room := name_room(path):
            for name in (room, "all"):
                size = sizes.setdefault(name, RoomSize())
                size.files += 1
                size.lines += len(content.splitlines())
                size.statements += count_statements(content)
                size.docstring_lines += count_docstring_lines(content)
    return dict(sorted(sizes.items(), key=lambda item: (item[0] == "all", item[0])))


def run_rooms_bench(since: str | None, command: str) -> dict[str, Any]:
    """Return the sizes of the rooms now and at a commit.

    Args:
        since: the commit, or None.
        command: the command line, for the result.

    Raises:
        ConfigError: the commit is unknown.
    """
    before = measure_rooms(read_commit(since)) if since else {}
    return {
        "command": command,
        "since": since,
        "before": {name: vars(size) for name, size in before.items()},
        "rooms": {name: vars(size) for name, size in measure_rooms(list_working_tree()).items()},
    }


def render_rooms(result: dict[str, Any]) -> str:
    """Return the result as text for a terminal."""
    figures = ("files", "lines", "statements")
    heading = "".join(f"{figure:>12}" for figure in (*figures, "docstrings"))
    columns = (
        (("rooms", ""), ("before", f"   at {result['since']}:")) if result["before"] else (("rooms", ""),)
    )
    lines = [result["command"], "", f"{'':20}" + "".join(label + heading for _, label in columns)]
    for room in dict.fromkeys((*result["rooms"], *result["before"])):
        line = f"{room:20}"
        for key, label in columns:
            size = result[key].get(room) or vars(RoomSize())
            share = size["docstring_lines"] / max(1, size["lines"])
            line += " " * len(label) + "".join(f"{size[figure]:12,}" for figure in figures) + f"{share:12.0%}"
        lines.append(line)
    return "\n".join(lines)

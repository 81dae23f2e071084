"""Lists public functions whose docstring does not name each argument.

Run `python -m tests.support.docstrings [PATH ...]` to list them. A function with one argument may explain it
in a sentence. Commands are exempt, because their `--help` explains the options. Methods of a class with a
base are exempt, because the base explains them.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
PACKAGES = ("edgefl", "devices", "mqtt_broker", "firmware_export")
MIN_ARGUMENTS = 2


@dataclass(frozen=True)
class Undocumented:
    """A public function and its arguments without an entry under `Args:`."""

    path: Path
    line: int
    name: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}: {', '.join(self.arguments)}"


def list_undocumented(path: Path) -> Iterator[Undocumented]:
    """Yield the public functions and methods of a file with undocumented arguments.

    Args:
        path: a Python file.
    """
    module = ast.parse(path.read_text())
    yield from _list_in_body(path, module.body, "")
    for node in module.body:
        if isinstance(node, ast.ClassDef) and not node.bases and not node.name.startswith("_"):
            yield from _list_in_body(path, node.body, f"{node.name}.")


def _list_in_body(path: Path, body: list[ast.stmt], prefix: str) -> Iterator[Undocumented]:
    for node in body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or _is_exempt(node):
            continue
        names = [
            each.arg for each in (*node.args.args, *node.args.kwonlyargs) if each.arg not in ("self", "cls")
        ]
        if len(names) < MIN_ARGUMENTS:
            continue
        section = (ast.get_docstring(node) or "").partition("Args:")[2]
        missing = tuple(name for name in names if not re.search(rf"^\s+{name}:", section, re.MULTILINE))
        if missing:
            yield Undocumented(path, node.lineno, prefix + node.name, missing)


def _is_exempt(node: ast.FunctionDef) -> bool:
    """Return whether a function is a command or an overload."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    return any(re.search(r"\b(command|group|overload)\b", each) for each in decorators)


@click.command(epilog="Example: python -m tests.support.docstrings edgefl/report")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True))
def main(paths: tuple[Path, ...]) -> None:
    """List public functions and methods of two or more arguments that do not document each one."""
    roots = paths or tuple(ROOT / package for package in PACKAGES)
    files = sorted(file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py")))
    found = [each for file in files for each in list_undocumented(file)]
    for each in found:
        click.echo(each)
    click.echo(f"{len(found)} functions", err=True)


if __name__ == "__main__":
    main()

"""Which typed tests must run: those whose pages or commands changed since `make test-all` last passed.

    python -m tests.typed.digests    # writes digests.json; `make test-all` does so after all tests passed

The digest of a test covers the pages that it opens, their entries in untyped_commands.py, the modules that
define the commands of these pages, and the test's own file. What a command calls is left to the tests of that
code, and to `make test-all`.
"""

import ast
import hashlib
import inspect
import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from edgefl.cli.main import cli
from tests.typed.pages import ROOT, list_commands
from tests.typed.untyped_commands import UNTYPED_COMMANDS

FOLDER = Path(__file__).parent
LIST = FOLDER / "digests.json"


def list_opened_pages(function: ast.FunctionDef) -> list[str]:
    """Return the pages that a test opens by the fixture `page`, sorted."""
    return sorted(
        {
            str(node.args[0].value)
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "page"
            and isinstance(node.args[0], ast.Constant)
        }
    )


def list_command_modules(text: str) -> set[Path]:
    """Return the files that define the `edgefl` commands of a page."""
    modules = set()
    for line in list_commands(text):
        words = shlex.split(line, comments=True, posix=False)
        for start, word in enumerate(words):
            if word == "edgefl":
                for command in _resolve(words[start + 1 :]):
                    modules |= {
                        Path(inspect.getfile(function))
                        for function in (command.callback, inspect.unwrap(command.callback or print))
                        if inspect.isfunction(function)
                    }
    return {path for path in modules if path.is_relative_to(ROOT)}


def _resolve(words: list[str]) -> Iterator[click.Command]:
    command: click.Command = cli
    context = click.Context(command)
    while isinstance(command, click.Group) and words and command.get_command(context, words[0]):
        command = command.get_command(context, words[0]) or command
        context = click.Context(command, parent=context)
        words = words[1:]
        yield command


def compute_digest(files: Iterable[Path], text: str) -> str:
    """Return the digest of a text and of the contents of some files, in the order of their paths."""
    total = hashlib.sha256(text.encode())
    for path in sorted(files):
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def compute_digests(folder: Path = FOLDER) -> dict[str, str]:
    """Return the digest of each test that types pages, by `file::function`."""
    digests = {}
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and (pages := list_opened_pages(node)):
                opened = [ROOT / page for page in pages]
                modules = {module for page in opened for module in list_command_modules(page.read_text())}
                listed = json.dumps([UNTYPED_COMMANDS.get(page, {}) for page in pages])
                digests[f"{path.name}::{node.name}"] = compute_digest({path, *opened, *modules}, listed)
    return digests


def list_unchanged() -> set[str]:
    """Return the tests whose digest is the committed one."""
    committed = json.loads(LIST.read_text()) if LIST.exists() else {}
    return {name for name, digest in compute_digests().items() if committed.get(name) == digest}


if __name__ == "__main__":
    LIST.write_text(json.dumps(compute_digests(), indent=1) + "\n")
    print(f"wrote {LIST.relative_to(ROOT)}; commit it")

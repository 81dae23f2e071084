"""Rule about names of files on disk: product code reads them from `edgefl.base.storage`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.demo_directory import DemoFiles
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.storage.run_directory import RunFiles
from edgefl.program.plan.spec import INITIAL_FILE, PLAN_FILE_NAMES
from tests.lint.source import Problem, Source

OWNERS = ("edgefl/base/storage/", "edgefl/program/plan/")
DIRECTORIES = (DeviceFiles, AggregatorFiles, RunFiles, DemoFiles)
# Names that other things share: a configuration, an export, a firmware project, samples of a person.
SHARED = {"federation.toml", "model", "model.tflite", "report.html", "shard.npz"}
PARTS = {
    part for directory in DIRECTORIES for each in directory.list_files() for part in Path(each.name).parts
}
PLAN_FILES = {*PLAN_FILE_NAMES.values(), INITIAL_FILE}
NAMES = {part for part in PARTS if "." in part and "{" not in part} - SHARED | PLAN_FILES
# These names are ordinary words. They count where a path is put together.
PLAIN_NAMES = {part for part in PARTS if part.isalpha()} - SHARED
PATTERN = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, sorted(NAMES)))})(?!\w)")


def check_file_names(source: Source) -> Iterator[Problem]:
    """Yield names of declared files that a module spells out."""
    if source.path.startswith(OWNERS):
        return
    repeated = [node for node in _list_strings(source.tree) if PATTERN.search(str(node.value))]
    repeated += [node for node in _list_path_parts(source.tree) if node.value in PLAIN_NAMES]
    for node in repeated:
        yield node.lineno, f"spells out the file name {node.value!r}; read it from edgefl.base.storage"


def _list_strings(tree: ast.Module) -> list[ast.Constant]:
    """Return the strings of a module, without docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def _list_path_parts(tree: ast.Module) -> list[ast.Constant]:
    """Return the strings that are appended to a path by `/`."""
    return [
        node.right
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and isinstance(node.right, ast.Constant)
    ]

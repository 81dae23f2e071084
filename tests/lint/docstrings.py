"""Rule about docstrings: public functions of two or more arguments document each one.

A function with one argument may explain it in a sentence. Commands are exempt, because their `--help`
explains the options. Methods of a class with a base are exempt, because the base explains them.
"""

import ast
import re
from collections.abc import Iterator

from tests.lint.source import Problem, Source

MIN_ARGUMENTS = 2


def check_arguments(source: Source) -> Iterator[Problem]:
    """Yield public functions and methods with arguments that have no entry under `Args:`."""
    yield from _check_body(source.tree.body, "")
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef) and not node.bases and not node.name.startswith("_"):
            yield from _check_body(node.body, f"{node.name}.")


def _check_body(body: list[ast.stmt], prefix: str) -> Iterator[Problem]:
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
            yield node.lineno, f"{prefix}{node.name} does not document {', '.join(missing)} under Args"


def _is_exempt(node: ast.FunctionDef) -> bool:
    """Return whether a function is a command or an overload."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    return any(re.search(r"\b(command|group|overload)\b", each) for each in decorators)

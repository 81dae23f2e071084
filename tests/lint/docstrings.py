"""Rules about the `Args` of docstrings.

In a stable module each argument of a public function has an entry. Elsewhere an entry must say more than the
names and types in its function: a unit, a shape, a range, what None means, or a reason.
"""

import ast
import re
from collections.abc import Iterator

from tests.lint.source import Problem, Source

STABLE = (
    "edgefl/base/config/",
    "edgefl/base/errors.py",
    "edgefl/base/types.py",
    "edgefl/learning/algorithms/base.py",
    "edgefl/learning/algorithms/entry.py",
    "edgefl/simulation/simulate.py",
    "edgefl/watch/history.py",
)
"""Modules that docs/reference/index.md declares stable, and those of the names that `import edgefl` gives."""
MIN_ARGUMENTS = 2
"""A function with one argument may explain it in a sentence."""
SECTION = re.compile(r"^ *Args:\n(?P<entries>(?: +.*\n|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^(?P<indent> +)(?P<name>\w+): (?P<text>.*(?:\n(?P=indent) +\S.*)*)", re.MULTILINE)
FILLERS = re.compile(
    r"a|all|an|and|any|are|as|at|be|by|each|every|for|from|has|have|in|is|it|its|of|on|one|or|that|the|their|"
    r"these|this|those|to|what|which|with"
)
SYNONYMS = {
    "config": ("configuration", "federation"),
    "count": ("number",),
    "directory": ("path", "folder"),
    "file": ("path",),
    "id": ("client", "device"),
    "max": ("maximum",),
    "min": ("minimum", "least"),
    "network": ("model",),
    "num": ("number",),
    "path": ("file", "directory", "folder"),
    "peer": ("model",),
    "rng": ("random", "generator", "draws"),
    "spec": ("specification",),
    "view": ("data", "set", "labels"),
    "int": ("number",),
    "mapping": ("name",),
    "shard": ("samples",),
}
"""Words that say no more than a word in a name or a type."""
NEWS = re.compile(
    r"[A-Z`\d\[\]()]|\b(shape|float\w*|bool|default|empty|bytes?|seconds?|hex|at least|range|unit|"
    r"whether|without|only|if|unless|before|after|already|here|read|order|maximum)\b"
)
"""Text that says more than a name can."""


def check_arguments(source: Source) -> Iterator[Problem]:
    """Yield missing entries of a stable module, and entries of others that say nothing."""
    if source.path.startswith(STABLE):
        yield from _find_missing(source.tree.body, "")
        for part in source.tree.body:
            if isinstance(part, ast.ClassDef) and not part.bases and not part.name.startswith("_"):
                yield from _find_missing(part.body, f"{part.name}.")
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for name in list_empty_entries(node):
                yield (
                    node.lineno,
                    f"the entry of {name} says no more than its name; remove it, or add what it lacks",
                )


def list_empty_entries(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """Return the arguments of a function whose entries say no more than its names and types.

    Args:
        node: the function, or a class, whose docstring has the entries of `__init__`.
    """
    docstring = ast.get_docstring(node) or ""
    section = SECTION.search(docstring + "\n")
    if section is None:
        return []
    function = next(
        (
            part
            for part in ast.walk(node)
            if isinstance(part, ast.FunctionDef) and part.name in (node.name, "__init__")
        ),
        None,
    )
    arguments = [*function.args.args, *function.args.kwonlyargs] if function else []
    types = {each.arg: ast.unparse(each.annotation) for each in arguments if each.annotation}
    context = _list_words(f"{node.name} {docstring.partition('.')[0]}")
    empty = []
    for entry in ENTRY.finditer(section["entries"]):
        name, text = entry["name"], entry["text"]
        words, named = _list_words(text), _list_words(f"{name} {types.get(name, '')}")
        if name in types and not NEWS.search(text) and words & named and words <= named | context:
            empty.append(name)
    return empty


def _list_words(text: str) -> set[str]:
    """Return the stems of the words in a text or a name, with their synonyms."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text.replace("_", " "))
    words = [word.lower() for word in re.findall(r"[A-Za-z]+", apart)]
    words = [synonym for word in words for synonym in (word, *SYNONYMS.get(word, ()))]
    return {re.sub(r"(ing|ed|es|s)$", "", word) for word in words if not FILLERS.fullmatch(word)}


def _find_missing(body: list[ast.stmt], prefix: str) -> Iterator[Problem]:
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

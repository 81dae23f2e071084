"""Records with many fields are built by name, because nobody sees two swapped values in a list."""

import ast
from collections.abc import Iterable, Iterator, Mapping

from tests.lint.source import Source
from tests.support.rooms import PACKAGES

MOST_POSITIONAL_FIELDS = 3
MOST_POSITIONAL_VALUES = 4
"""The same for classes that are no dataclasses."""


def check_construction(sources: Iterable[Source]) -> Iterator[str]:
    """Yield calls with positional values of dataclasses with more than three fields, or with five values."""
    sources = tuple(sources)
    records = {
        node.name: node
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and _is_dataclass(node)
    }
    classes = {
        node.name
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and not _takes_any_number(node)
    }
    large = {name for name in records if _count_fields(name, records) > MOST_POSITIONAL_FIELDS}
    for source in sources:
        own = set(_list_own_names(source.tree))
        hidden = {
            node.name
            for node in ast.walk(source.tree)
            if isinstance(node, ast.ClassDef) and not _is_dataclass(node)
        }
        for node in ast.walk(source.tree):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            name = ast.unparse(node.func)
            record = name.rpartition(".")[2]
            if name.partition(".")[0] not in own:
                continue
            is_record = record in large - hidden
            if not is_record and record in classes and len(node.args) > MOST_POSITIONAL_VALUES:
                yield f"{source.path}:{node.lineno}: {record} gets {len(node.args)} unnamed values; name each"
            if is_record:
                yield (
                    f"{source.path}:{node.lineno}: {record} has more than {MOST_POSITIONAL_FIELDS} fields; "
                    "name each value"
                )


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(ast.unparse(decorator).startswith("dataclass") for decorator in node.decorator_list)


def _takes_any_number(node: ast.ClassDef) -> bool:
    """Return whether a class takes any number of positional values, such as the words of a command."""
    return any(
        isinstance(item, ast.FunctionDef) and item.name == "__init__" and item.args.vararg
        for item in node.body
    )


def _count_fields(name: str, records: Mapping[str, ast.ClassDef]) -> int:
    """Return the number of values that a call of a dataclass may have, with the ones of its bases."""
    node = records.get(name)
    if node is None:
        return 0
    values = (
        item
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and not ast.unparse(item.annotation).startswith("ClassVar")
        and "init=False" not in ast.unparse(item)
    )
    return sum(1 for _ in values) + sum(_count_fields(ast.unparse(base), records) for base in node.bases)


def _list_own_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file defines, or imports from the project."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom) and (
            (node.module or "").partition(".")[0] in (*PACKAGES, "tests")
        ):
            yield from (alias.asname or alias.name for alias in node.names)

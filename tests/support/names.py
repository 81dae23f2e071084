"""Reads the identifiers of the product code, for the naming rules in tests/test_names.py."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("edgefl", "devices", "mqtt_broker", "firmware_export")


@dataclass(frozen=True)
class Definition:
    """A top-level definition or a method: its file, qualified name, kind and decorators."""

    path: str
    name: str
    kind: str
    decorators: str = ""

    @property
    def key(self) -> str:
        """The definition as tables of exceptions name it, `path/file.py::name`."""
        return f"{self.path}::{self.name}"


def list_sources() -> list[Path]:
    """Return the Python files of the product, sorted."""
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def split_identifier(identifier: str) -> list[str]:
    """Return the lower-case parts of a name: `readTensor_byName` has read, tensor, by, name."""
    pattern = r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+"
    return [part.lower() for piece in identifier.strip("_").split("_") for part in re.findall(pattern, piece)]


def list_identifiers(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each name that a file defines or uses, with its line; the file's own name comes first."""
    yield 0, path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield line, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield line, name
            case ast.alias(name=name, asname=alias):
                yield from ((line, part) for part in (*name.split("."), alias) if part)
            case ast.keyword(arg=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield line, name
            case _:
                pass


def list_definitions(path: Path) -> Iterator[Definition]:
    """Yield the top-level names of a file and the methods of its classes, private ones too."""
    shown = str(path.relative_to(ROOT))
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield Definition(shown, name, "function", _show_decorators(node))
            case ast.ClassDef(name=name, body=body):
                yield Definition(shown, name, "class")
                for member in body:
                    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                        method = f"{name}.{member.name}"
                        yield Definition(shown, method, "method", _show_decorators(member))
            case ast.Assign(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield Definition(shown, target.id, "constant")
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield Definition(shown, name, "constant")
            case _:
                pass


def _show_decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return " ".join(ast.unparse(decorator) for decorator in node.decorator_list)

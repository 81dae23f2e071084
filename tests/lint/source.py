"""The Python files that the rules read, parsed once."""

import ast
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tests.support.rooms import PACKAGES, ROOT

Problem = tuple[int, str]
"""A line and a message."""


@dataclass(frozen=True)
class Source:
    """A Python file.

    Attributes:
        path: path relative to the root of the project, with slashes.
        text: content.
    """

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text, self.path)

    @property
    def is_product(self) -> bool:
        """Whether the file belongs to one of the packages, and not to the tests."""
        return self.path.partition("/")[0] in PACKAGES


@lru_cache
def read_sources() -> tuple[Source, ...]:
    """Return all Python files of the packages and the tests, sorted by path."""
    paths = sorted(path for folder in (*PACKAGES, "tests") for path in (ROOT / folder).rglob("*.py"))
    return tuple(Source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths)

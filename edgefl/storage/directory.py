"""How a directory on disk declares its files, each in one place."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, overload


@dataclass(frozen=True)
class DeclaredFile:
    """One row of a directory's table.

    Attributes:
        name: Path below the root. A folder ends with "/"; a {placeholder} stands for an id or a number.
        content: What the file holds.
        writer: The command or service that writes it.
        is_secret: Whether only its owner may read it: keys, samples, and what was trained on them.
    """

    name: str
    content: str
    writer: str
    is_secret: bool = False

    @property
    def pattern(self) -> str:
        """Return the glob pattern that matches the name."""
        return re.sub(r"\{\w+\}", "*", self.name)


class StoredFile(DeclaredFile):
    """A file or folder. Read from an instance of its directory, it is the path."""

    @overload
    def __get__(self, directory: None, owner: type) -> Self: ...
    @overload
    def __get__(self, directory: "Directory", owner: type) -> Path: ...
    def __get__(self, directory: "Directory | None", owner: type) -> Self | Path:
        """Return the path in this directory."""
        return self if directory is None else directory.root / self.name


class FileSeries(DeclaredFile):
    """Files whose names share a pattern. Read from an instance of its directory, it makes the path."""

    @overload
    def __get__(self, directory: None, owner: type) -> Self: ...
    @overload
    def __get__(self, directory: "Directory", owner: type) -> Callable[..., Path]: ...
    def __get__(self, directory: "Directory | None", owner: type) -> Self | Callable[..., Path]:
        """Return the function from the placeholders to the path in this directory."""
        if directory is None:
            return self
        root = directory.root
        return lambda **parts: root / self.name.format(**parts)


@dataclass(frozen=True)
class Directory:
    """A directory on disk; a subclass declares its files."""

    root: Path

    @classmethod
    def list_files(cls) -> tuple[DeclaredFile, ...]:
        """Return all declared files, in the order of their declaration."""
        return tuple(value for value in vars(cls).values() if isinstance(value, DeclaredFile))

"""Declares the files of a directory on disk, each in one place."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, overload

from edgefl.base.errors import StateError

STATE_FORMAT = 2
"""Format of the directories of devices, aggregators and runs. A change that breaks them gets a new number."""


def check_state_format(stored: object, path: str | Path, remedy: str) -> None:
    """Check that a directory has the format of this version of edgefl.

    Args:
        stored: the format that a file of the directory names.
        remedy: what the user can do besides using the other version.

    Raises:
        StateError: the format is another one, or is missing.
    """
    if stored != STATE_FORMAT or isinstance(stored, bool):
        stored_format = "missing" if stored is None else str(stored)[:80]
        raise StateError(
            f"{path} was written by another version of edgefl: its format is {stored_format}, expected "
            f"{STATE_FORMAT}; continue with the version that wrote it, or {remedy}"
        )


@dataclass(frozen=True)
class DeclaredFile:
    """One row of a directory's table.

    Attributes:
        name: path below the root. A folder ends with "/". A {placeholder} stands for an id or a number.
        content: what the file contains.
        writer: command or service that writes the file.
        is_secret: whether only its owner may read it, because it contains keys, samples or trained weights.
    """

    name: str
    content: str
    writer: str
    is_secret: bool = False

    @property
    def pattern(self) -> str:
        """Glob pattern that matches the name."""
        return re.sub(r"\{\w+\}", "*", self.name)


class StoredFile(DeclaredFile):
    """A file or folder.

    As an attribute of a `Directory` instance, it is the path.
    """

    @overload
    def __get__(self, directory: None, owner: type) -> Self: ...
    @overload
    def __get__(self, directory: "Directory", owner: type) -> Path: ...
    def __get__(self, directory: "Directory | None", owner: type) -> Self | Path:
        """Return the path in this directory, or the declaration itself without an instance."""
        return self if directory is None else directory.root / self.name


class FileSeries(DeclaredFile):
    """Files whose names share a pattern.

    As an attribute of a `Directory` instance, it is a function from the placeholders to the path.
    """

    @overload
    def __get__(self, directory: None, owner: type) -> Self: ...
    @overload
    def __get__(self, directory: "Directory", owner: type) -> Callable[..., Path]: ...
    def __get__(self, directory: "Directory | None", owner: type) -> Self | Callable[..., Path]:
        """Return the function that makes a path, or the declaration itself without an instance."""
        if directory is None:
            return self
        root = directory.root
        return lambda **parts: root / self.name.format(**parts)


@dataclass(frozen=True)
class Directory:
    """A directory on disk. A subclass declares its files.

    Attributes:
        root: path of the directory.
    """

    root: Path

    @classmethod
    def list_files(cls) -> tuple[DeclaredFile, ...]:
        """Return all declared files, in the order of their declaration."""
        return tuple(value for value in vars(cls).values() if isinstance(value, DeclaredFile))

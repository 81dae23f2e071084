"""Questions, each answered by an option, by a person, or by its default."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from edgefl.errors import ConfigError, EdgeflError

T = TypeVar("T")


@dataclass
class Questions:
    """Asks on stderr, `ask` False takes every default.

    An answer that will not do is told why and asked for again.

    total: how many questions are left to ask, those that an option answers not counted.
    """

    is_interactive: bool
    total: int
    num_asked: int = 0

    def answer(
        self, option_value: str | None, question: str, default: str, option: str, read: Callable[[str], T]
    ) -> T:
        """Return what `read` makes of an answer; it raises EdgeflError for one that will not do.

        ConfigError when an answer is wanted and standard input has ended.
        """
        if option_value is not None or not self.is_interactive:
            return read(default if option_value is None else option_value)
        self.num_asked += 1
        while True:
            try:
                text = click.prompt(f"{self.num_asked}/{self.total} {question}", default=default, err=True)
                return read(text.strip())
            except EdgeflError as error:
                click.echo(f"    {error}", err=True)
            except click.Abort as error:
                if error.__context__ is None or isinstance(error.__context__, KeyboardInterrupt):
                    raise
                raise ConfigError(
                    f"no answer to question {self.num_asked} of {self.total}; give {option}, or --yes for "
                    f"all "
                    "defaults"
                ) from error


def as_name(text: str) -> str:
    """Return a federation's name; ConfigError for what cannot be part of a topic."""
    from edgefl.wire.topics import check_federation

    try:
        return check_federation(text)
    except ConfigError as error:
        raise ConfigError(f"{error}; {to_federation_name(text)} would do") from error


def to_federation_name(text: str) -> str:
    """Return the nearest text that can be a federation's name."""
    return re.sub(r"[^a-z0-9_.-]+", "-", text.lower()).strip("-_.")[:64] or "federation"


def as_count(text: str) -> int:
    """Return a number of clients, 1 or more; ConfigError for anything else."""
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{text!r}, expected a whole number of 1 or more, such as 2")
    return int(text)


def choose_config_path(target: Path) -> Path:
    """Return where the file goes: target itself, or federation.toml in it.

    ConfigError when something is there already.
    """
    path = target if target.suffix == ".toml" else target / "federation.toml"
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path} is there already, and stays as it is; give another name, or remove it")
    if target.exists() and target != path and not target.is_dir():
        raise ConfigError(f"{target} is a file, expected a directory or a name that ends in .toml")
    return path

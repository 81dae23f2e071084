"""Questions that are answered by an option, by the user, or by a default."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from edgefl.base.errors import ConfigError, EdgeflError

T = TypeVar("T")


@dataclass
class Questions:
    """Asks questions on stderr. After an invalid answer it prints the reason and asks again.

    Attributes:
        is_interactive: whether to ask. False uses the default of each question.
        total: number of questions to ask, without those that an option answers.
        num_asked: number of questions so far.
    """

    is_interactive: bool
    total: int
    num_asked: int = 0

    def answer(
        self, option_value: str | None, question: str, default: str, option: str, read: Callable[[str], T]
    ) -> T:
        """Return the parsed answer to a question.

        Args:
            option_value: value of the option that answers the question. None asks the question.
            question: text of the question.
            default: default answer.
            option: name of the option, for errors.
            read: parses an answer. It raises EdgeflError for an invalid answer.

        Raises:
            ConfigError: standard input has ended before an answer.
            EdgeflError: the value of the option or the default is invalid.
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
                    "all defaults"
                ) from error


def as_name(text: str) -> str:
    """Return the text as the name of a federation.

    Raises:
        ConfigError: the text cannot be part of a topic.
    """
    from edgefl.base.names import check_federation

    try:
        return check_federation(text)
    except ConfigError as error:
        raise ConfigError(f"{error}; {to_federation_name(text)} would be valid") from error


def to_federation_name(text: str) -> str:
    """Return a valid federation name that resembles the text."""
    return re.sub(r"[^a-z0-9_.-]+", "-", text.lower()).strip("-_.")[:64] or "federation"


def as_count(text: str) -> int:
    """Return the text as a number of clients.

    Raises:
        ConfigError: the text is not a whole number of 1 or more.
    """
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{text!r}, expected a whole number of 1 or more, such as 2")
    return int(text)


def choose_config_path(target: Path) -> Path:
    """Return the path of the configuration file.

    Args:
        target: a path that ends in .toml, or the directory of a federation.toml.

    Raises:
        ConfigError: the file already exists, or the directory is a file.
    """
    path = target if target.suffix == ".toml" else target / "federation.toml"
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path} already exists; give another name, or remove it")
    if target.exists() and target != path and not target.is_dir():
        raise ConfigError(f"{target} is a file, expected a directory or a name that ends in .toml")
    return path

"""Renames the public symbols and files of generated C, so that one firmware can contain several models."""

import re
from collections.abc import Mapping

from edgefl.base.errors import ConfigError

DEFAULT_PREFIX = "model"
PREFIX_PATTERN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
MAX_PREFIX_LENGTH = 24
RESERVED_PATTERN = re.compile(
    "assert|complex|ctype|errno|fenv|float|inttypes|iso646|limits|locale|math|setjmp|signal|stdalign|stdarg|"
    "stdatomic|stdbool|stddef|stdint|stdio|stdlib|stdnoreturn|string|tgmath|threads|time|uchar|wchar|wctype|"
    "arm_acle|arm_mve|arm_neon|arduino|board|drift|ota|run|selftest"
)
"""Names of headers that a file with the prefix would hide, and prefixes of other functions of the export."""


def check_prefix(prefix: str) -> str:
    """Return a prefix if it can begin C identifiers.

    Raises:
        ConfigError: it cannot, or a file with this name would hide a header.
    """
    if RESERVED_PATTERN.fullmatch(prefix):
        raise ConfigError(
            f"the prefix {prefix!r} is taken by C or by the export, expected another name such as kws or "
            "door_sensor; pass another --prefix"
        )
    if len(prefix) > MAX_PREFIX_LENGTH or not PREFIX_PATTERN.fullmatch(prefix):
        raise ConfigError(
            f"the prefix {prefix!r} cannot begin C identifiers, expected at most {MAX_PREFIX_LENGTH} lower "
            "case letters, digits and single underscores, such as kws or door_sensor; pass another --prefix"
        )
    return prefix


def rename_symbols(files: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return generated C whose symbols, macros and files begin with another prefix than `model`.

    Args:
        files: text of model.h, model.c and model_weights.c by name.
        prefix: the prefix. Macros have it in upper case.

    Returns:
        The text of each file by its new name.
    """
    if prefix == DEFAULT_PREFIX:
        return dict(files)

    def rename(text: str) -> str:
        text = re.sub(r"\bmodel(?=_\w|\.h\")", prefix, text)
        return re.sub(r"(?<![A-Za-z0-9])MODEL(?=_\w)", prefix.upper(), text)

    return {rename_file(name, prefix): rename(text) for name, text in files.items()}


def rename_file(name: str, prefix: str) -> str:
    """Return the name of a generated file with another prefix.

    Args:
        name: name of the file, such as model.h.
    """
    return prefix + name.removeprefix(DEFAULT_PREFIX)

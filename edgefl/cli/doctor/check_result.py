"""The result of a check."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        check: name of the check.
        level: `warn` and `fail` come with a remedy.
        found: the state that the check found.
        remedy: what to do, empty for `ok`.
    """

    check: str
    level: Level
    found: str
    remedy: str = ""

"""What a check finds."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class CheckResult:
    """One check: what was found, and what to do unless the level is ok."""

    check: str
    level: Level
    found: str
    remedy: str = ""

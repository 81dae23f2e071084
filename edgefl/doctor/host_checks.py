"""Checks of this machine: no network."""

import importlib.util
import math
import os
import platform
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from edgefl import __version__
from edgefl.doctor.check_result import CheckResult
from edgefl.doctor.runtimes import check_runtimes
from edgefl.security.enrolment import Enrolment
from edgefl.system.host import ROOT, board_model, total_memory_mb

FREE_MB = 200
DAYS_LEFT = 30
RELEASED = datetime(2025, 1, 1, tzinfo=UTC).timestamp()


def check_software() -> list[CheckResult]:
    """Return versions, and whether there is a runtime that computes."""
    found = CheckResult(
        "versions", "ok", f"edgefl {__version__}, Python {platform.python_version()}, {platform.machine()}"
    )
    return [found, *check_runtimes()]


def check_board(root: Path = ROOT) -> CheckResult:
    """Return which board this is, and whether it can make its int8 model."""
    memory = total_memory_mb(root)
    bits = 64 if sys.maxsize > 2**32 else 32
    known = (
        board_model(root),
        f"{memory:,.0f} MB" if math.isfinite(memory) else "",
        f"{os.cpu_count()} cores",
        f"{bits}-bit",
    )
    told = ", ".join(filter(None, known))
    if importlib.util.find_spec("ai_edge_quantizer"):
        return CheckResult("board", "ok", told)
    remedy = (
        "it trains and personalizes; make its int8 model on a 64-bit machine: edgefl export --state DIR -o "
        "model"
    )
    return CheckResult("board", "warn", f"{told}, without ai-edge-quantizer", remedy)


def check_clock(now: float) -> CheckResult:
    """Return whether this machine's clock can be right; `now`: seconds since 1970."""
    told = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    if now < RELEASED:
        return CheckResult(
            "clock",
            "fail",
            f"{told}, before this program was written",
            "timedatectl set-ntp true: certificates look invalid until then",
        )
    return CheckResult("clock", "ok", told)


def check_disk(state: Path) -> CheckResult:
    """Return whether there is room for what a device keeps."""
    place = next(each for each in (state.resolve(), *state.resolve().parents) if each.exists())
    free = shutil.disk_usage(place).free / 1e6
    if free < FREE_MB:
        return CheckResult(
            "disk",
            "fail",
            f"{free:.0f} MB free at {place}",
            f"free some space, expected {FREE_MB} MB, or give another --state",
        )
    return CheckResult("disk", "ok", f"{free:,.0f} MB free at {place}")


def check_enrolment(enrolment: Enrolment, now: float | None = None) -> CheckResult:
    """Return how long a device's certificate still counts."""
    from edgefl.security.certificates import valid_until

    days = (valid_until(enrolment.certificate) - (time.time() if now is None else now)) / 86400
    told = f"{enrolment.client_id}, its certificate counts for {days:.0f} days"
    again = f"edgefl device revoke {enrolment.client_id}, then edgefl device enrol {enrolment.client_id}"
    if days < 0:
        return CheckResult(
            "enrolment", "fail", f"{enrolment.client_id}, its certificate expired {-days:.0f} days ago", again
        )
    if days < DAYS_LEFT:
        return CheckResult("enrolment", "warn", told, again)
    return CheckResult("enrolment", "ok", told)

"""Host checks: software, board, clock, disk and certificate of this machine, without a network."""

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
from edgefl.base.system.host import ROOT, read_board_model, read_total_memory_mb
from edgefl.cli.doctor.check_result import CheckResult
from edgefl.cli.doctor.runtimes import check_runtimes
from edgefl.protocol.security.enrolment import Enrolment

MIN_FREE_MB = 200
WARNING_DAYS_LEFT = 30
RELEASE_TIME_S = datetime(2025, 1, 1, tzinfo=UTC).timestamp()


def check_software() -> list[CheckResult]:
    """Check the installed versions and the TFLite runtimes."""
    versions = CheckResult(
        check="versions",
        level="ok",
        found=f"edgefl {__version__}, Python {platform.python_version()}, {platform.machine()}",
    )
    return [versions, *check_runtimes()]


def check_board(root: Path = ROOT) -> CheckResult:
    """Check which board this is, and whether it can make its own int8 model.

    Args:
        root: directory that contains /proc.
    """
    memory = read_total_memory_mb(root)
    bits = 64 if sys.maxsize > 2**32 else 32
    facts = (
        read_board_model(root),
        f"{memory:,.0f} MB" if math.isfinite(memory) else "",
        f"{os.cpu_count()} cores",
        f"{bits}-bit",
    )
    description = ", ".join(filter(None, facts))
    if importlib.util.find_spec("ai_edge_quantizer"):
        return CheckResult(check="board", level="ok", found=description)
    remedy = (
        "it can train and personalize; make its int8 model on a 64-bit machine: edgefl export --state DIR "
        "-o model"
    )
    return CheckResult(
        check="board", level="warn", found=f"{description}, without ai-edge-quantizer", remedy=remedy
    )


def check_clock(now: float) -> CheckResult:
    """Check that the clock of this machine is plausible.

    Args:
        now: seconds since 1970.
    """
    utc_time = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    if now < RELEASE_TIME_S:
        return CheckResult(
            check="clock",
            level="fail",
            found=f"{utc_time}, before this program was released",
            remedy="timedatectl set-ntp true: certificates look invalid until then",
        )
    return CheckResult(check="clock", level="ok", found=utc_time)


def check_disk(state: Path) -> CheckResult:
    """Check that the disk has enough free space for the state of a device.

    Args:
        state: the state directory, which need not exist.
    """
    existing = next(path for path in (state.resolve(), *state.resolve().parents) if path.exists())
    free = shutil.disk_usage(existing).free / 1e6
    if free < MIN_FREE_MB:
        return CheckResult(
            check="disk",
            level="fail",
            found=f"{free:.0f} MB free at {existing}",
            remedy=f"free some space, expected {MIN_FREE_MB} MB, or give another --state",
        )
    return CheckResult(check="disk", level="ok", found=f"{free:,.0f} MB free at {existing}")


def check_enrolment(enrolment: Enrolment, now: float | None = None) -> CheckResult:
    """Check how long the certificate of a device is still valid.

    Args:
        now: seconds since 1970. None uses the clock.
    """
    from edgefl.protocol.security.certificates import read_expiry

    days = (read_expiry(enrolment.certificate) - (time.time() if now is None else now)) / 86400
    description = f"{enrolment.client_id}, its certificate is valid for {days:.0f} days"
    remedy = f"edgefl device revoke {enrolment.client_id}, then edgefl device enrol {enrolment.client_id}"
    if days < 0:
        return CheckResult(
            check="enrolment",
            level="fail",
            found=f"{enrolment.client_id}, its certificate expired {-days:.0f} days ago",
            remedy=remedy,
        )
    if days < WARNING_DAYS_LEFT:
        return CheckResult(check="enrolment", level="warn", found=description, remedy=remedy)
    return CheckResult(check="enrolment", level="ok", found=description)

"""The same bytes everywhere: golden outputs against the C on this computer and under QEMU on each core.

One differing byte fails.
"""

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.errors import ExportError
from firmware_export.certificate.golden import GoldenVectors
from firmware_export.firmware.firmware import (
    BuiltFirmware,
    FirmwareRun,
    FirmwareTooLargeError,
    build_and_run,
    explain_not_runnable,
)
from firmware_export.firmware.targets import HOST_TARGET, TARGETS, Target
from firmware_export.firmware.toolchain import ARM_GCC, CC, QEMU, read_tool_version

EQUAL = "equal"
NOT_RUN = "not run"
MAX_SMALL_TARGET_SAMPLES = 50
"""Samples on machines that are small."""


@dataclass(frozen=True)
class ParityResult:
    """What one place gave: status equal or not run (then `reason` says why). ran, built: what was measured on
    the way.
    """

    name: str
    status: str
    samples: int
    reason: str
    tools: str
    outputs_sha256: str
    built: BuiltFirmware | None = None
    ran: FirmwareRun | None = None


def run_everywhere(
    model: Mapping[str, str], golden: GoldenVectors, targets: Sequence[Target], export_target: str
) -> tuple[ParityResult, ...]:
    """Run the C of `model` on each target and compare.

    `wanted` is the target that the export is for: there, a model too large is an error.

    Raises ExportError that names the place, the first sample and both outputs when a byte differs.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        return tuple(
            pool.map(lambda target: _run_target(model, golden, target, target.name == export_target), targets)
        )


def run_skipping(
    model: Mapping[str, str], golden: GoldenVectors, targets: Sequence[Target], export_target: str
) -> tuple[tuple[ParityResult, ...], dict[str, Any]]:
    """Run C that skips experts, which may change bytes: all places must give what this computer gives.

    Returns the places, and the accuracy, the share of samples answered as without skipping, and the outputs'
    digest.
    """
    if reason := explain_not_runnable(TARGETS[HOST_TARGET]):
        raise ExportError(f"a skip threshold needs a compiler for this computer to compare with: {reason}")
    with tempfile.TemporaryDirectory(prefix="edgefl-firmware-") as work:
        _, ran = build_and_run(model, TARGETS[HOST_TARGET], golden.inputs, Path(work))
    answers = ran.outputs.argmax(axis=1)
    exact = golden.outputs.argmax(axis=1)
    figures = {
        "accuracy_int8": float((answers == golden.y).mean()),
        "agreement": float((answers == exact).mean()),
    }
    results = run_everywhere(model, replace(golden, outputs=ran.outputs), targets, export_target)
    return results, {**figures, "outputs_sha256": hash_outputs(ran.outputs)}


def describe_tools(target: Target) -> str:
    """Return the versions of what builds and runs the target's program."""
    names = (CC,) if target.is_host else (ARM_GCC, QEMU)
    return ", ".join(f"{name} {read_tool_version(name)}" for name in names)


def hash_outputs(outputs: Any) -> str:
    """Return the digest of raw outputs, row after row."""
    return hashlib.sha256(np.ascontiguousarray(outputs).tobytes()).hexdigest()


def _run_target(
    model: Mapping[str, str], golden: GoldenVectors, target: Target, must_fit: bool
) -> ParityResult:
    if reason := explain_not_runnable(target):
        return ParityResult(target.name, NOT_RUN, 0, reason, "", "")
    count = min(len(golden.y), MAX_SMALL_TARGET_SAMPLES) if target.small else len(golden.y)
    with tempfile.TemporaryDirectory(prefix="edgefl-firmware-") as work:
        try:
            built, ran = build_and_run(model, target, golden.inputs[:count], Path(work))
        except FirmwareTooLargeError as error:
            if must_fit:
                raise
            return ParityResult(target.name, NOT_RUN, 0, str(error), describe_tools(target), "")
    check_outputs(target.name, golden.outputs[:count], ran.outputs)
    return ParityResult(
        target.name, EQUAL, count, "", describe_tools(target), hash_outputs(ran.outputs), built, ran
    )


def check_outputs(name: str, expected: Any, received: Any) -> None:
    """Raise ExportError at the first sample whose bytes differ."""
    differ = np.flatnonzero((expected != received).any(axis=1))
    if len(differ):
        first = int(differ[0])
        raise ExportError(
            f"{name} differs from what was expected in {len(differ)} of {len(expected)} samples, first in "
            f"sample {first}: expected {expected[first].tolist()}, received {received[first].tolist()}; "
            "nothing of this export may be used, please report it"
        )

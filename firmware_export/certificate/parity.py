"""Parity check: compares the golden outputs with the C on this computer and in QEMU on each core.

One differing byte fails.
"""

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from firmware_export.certificate.golden import GoldenVectors
from firmware_export.firmware.firmware import (
    BuiltFirmware,
    FirmwareRun,
    FirmwareTooLargeError,
    build_and_run,
    explain_not_runnable,
    profile_firmware,
)
from firmware_export.firmware.targets import HOST_TARGET, TARGETS, Target
from firmware_export.firmware.toolchain import read_tool_version

EQUAL = "equal"
NOT_RUN = "not run"
MAX_SMALL_TARGET_SAMPLES = 50
"""Number of samples on a small QEMU machine."""
TargetProgress = Callable[[int, int], object]
"""Receives the number of finished targets and of all targets."""


@dataclass(frozen=True)
class ParityResult:
    """The result of one target.

    Attributes:
        name: name of the target.
        status: EQUAL or NOT_RUN.
        samples: number of compared samples.
        reason: why the target was not run. Empty if it was.
        tools: versions of the tools that built and ran the program.
        outputs_sha256: digest of the outputs.
        built: the program, with its sizes.
        ran: the run, with its outputs and times.
        layer_instructions: instructions of each layer by its number. Empty unless they were counted.
    """

    name: str
    status: str
    samples: int
    reason: str
    tools: str
    outputs_sha256: str
    built: BuiltFirmware | None = None
    ran: FirmwareRun | None = None
    layer_instructions: Mapping[int, int] = field(default_factory=dict)


def run_everywhere(
    model: Mapping[str, str],
    golden: GoldenVectors,
    targets: Sequence[Target],
    export_target: str,
    *,
    profile: bool = False,
    progress: TargetProgress = lambda done, total: None,
) -> tuple[ParityResult, ...]:
    """Run the model's C on each target and compare the outputs with the golden outputs.

    As many targets run at the same time as this process may use cores.

    Args:
        model: model.h, model.c and model_weights.c, by name.
        targets: targets to run. A target without tools is reported as not run.
        export_target: name of the target that the export is for. A model that does not fit another target
            is not an error.
        profile: whether the instructions of each layer are counted on the export's target. This computer
            cannot count them.
        progress: called with the number of finished targets and of all targets.

    Raises:
        ExportError: a byte differs, a build or a run fails, or the model does not fit the export's target. An
            error about bytes names the target, the first such sample and both outputs.
    """
    finished = 0
    lock = threading.Lock()

    def run(target: Target) -> ParityResult:
        nonlocal finished
        result = _run_target(
            model,
            golden,
            target,
            must_fit=target.name == export_target,
            profile=profile and target.name == export_target and not target.is_host,
        )
        with lock:
            finished += 1
            progress(finished, len(targets))
        return result

    with ThreadPoolExecutor(max_workers=count_cores()) as pool:
        return tuple(pool.map(run, targets))


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_skipping(
    model: Mapping[str, str],
    golden: GoldenVectors,
    targets: Sequence[Target],
    export_target: str,
    progress: TargetProgress = lambda done, total: None,
) -> tuple[tuple[ParityResult, ...], dict[str, Any]]:
    """Run C that skips experts and compare all targets with this computer.

    Skipping may change output bytes, so the golden outputs are no reference here.

    Args:
        model: model.h, model.c and model_weights.c, by name.
        export_target: name of the target that the export is for.
        progress: as in `run_everywhere`.

    Returns:
        The results of the targets, with a profile, and figures by name. The figures are the accuracy, the
            share of samples with the same answer as without skipping, and the digest of the outputs.

    Raises:
        ExportError: this computer has no compiler, or as in `run_everywhere`.
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
    results = run_everywhere(
        model,
        replace(golden, outputs=ran.outputs),
        targets,
        export_target,
        profile=True,
        progress=progress,
    )
    return results, {**figures, "outputs_sha256": hash_outputs(ran.outputs)}


def describe_equal_outputs(samples: Mapping[str, int], noun: str) -> str:
    """Return a sentence with the targets whose output bytes are equal, and the number of samples of each.

    Args:
        samples: number of compared samples by target. A target with fewer has compared the first ones.
    """
    counts = sorted({*samples.values()}, reverse=True)
    groups = [", ".join(target for target in samples if samples[target] == count) for count in counts]
    first = f"{counts[0]} {noun}, every output byte the same: {groups[0]}"
    others = (
        f"the first {count} of them: {group}" for count, group in zip(counts[1:], groups[1:], strict=True)
    )
    return "; ".join((first, *others))


def describe_tools(target: Target) -> str:
    """Return the versions of the tools that build and run a target's program."""
    return ", ".join(f"{name} {read_tool_version(name)}" for name in target.tools)


def hash_outputs(outputs: Any) -> str:
    """Return the SHA-256 of raw outputs, row after row.

    Args:
        outputs: outputs, shape (n, classes), int8.
    """
    return hashlib.sha256(np.ascontiguousarray(outputs).tobytes()).hexdigest()


def _run_target(
    model: Mapping[str, str], golden: GoldenVectors, target: Target, *, must_fit: bool, profile: bool
) -> ParityResult:
    if reason := explain_not_runnable(target):
        return ParityResult(
            name=target.name, status=NOT_RUN, samples=0, reason=reason, tools="", outputs_sha256=""
        )
    count = min(len(golden.inputs), MAX_SMALL_TARGET_SAMPLES) if target.small else len(golden.inputs)
    with tempfile.TemporaryDirectory(prefix="edgefl-firmware-") as work:
        try:
            built, ran = build_and_run(model, target, golden.inputs[:count], Path(work))
            layers = profile_firmware(built, golden.inputs, Path(work)) if profile else {}
        except FirmwareTooLargeError as error:
            if must_fit:
                raise
            return ParityResult(
                name=target.name,
                status=NOT_RUN,
                samples=0,
                reason=str(error),
                tools=describe_tools(target),
                outputs_sha256="",
            )
    check_outputs(target.name, golden.outputs[:count], ran.outputs)
    if golden.scores is not None:
        check_scores(target.name, golden.scores[:count], ran.scores)
    return ParityResult(
        name=target.name,
        status=EQUAL,
        samples=count,
        reason="",
        tools=describe_tools(target),
        outputs_sha256=hash_outputs(ran.outputs),
        built=built,
        ran=ran,
        layer_instructions=layers,
    )


def check_outputs(name: str, expected: Any, received: Any) -> None:
    """Check that a target's outputs equal the expected outputs.

    Args:
        expected: outputs, shape (n, classes), int8.
        received: outputs, shape (n, classes), int8.

    Raises:
        ExportError: a byte differs. The error names the first such sample, its output and both values.
    """
    differ = np.flatnonzero((expected != received).any(axis=1))
    if len(differ):
        sample = int(differ[0])
        output = int(np.flatnonzero(expected[sample] != received[sample])[0])
        raise ExportError(
            f"{name} differs from the expected outputs in {len(differ)} of {len(expected)} samples, first in "
            f"sample {sample}, output {output}: expected {expected[sample, output]}, received "
            f"{received[sample, output]}; do not use any file of this export, and please report the error"
        )


def check_scores(name: str, expected: Any, received: Any) -> None:
    """Check that a target's anomaly scores equal the expected scores.

    Args:
        expected: scores, shape (n,), int64.
        received: scores, shape (n,), int64. None if the target printed none.

    Raises:
        ExportError: a score differs. The error names the first such sample and both scores.
    """
    scores = np.full(len(expected), -1) if received is None else received
    differ = np.flatnonzero(expected != scores)
    if len(differ):
        sample = int(differ[0])
        raise ExportError(
            f"{name} differs from the expected anomaly scores in {len(differ)} of {len(expected)} samples, "
            f"first in sample {sample}: expected {expected[sample]}, received {scores[sample]}; do not use "
            "any file of this export, and please report the error"
        )

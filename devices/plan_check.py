"""Checks a plan before a device runs it: first its names, then one run of its program in a child process.

A plan comes from the network. It may name any Python module. Its program may crash the TFLite runtime, whose
parser does not expect hostile bytes. A refused plan pauses the device but does not end it.
"""

import faulthandler
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from devices.boards import PROCESS_SHARE, detect_machine
from edgefl.base.errors import PlanError, StateError
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.system.files import open_no_link, write_state
from edgefl.base.system.host import read_memory_limit_mb
from edgefl.learning.algorithms import REGISTRY
from edgefl.learning.algorithms.registry import EARLY_ALGORITHMS
from edgefl.program.plan.memory import PROCESS_MB
from edgefl.program.plan.normalization import check_normalization
from edgefl.program.plan.runtime import RUNTIME_VERSION
from edgefl.program.plan.spec import PREDICT_MIXTURE, PREDICT_SINGLE, PlanSpec

MAX_VERDICTS = 32
TRIAL_TIMEOUT_S = 300.0
MIN_TRIAL_MB = 256


@dataclass(frozen=True)
class AllowedCode:
    """Names that a plan may use in addition to the registered ones.

    Attributes:
        algorithms: algorithms as `module:name`.
        models: models as `module:function` or a `.keras` file.
    """

    algorithms: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


def check_names(spec: PlanSpec, learner: str, allowed: AllowedCode) -> None:
    """Check that a plan names only registered or allowed code. This function imports no such code.

    Args:
        learner: a name of `LEARNERS`. Only `keras` loads models by name.
        allowed: the names that the owner allows.

    Raises:
        PlanError: the plan names other code, its mean and std are not measured yet, or its sizes are not
            positive or contradict each other.
    """
    sizes = (spec.num_classes, *spec.input_shape)
    if not spec.input_shape or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise PlanError(
            f"the plan has num_classes and input_shape {sizes}, expected integers above 0; build the plan "
            "again"
        )
    _check_sizes(spec)
    _check_parts(spec)
    check_normalization(spec)
    if spec.algorithm not in (*REGISTRY, *EARLY_ALGORITHMS, *allowed.algorithms):
        raise PlanError(
            f"the plan names the algorithm {str(spec.algorithm)[:100]!r}, expected a name of `edgefl "
            "algorithms`; if the algorithm is your own code on this device, start the device with "
            "--algorithm and this name"
        )
    if learner != "keras":
        return  # Other learners run the compiled program and load no model by name
    from edgefl.program.models.zoo.catalog import list_models

    # An option may also name a model, such as the model of a gate
    options = [
        value
        for value in spec.options.values()
        if isinstance(value, str) and (":" in value or value.endswith(".keras"))
    ]
    for name in [spec.model, *options]:
        if name not in (*list_models(), *allowed.models):
            raise PlanError(
                f"the plan names the model {str(name)[:100]!r}, expected a name of `edgefl models`; "
                "if the model is your own code on this device, start the device with --model and this name"
            )


def _check_sizes(spec: PlanSpec) -> None:
    """Check that the sizes of a plan are the sizes of its predictions.

    Otherwise a damaged plan would look like samples of this device that do not fit.
    """
    for signature in spec.signatures:
        if signature.name not in (PREDICT_SINGLE, PREDICT_MIXTURE):
            continue
        shapes = [tensor.shape[1:] for tensor in signature.data if tensor.name == "x"]
        outputs = (
            signature.out.shape[-1:] if signature.out and spec.is_classification else (spec.num_classes,)
        )
        if shapes != [tuple(spec.input_shape)] or outputs != (spec.num_classes,):
            raise PlanError(
                f"the plan has input_shape {spec.input_shape} and num_classes {spec.num_classes}, but its "
                f"signature {signature.name} has the inputs {shapes} and outputs {outputs}; build the plan "
                "again"
            )


def _check_parts(spec: PlanSpec) -> None:
    """Check that the parts of a batch have the same size in all data and noise of a signature."""
    for signature in spec.signatures:
        if not signature.gradients:
            continue
        tensors = (*signature.data, *signature.noise)
        sizes = [tensor.shape[0] if tensor.shape else 0 for tensor in tensors]
        most = signature.batch_size
        are_counts = all(type(size) is int for size in (*sizes, most))
        if not (are_counts and len(set(sizes)) == 1 and 0 < sizes[0] <= most):
            raise PlanError(
                f"the plan's signature {signature.name} takes parts of {sizes} samples, expected one number "
                f"from 1 to {most}; build the plan again"
            )


class PlanTrials:
    """Runs each new plan once in a child process, and stores the outcome by the plan's sha256.

    It also records which plan this process runs, and catches fatal signals. A plan that passes its trial but
    crashes this process is refused after the next start. Otherwise a service manager would restart the crash
    forever.

    Args:
        directory: the state directory of the device.
    """

    def __init__(self, directory: Path) -> None:
        files = DeviceFiles(directory)
        self._path = files.plan_trials
        self._crash_log = files.crash_log
        self._crash: IO[str] | None = None

    def start(self) -> str:
        """Catch fatal signals, and return the sha256 of the plan that crashed the previous process.

        Returns:
            The sha256 in hex, empty if no plan crashed it.

        Raises:
            StateError: a file cannot be read or written.
        """
        open_plan = str(self._read().get("open", ""))
        try:
            descriptor = open_no_link(self._crash_log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._crash = os.fdopen(descriptor, "a+", errors="replace")
            self._crash.seek(0)
            report = self._crash.read()
            self._crash.truncate(0)
        except OSError as error:
            raise StateError(
                f"cannot use {self._crash_log}: {error.strerror}; let this account read and write it"
            ) from error
        if not faulthandler.is_enabled():
            faulthandler.enable(self._crash, all_threads=False)
        if open_plan:  # No plan causes a crash before this process opens a plan
            self.record_open_plan("")
        if not report or not open_plan:
            return ""
        self._store_verdict(open_plan, f"it crashed this device's process ({report.splitlines()[0][:200]})")
        return open_plan

    def close(self) -> None:
        """Stop catching fatal signals."""
        if self._crash is not None:
            faulthandler.disable()
            self._crash.close()
            self._crash = None

    def record_open_plan(self, sha256: str) -> None:
        """Record which plan this process runs from now on.

        Args:
            sha256: digest of the plan in hex, empty for no plan.

        Raises:
            StateError: the file cannot be written.
        """
        content = self._read()
        if content.get("open") != sha256:
            self._write({**content, "open": sha256})

    def check(self, sha256: str, blob: Path) -> None:
        """Check that a plan runs. A plan that this version of the runtime has not tried before gets a trial.

        Args:
            sha256: digest of the plan in hex.
            blob: the file that contains the plan.

        Raises:
            PlanError: the plan is refused.
            StateError: the outcome cannot be stored.
        """
        verdict = self._read_verdicts().get(sha256)
        if verdict is None or verdict.get("runtime") != RUNTIME_VERSION:
            reason, is_final = try_in_child(blob)
            if is_final:
                self._store_verdict(sha256, reason)
        else:
            reason = str(verdict.get("reason", ""))
        if reason:
            raise PlanError(
                f"the plan {sha256[:8]} is refused: {reason}; build the plan again, or update the TFLite "
                f"runtime ({RUNTIME_VERSION})"
            )

    def _read_verdicts(self) -> dict[str, Any]:
        verdicts = self._read().get("verdicts")
        return verdicts if isinstance(verdicts, dict) else {}

    def _store_verdict(self, sha256: str, reason: str) -> None:
        others = {key: value for key, value in self._read_verdicts().items() if key != sha256}
        newest = dict(
            [*others.items(), (sha256, {"runtime": RUNTIME_VERSION, "reason": reason})][-MAX_VERDICTS:]
        )
        self._write({**self._read(), "verdicts": newest})

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}  # Missing, or truncated by a power cut. Plans are then tried again
        return content if isinstance(content, dict) else {}

    def _write(self, content: Mapping[str, Any]) -> None:
        write_state(self._path, (json.dumps(content, indent=1) + "\n").encode())


def find_usable_mb() -> float:
    """Return the memory that this process may use, in MB of 10^6 bytes. NaN if it is unknown.

    It is three quarters of the machine's memory, because the system needs a quarter, or less if a service
    manager or a container limits this process.
    """
    limits = (PROCESS_SHARE * detect_machine().memory_mb, read_memory_limit_mb())
    return min((limit for limit in limits if math.isfinite(limit)), default=math.nan)


def check_memory(spec: PlanSpec, usable_mb: float) -> None:
    """Check that a device has enough memory to try and to train a plan.

    The trial runs in a process beside this one, so it needs more than the training.

    Args:
        spec: the spec of the plan. One of an older edgefl does not say what it needs.
        usable_mb: see `find_usable_mb`.

    Raises:
        PlanError: the device has too little memory.
    """
    needed_mb = spec.process_mb + PROCESS_MB
    if spec.process_mb and needed_mb > usable_mb:
        raise PlanError(
            f"the plan needs about {needed_mb:.0f} MB of memory, and this device may use {usable_mb:.0f} MB; "
            "set micro_batch of [training] in federation.toml, lower it or batch_size, or leave this device "
            "out"
        )


def choose_trial_limit_mb() -> int:
    """Return how much memory a trial may allocate, in MB of 2^20 bytes, at least `MIN_TRIAL_MB`.

    It is what this process may use, without what this process and an idle trial take.
    """
    left_mb = find_usable_mb() - 2 * PROCESS_MB
    return max(MIN_TRIAL_MB, int(left_mb / 1.048576)) if math.isfinite(left_mb) else MIN_TRIAL_MB


def try_in_child(
    blob: Path, command: Sequence[str] = (sys.executable, "-m", "devices.plan_trial")
) -> tuple[str, bool]:
    """Run every signature of a plan once in a child process with limits.

    Args:
        blob: the file that contains the plan.
        command: the command of the child process. The path and the memory limit in MB are appended.

    Returns:
        The reason why the plan is refused, empty if it runs, and whether the outcome is final. A trial that
            ran out of time may succeed later.
    """
    try:
        done = subprocess.run(
            [*command, str(blob), str(choose_trial_limit_mb())],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRIAL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"one run of its program did not end within {TRIAL_TIMEOUT_S:g} s", False
    except OSError as error:
        return f"its trial cannot be started ({error})", False
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        if name == "SIGXCPU":
            return "one run of its program did not end within the processor time of a trial", False
        # The system or a service manager may have ended it for a reason other than the plan
        if name in ("SIGKILL", "SIGTERM", "SIGINT"):
            return f"its trial was ended by {name}, as by a system that has no memory left", False
        return f"its program crashed the TFLite runtime ({name})", True
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return (
        (lines[-1][:500] if lines else f"its trial ended with exit code {done.returncode}", True)
        if done.returncode
        else ("", True)
    )

"""Whether this device runs a plan: the names in it first, then one run of its program in a child process.

A plan comes from the network. It may name any Python module, and its program may crash the TFLite runtime,
whose parser is not made for hostile bytes. A refused plan pauses the device, and never ends it.
"""

import faulthandler
import json
import math
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from devices.boards import detect_machine
from edgefl.algorithms import REGISTRY
from edgefl.errors import PlanError, StateError
from edgefl.plan.runtime import RUNTIME_VERSION
from edgefl.plan.spec import PlanSpec
from edgefl.storage.device_directory import DeviceFiles
from edgefl.system.files import write_state

MAX_VERDICTS = 32
TRIAL_TIMEOUT_S = 300.0
MIN_TRIAL_MB = 256


@dataclass(frozen=True)
class AllowedCode:
    """Names that a plan may use in addition to the registered ones: `module:name`, or a `.keras` file."""

    algorithms: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


def check_names(spec: PlanSpec, learner: str, allowed: AllowedCode) -> None:
    """Raise PlanError for a plan that names code which edgefl does not have and this device was not started
    with. Imports nothing.
    """
    sizes = (spec.num_classes, *spec.input_shape)
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise PlanError(
            f"the plan has num_classes and input_shape {sizes}, expected integers above 0; build the plan "
            "again"
        )
    if spec.algorithm not in (*REGISTRY, *allowed.algorithms):
        raise PlanError(
            f"the plan names the algorithm {str(spec.algorithm)[:100]!r}, expected a name of `edgefl "
            "algorithms`; if that code is yours and on this device, start the device with --algorithm and "
            "this name"
        )
    if learner != "keras":
        return  # the others read the compiled program, and no model by its name
    from edgefl.models import list_models

    # an option may name a model too, such as the gate's
    options = [
        value
        for value in spec.options.values()
        if isinstance(value, str) and (":" in value or value.endswith(".keras"))
    ]
    for name in [spec.model, *options]:
        if name not in (*list_models(), *allowed.models):
            raise PlanError(
                f"the plan names the model {str(name)[:100]!r}, expected a name of `edgefl models`; "
                "if that code is yours and on this device, start the device with --model and this name"
            )


class PlanTrials:
    """Runs each new plan once in a child process and keeps the verdict in the state directory, by the plan's
    sha256.

    It also notes which plan this process runs, and catches a fatal signal: a plan that crashes this process
    in spite of its trial is refused from the next start on, so that a service manager cannot start it over
    and over.
    """

    def __init__(self, directory: Path) -> None:
        files = DeviceFiles(directory)
        self._path = files.plan_trials
        self._crash_log = files.crash_log
        self._crash: IO[str] | None = None

    def start(self) -> str:
        """Read what ended the process before this one.

        Return the sha256 of the plan that crashed it, empty for none.
        """
        open_plan = str(self._read().get("open", ""))
        try:
            self._crash = self._crash_log.open("a+", errors="replace")
            self._crash.seek(0)
            report = self._crash.read()
            self._crash.truncate(0)
        except OSError as error:
            raise StateError(
                f"cannot use {self._crash_log}: {error.strerror}; let this account read and write it"
            ) from error
        if not faulthandler.is_enabled():
            faulthandler.enable(self._crash, all_threads=False)
        if open_plan:  # a crash of this process before it opens a plan is no plan's doing
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
        """Note which plan this process runs from now on."""
        content = self._read()
        if content.get("open") != sha256:
            self._write({**content, "open": sha256})

    def check(self, sha256: str, blob: Path) -> None:
        """Try a plan that was not tried before with this runtime.

        `blob`: the file that holds it. PlanError when it is refused.
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
            return {}  # not there, or cut short by a power cut: a plan is tried again
        return content if isinstance(content, dict) else {}

    def _write(self, content: Mapping[str, Any]) -> None:
        write_state(self._path, (json.dumps(content, indent=1) + "\n").encode())


def choose_trial_limit_mb() -> int:
    """Return how much memory a trial may allocate, in MB of 2^20 bytes: half of the machine's."""
    memory = detect_machine().memory_mb
    return max(MIN_TRIAL_MB, int(memory / 2 / 1.048576)) if math.isfinite(memory) else MIN_TRIAL_MB


def try_in_child(
    blob: Path, command: Sequence[str] = (sys.executable, "-m", "devices.plan_trial")
) -> tuple[str, bool]:
    """Run every signature of a plan once in a child process with limits.

    Returns why the plan is refused, empty when it runs, and whether that is final: a trial without an end may
    do better another time.
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
        # The system or a service manager ended it, perhaps for another reason than the plan
        if name in ("SIGKILL", "SIGTERM", "SIGINT"):
            return f"its trial was ended by {name}, as by a system that has no memory left", False
        return f"its program crashed the TFLite runtime ({name})", True
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return (
        (lines[-1][:500] if lines else f"its trial ended with exit code {done.returncode}", True)
        if done.returncode
        else ("", True)
    )

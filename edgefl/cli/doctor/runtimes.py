"""Checks that the installed TFLite runtimes work.

Each runtime doubles a number in its own process, because a broken runtime may end the process.
"""

import signal
import subprocess
import sys
from base64 import b64decode

from edgefl.cli.doctor.check_result import CheckResult
from edgefl.program.plan.runtime import describe_runtime, list_runtimes

# y = x + x for one float32: a single ADD of version 1, in 288 bytes
TINY_MODEL_BASE64 = "GAAAAFRGTDMAAA4AGAAUABAADAAIAAQADgAAABQAAAAcAAAAIAAAAOgAAAADAAAAAQAAAAQAAAAg////AAAAAAAAAAABAAAAEAAAAAwAFAAQAAwACAAEAAwAAAAQAAAAUAAAAFQAAABYAAAAAQAAABQAAAAAAA4AFAAAABAADAALAAQADgAAABAAAAAAAAALDAAAABAAAACA////AQAAAAEAAAACAAAAAAAAAAAAAAABAAAAAQAAAAEAAAAAAAAAAgAAADAAAAAEAAAA5P///wgAAAAMAAAAAQAAAHkAAAABAAAAAQAAAAwADAAIAAAAAAAEAAwAAAAIAAAADAAAAAEAAAB4AAAAAQAAAAEAAAABAAAACAAAAAQABAAEAAAA"  # noqa: E501
RUNTIME_TIMEOUT_S = 120.0
CHILD_PROGRAM = """
import sys
import numpy as np
from edgefl.cli.doctor.runtimes import decode_tiny_model
from edgefl.program.plan.runtime import load_interpreter
interpreter = load_interpreter(decode_tiny_model(), runtime=sys.argv[1])
interpreter.allocate_tensors()
interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.array([21], np.float32))
interpreter.invoke()
assert interpreter.get_tensor(interpreter.get_output_details()[0]["index"]) == [42]
"""
REINSTALL_COMMAND = "pip install --force-reinstall"


def decode_tiny_model() -> bytes:
    """Return a .tflite model that doubles a float32 number."""
    return b64decode(TINY_MODEL_BASE64)


def check_runtimes() -> list[CheckResult]:
    """Check each installed runtime.

    Devices train with the first runtime. It therefore fails where another runtime only warns.
    """
    runtimes = list_runtimes()
    if not runtimes:
        remedy = (
            "install edgefl-tinyml again with pip; on a 32-bit board use Python 3.11 and linux32 pip install"
        )
        return [
            CheckResult(
                check="runtime",
                level="fail",
                found="neither ai-edge-litert nor tflite-runtime",
                remedy=remedy,
            )
        ]
    return [_check_runtime(name, is_used=name == runtimes[0]) for name in runtimes]


def _check_runtime(name: str, *, is_used: bool) -> CheckResult:
    description = describe_runtime(name)
    try:
        process = subprocess.run(
            [sys.executable, "-c", CHILD_PROGRAM, name],
            capture_output=True,
            text=True,
            timeout=RUNTIME_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        problem = f"did not compute a sum within {RUNTIME_TIMEOUT_S:g} s"
    else:
        if process.returncode == 0:
            return CheckResult(check="runtime", level="ok", found=description)
        last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1][:200]
        problem = (
            f"was killed by {signal.Signals(-process.returncode).name}"
            if process.returncode < 0
            else f"does not work: {last}"
        )
    package = description.partition(" ")[0]
    remedy = (
        f"{REINSTALL_COMMAND} {package}; a package that dies of SIGILL was built for a newer processor, "
        f"install an older version"
    )
    return CheckResult(
        check="runtime", level="fail" if is_used else "warn", found=f"{description} {problem}", remedy=remedy
    )

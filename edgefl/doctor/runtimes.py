"""Whether the TFLite runtime works and not only lies there: it doubles a number, in a process of its own,
which a broken one may end.
"""

import signal
import subprocess
import sys
from base64 import b64decode

from edgefl.doctor.check_result import CheckResult
from edgefl.plan.runtime import describe, installed

# y = x + x, float32[1]: one ADD of version 1, in 288 bytes
MODEL = "GAAAAFRGTDMAAA4AGAAUABAADAAIAAQADgAAABQAAAAcAAAAIAAAAOgAAAADAAAAAQAAAAQAAAAg////AAAAAAAAAAABAAAAEAAAAAwAFAAQAAwACAAEAAwAAAAQAAAAUAAAAFQAAABYAAAAAQAAABQAAAAAAA4AFAAAABAADAALAAQADgAAABAAAAAAAAALDAAAABAAAACA////AQAAAAEAAAACAAAAAAAAAAAAAAABAAAAAQAAAAEAAAAAAAAAAgAAADAAAAAEAAAA5P///wgAAAAMAAAAAQAAAHkAAAABAAAAAQAAAAwADAAIAAAAAAAEAAwAAAAIAAAADAAAAAEAAAB4AAAAAQAAAAEAAAABAAAACAAAAAQABAAEAAAA"  # noqa: E501
TIMEOUT_S = 120.0
CHILD = """
import sys
import numpy as np
from edgefl.doctor.runtimes import tiny_model
from edgefl.plan.runtime import load_interpreter
interpreter = load_interpreter(tiny_model(), runtime=sys.argv[1])
interpreter.allocate_tensors()
interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.array([21], np.float32))
interpreter.invoke()
assert interpreter.get_tensor(interpreter.get_output_details()[0]["index"]) == [42]
"""
AGAIN = "pip install --force-reinstall"


def tiny_model() -> bytes:
    """Return a .tflite that doubles a number."""
    return b64decode(MODEL)


def check_runtimes() -> list[CheckResult]:
    """Return whether each runtime that is installed computes.

    The first is the one that a device trains with.
    """
    have = installed()
    if not have:
        remedy = "pip install edgefl-tinyml again; on a 32-bit board in Python 3.11, say linux32 pip install"
        return [CheckResult("runtime", "fail", "neither ai-edge-litert nor tflite-runtime", remedy)]
    return [_check(name, is_used=name == have[0]) for name in have]


def _check(name: str, *, is_used: bool) -> CheckResult:
    told = describe(name)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", CHILD, name],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        problem = f"has not computed a sum in {TIMEOUT_S:g} s"
    else:
        if ran.returncode == 0:
            return CheckResult("runtime", "ok", told)
        last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1][:200]
        problem = (
            f"was ended by {signal.Signals(-ran.returncode).name}"
            if ran.returncode < 0
            else f"does not work: {last}"
        )
    package = told.partition(" ")[0]
    remedy = (
        f"{AGAIN} {package}; one that ends by SIGILL was built for a newer processor, install an older one"
    )
    return CheckResult("runtime", "fail" if is_used else "warn", f"{told} {problem}", remedy)

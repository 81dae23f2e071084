"""How a simulation grows: client steps a second from one process to two, peak memory from ten clients to a
thousand.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from edgefl.errors import EdgeflError
from tests.benchmarks.process import children
from tests.benchmarks.simulate.steps import ENV

SPEED = {"clients": 20, "cohort": 10, "samples": 600, "rounds": 3}
"""Rounds as those of PFL-MoE: ten clients, 600 samples each, five epochs; the first is not timed."""
MEMORY = {"cohort": 10, "samples": 50, "rounds": 3, "processes": 2}
FEW = 10
MANY = 1000
INTERVAL_S = 0.05
"""Between two looks at the memory of the processes."""

Say = Callable[[str], None]


def measure_scaling(directory: Path, repeats: int, say: Say) -> dict[str, Any]:
    """Return client steps a second with one process and with two (medians), and the median of the pairs'
    ratios.
    """
    pairs = []
    for repeat in range(repeats):
        pair = {}
        for processes in (1, 2) if repeat % 2 == 0 else (2, 1):
            with _simulation(directory, **SPEED, processes=processes) as running:
                pair[processes] = float(_result(running)["steps_per_second"])
        say(f"{repeat + 1}/{repeats} simulation: {pair[1]:.0f} steps/s in one process, {pair[2]:.0f} in two")
        pairs.append(pair)
    ratios = [pair[2] / pair[1] for pair in pairs]
    speeds = {f"steps_per_second_{n}": median(pair[n] for pair in pairs) for n in (1, 2)}
    return {**SPEED, **speeds, "ratio": median(ratios), "ratio_range": [min(ratios), max(ratios)]}


def measure_memory(directory: Path, say: Say) -> dict[str, Any]:
    """Return the peak memory in MB of a simulation with few clients and with many, summed over its processes,
    and their ratio.
    """
    peaks = {}
    for clients in (FEW, MANY):
        with _simulation(directory, clients=clients, **MEMORY) as running:
            peaks[clients] = _peak_mb(running)
            _result(running)
        say(f"simulation of {clients} clients: {peaks[clients]:.0f} MB")
    return {
        **MEMORY,
        "few": FEW,
        "many": MANY,
        "few_mb": peaks[FEW],
        "many_mb": peaks[MANY],
        "ratio": peaks[MANY] / peaks[FEW],
    }


def _simulation(
    directory: Path, *, clients: int, cohort: int, samples: int, rounds: int, processes: int
) -> subprocess.Popen[str]:
    """Start a simulation in a process of its own."""
    files = [str(directory / name) for name in ("plan", "samples.npz")]
    numbers = [str(each) for each in (clients, cohort, samples, rounds, processes)]
    command = [sys.executable, "-m", "tests.benchmarks.simulate.run", *files, *numbers]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)


def _result(running: subprocess.Popen[str]) -> Any:
    """Return what a simulation printed at its end; EdgeflError when it failed."""
    out, error = running.communicate()
    if running.returncode:
        raise EdgeflError(
            f"the simulation ended with {running.returncode}: {' '.join(error.strip().splitlines()[-1:])}"
        )
    return json.loads(out.splitlines()[-1])


def _peak_mb(running: subprocess.Popen[str]) -> float:
    """Return the peak memory of a simulation and its children; not while speed is measured, since looking
    takes a tenth of a core.
    """
    peak = 0.0
    while running.poll() is None:
        peak = max(peak, tree_mb(running.pid))
        time.sleep(INTERVAL_S)
    return peak


def tree_mb(pid: int) -> float:
    """Return the memory of a process and its descendants in MB of 10^6 bytes; a page that several share
    counts once (PSS).
    """
    total = 0.0
    pending = [pid]
    while pending:
        each = pending.pop()
        pending += children(each)
        with contextlib.suppress(OSError, StopIteration):  # it has ended
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Pss:"))
    return total

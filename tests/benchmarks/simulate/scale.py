"""Scaling of a simulation: client steps a second with one and two processes, and peak memory with ten and a
thousand clients.
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

from edgefl.base.errors import EdgeflError
from tests.benchmarks.process import list_children
from tests.benchmarks.simulate.steps import ENV

SPEED = {"clients": 20, "cohort": 10, "samples": 600, "rounds": 3}
"""Rounds as in PFL-MoE: ten clients with 600 samples each and five epochs. The first round is not timed."""
MEMORY = {"cohort": 10, "samples": 50, "rounds": 3, "processes": 2}
FEW = 10
MANY = 1000
INTERVAL_S = 0.05
"""Seconds between two measurements of the processes' memory."""

Progress = Callable[[str], None]


def measure_scaling(directory: Path, repeats: int, progress: Progress) -> dict[str, Any]:
    """Return median client steps a second with one and two processes, and the median of the pairs' ratios."""
    pairs = []
    for repeat in range(repeats):
        pair = {}
        for processes in (1, 2) if repeat % 2 == 0 else (2, 1):
            with _start_simulation(directory, **SPEED, processes=processes) as simulation:
                pair[processes] = float(_read_result(simulation)["steps_per_second"])
        progress(
            f"{repeat + 1}/{repeats} simulation: {pair[1]:.0f} steps/s in one process, {pair[2]:.0f} in two"
        )
        pairs.append(pair)
    ratios = [pair[2] / pair[1] for pair in pairs]
    speeds = {f"steps_per_second_{n}": median(pair[n] for pair in pairs) for n in (1, 2)}
    return {**SPEED, **speeds, "ratio": median(ratios), "ratio_range": [min(ratios), max(ratios)]}


def measure_memory(directory: Path, progress: Progress) -> dict[str, Any]:
    """Return the peak memory of a simulation with few and with many clients, and their ratio.

    The memory is in MB, summed over the processes.
    """
    peaks = {}
    for clients in (FEW, MANY):
        with _start_simulation(directory, clients=clients, **MEMORY) as simulation:
            peaks[clients] = _measure_peak_mb(simulation)
            _read_result(simulation)
        progress(f"simulation of {clients} clients: {peaks[clients]:.0f} MB")
    return {
        **MEMORY,
        "few": FEW,
        "many": MANY,
        "few_mb": peaks[FEW],
        "many_mb": peaks[MANY],
        "ratio": peaks[MANY] / peaks[FEW],
    }


def _start_simulation(
    directory: Path, *, clients: int, cohort: int, samples: int, rounds: int, processes: int
) -> subprocess.Popen[str]:
    """Start a simulation in a separate process."""
    files = [str(directory / name) for name in ("plan", "samples.npz")]
    numbers = [str(number) for number in (clients, cohort, samples, rounds, processes)]
    command = [sys.executable, "-m", "tests.benchmarks.simulate.run", *files, *numbers]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)


def _read_result(simulation: subprocess.Popen[str]) -> Any:
    """Return the result that a simulation printed.

    Raises:
        EdgeflError: the simulation failed.
    """
    out, error = simulation.communicate()
    if simulation.returncode:
        raise EdgeflError(
            f"the simulation ended with {simulation.returncode}: {' '.join(error.strip().splitlines()[-1:])}"
        )
    return json.loads(out.splitlines()[-1])


def _measure_peak_mb(simulation: subprocess.Popen[str]) -> float:
    """Return the peak memory of a simulation and its children.

    The measurement takes a tenth of a core, so it is not used while speed is measured.
    """
    peak = 0.0
    while simulation.poll() is None:
        peak = max(peak, measure_tree_mb(simulation.pid))
        time.sleep(INTERVAL_S)
    return peak


def measure_tree_mb(pid: int) -> float:
    """Return the memory of a process and its descendants in MB (10^6 bytes). Shared pages count once."""
    total = 0.0
    pending = [pid]
    while pending:
        pid = pending.pop()
        pending += list_children(pid)
        with contextlib.suppress(OSError, StopIteration):  # the process has ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Pss:"))
    return total

"""`python -m tests.benchmarks steps`: instructions of a training step on a 64-bit ARM processor.

QEMU emulates a Cortex-A72, and a plugin counts. Instructions are no time, but they are the same on every
machine, and they show what a change costs a board. The packages for ARM lie in a directory with Debian for
arm64, see docs/contributing/emulate-an-arm-board.md.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgefl.base.errors import ConfigError, EdgeflError
from edgefl.base.system.host import describe_machine
from edgefl.cli.bench.device import BENCH_MODELS, compile_bench_plan, run_bench_step
from tests.benchmarks.steps.guest import EPOCHS

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
PROCESSOR = "cortex-a72"
STEPS = 2
PAGE = "docs/contributing/emulate-an-arm-board.md"


def run_steps_bench(
    root: Path, models: Sequence[str], command: str, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Count the instructions of a training step of each model.

    Args:
        root: directory with Debian for arm64, with edgefl's packages in `opt/venv`.
        models: keys of `BENCH_MODELS`.
        command: the command line, for the result.
        progress: receives a line per model.

    Returns:
        The result as a JSON tree. A row has the millions of instructions of a step, and the peak memory in MB
        of a process that trains the same plan on this machine.

    Raises:
        ConfigError: QEMU, a C compiler or the directory is missing.
        EdgeflError: the emulated process failed.
    """
    site, python = _find_python(root)
    emulator = _find_program("qemu-aarch64", "qemu-user")
    rows = []
    runtime = ""
    with tempfile.TemporaryDirectory() as directory:
        plugin = Path(directory) / "count_instructions.so"
        compiler = _find_program("gcc", "gcc")
        source = HERE / "count_instructions.c"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", plugin, source], check=True)
        emulate = [emulator, "-cpu", PROCESSOR, "-L", str(root), "-plugin", str(plugin), "-d", "plugin"]
        for name in models:
            progress(f"{name}: compiling the plan")
            plan = compile_bench_plan(BENCH_MODELS[name], Path(directory) / name)
            progress(f"{name}: training under QEMU")
            done = subprocess.run(
                [*emulate, str(python), "-S", str(HERE / "guest.py"), str(plan), str(STEPS)],
                capture_output=True,
                text=True,
                check=False,
                env={
                    "PYTHONHOME": str(root / "usr"),
                    "PYTHONPATH": f"{REPOSITORY}:{site}",
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "OMP_NUM_THREADS": "1",
                },
            )
            instructions = parse_marks(done.stderr, done.returncode) / STEPS
            runtime = done.stdout.strip()
            rows.append(
                {
                    "model": name,
                    "batch_size": BENCH_MODELS[name].batch_size,
                    "million_instructions": instructions / 1e6,
                    "peak_mb": run_bench_step(["litert", str(plan), str(STEPS)])["mb"],
                }
            )
    return {
        "machine": f"{PROCESSOR} under QEMU on {describe_machine()}",
        "runtime": runtime,
        "command": command,
        "rows": rows,
    }


def parse_marks(text: str, status: int) -> int:
    """Return the instructions of the last epoch, between the last two marks that the plugin printed.

    Args:
        text: what the emulated process printed to stderr.
        status: its exit status.

    Raises:
        EdgeflError: the process failed, or it printed another number of marks.
    """
    counts = [int(line.split()[2]) for line in text.splitlines() if line.startswith("MARK ")]
    if status or len(counts) != 2 * EPOCHS:
        last = (text.strip().splitlines() or ["no output"])[-1]
        raise EdgeflError(
            f"the emulated process ended with status {status} and {len(counts)} marks, expected 0 and "
            f"{2 * EPOCHS}: {last}; make the board as {PAGE} says"
        )
    return counts[-1] - counts[-2]


def render(result: dict[str, Any]) -> str:
    """Return the result of `run_steps_bench` as text for a terminal."""
    rows = [
        f"{row['model']:16} {row['batch_size']:5d} {row['million_instructions']:14.1f} {row['peak_mb']:8.0f}"
        for row in result["rows"]
    ]
    header = f"{'model':16} {'batch':>5} {'M instructions':>14} {'peak MB':>8}"
    return "\n".join((f"{result['machine']}; {result['runtime']}", header, *rows))


def _find_program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ConfigError(f"the program {name} is not installed; run `apt-get install {package}`")
    return path


def _find_python(root: Path) -> tuple[Path, Path]:
    """Return the directory of the packages and the interpreter of the board."""
    python = root / "usr/bin/python3.11"
    site = root / "opt/venv/lib/python3.11/site-packages"
    cpuinfo = root / "proc/cpuinfo"
    for path in (python, site, cpuinfo):
        if not path.exists():
            raise ConfigError(f"the board in {root} has no {path.relative_to(root)}; make it as {PAGE} says")
    if "CPU part" not in cpuinfo.read_text():  # The runtime crashes with the flags of an x86 processor
        raise ConfigError(
            f"{cpuinfo} describes another processor, expected an ARM processor; copy the cpuinfo of {PAGE}"
        )
    return site, python

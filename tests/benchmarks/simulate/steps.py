"""Client steps a second on one core beside the named peers, each in its own process, one thread."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from edgefl.errors import PlanError

CONFIG = """
[model]
name = "lenet5"
input_shape = [28, 28, 1]
num_classes = 10
[algorithm]
name = "fedavg"
batch_size = 10
learning_rate = 0.01
momentum = 0.5
"""
STEPS = 100
EPOCHS = 5
"""Steps an epoch; epochs timed in one process, after one that warms up."""

PEERS = ("edgefl", "torch", "keras-fit", "tf-function")
LOSS_TOLERANCE = 1e-3
ENV = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}

Say = Callable[[str], None]


def run_process(command: list[str]) -> Any:
    """Run a process of the benchmark and return its last line's JSON; PlanError with its last words when it
    fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENV)
    if done.returncode:
        raise PlanError(
            f"the benchmark's process ended with {done.returncode}: "
            f"{' '.join(done.stderr.strip().splitlines()[-1:])}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def find_torch(given: str | None) -> str | None:
    """Return the Python that has torch: the one given, or this one; None when neither has it."""
    if given is None:
        return sys.executable if find_spec("torch") else None
    try:
        failed = (
            subprocess.run([given, "-c", "import torch, numpy"], capture_output=True, check=False).returncode
            != 0
        )
    except OSError:
        failed = True
    if failed:
        raise PlanError(
            f"{given} cannot import torch and numpy; give --torch-python a Python that has both, or leave it "
            "out"
        )
    return given


def compile_plan(directory: Path) -> None:
    """Write configuration, plan and samples into the directory; PlanError when that fails."""
    (directory / "federation.toml").write_text(CONFIG)
    run_process([*_module("build", directory), str(STEPS)])


def measure_steps(directory: Path, repeats: int, torch_python: str | None, say: Say) -> dict[str, Any]:
    """Time every peer `repeats` times, in turn, the order reversed each time.

    Returns what `_summary` says of each peer, None for torch when no Python has it. Raises PlanError when two
    peers' first losses differ: they would not have done the same work.
    """
    commands = {peer: [*_module(peer, directory), str(EPOCHS)] for peer in PEERS if peer != "torch"}
    if torch_python:
        script = str(Path(__file__).with_name("torch_peer.py"))
        commands["torch"] = [torch_python, script, str(directory / "samples.npz"), str(EPOCHS)]
    runs: dict[str, list[dict[str, Any]]] = {peer: [] for peer in commands}
    for repeat in range(repeats):
        for peer in list(commands) if repeat % 2 == 0 else reversed(commands):
            runs[peer].append(run_process(commands[peer]))
            say(f"{repeat + 1}/{repeats} {peer}: {median(runs[peer][-1]['ms']):.2f} ms a step")
    losses = {peer: found[0]["loss"] for peer, found in runs.items()}
    if max(losses.values()) - min(losses.values()) > LOSS_TOLERANCE:
        raise PlanError(
            f"the peers' first losses are {losses}, expected the same within {LOSS_TOLERANCE}: they train on "
            "different things"
        )
    return {peer: _summary(runs[peer], runs["edgefl"]) if peer in runs else None for peer in PEERS}


def _summary(runs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over processes, of which each gives its median epoch.

    ms: wall clock of a step; cpu_ms: processor time, which other work on the machine changes less;
    time_over_ours: median of the repeats' ratios, and their range.
    """
    ms, cpu = ([median(run[name]) for run in runs] for name in ("ms", "cpu_ms"))
    ratios = [each / median(own["ms"]) for each, own in zip(ms, ours, strict=True)]
    return {
        "ms": median(ms),
        "cpu_ms": median(cpu),
        "steps_per_second": 1000 / median(ms),
        "time_over_ours": median(ratios),
        "time_over_ours_range": [min(ratios), max(ratios)],
        "first_loss": runs[0]["loss"],
        "version": runs[0]["version"],
    }


def _module(kind: str, directory: Path) -> list[str]:
    files = [str(directory / name) for name in ("federation.toml", "plan", "samples.npz")]
    return [sys.executable, "-m", "tests.benchmarks.simulate.peers", kind, *files]

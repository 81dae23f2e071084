"""Client steps a second on one core, compared with named peers. Each has a process with one thread."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from edgefl.base.errors import PlanError

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
[personalization]
select = false
baseline = false
"""
"""Clients train for the federation only, so that each of their steps is counted."""
STEPS = 100
EPOCHS = 5
"""Steps of an epoch, and number of timed epochs of a process after a warm-up epoch."""

PEERS = ("edgefl", "torch", "keras-fit", "tf-function")
LOSS_TOLERANCE = 1e-3
ENV = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}

Progress = Callable[[str], None]


def run_process(command: list[str]) -> Any:
    """Run a process of the benchmark, and return the JSON of its last line.

    Raises:
        PlanError: the process fails. The message has the last line of its standard error.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENV)
    if done.returncode:
        raise PlanError(
            f"the benchmark's process ended with {done.returncode}: "
            f"{' '.join(done.stderr.strip().splitlines()[-1:])}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def find_torch(python: str | None) -> str | None:
    """Return `python`, or this Python if it has torch, or None.

    Raises:
        PlanError: `python` cannot import torch and numpy.
    """
    if python is None:
        return sys.executable if find_spec("torch") else None
    try:
        failed = (
            subprocess.run([python, "-c", "import torch, numpy"], capture_output=True, check=False).returncode
            != 0
        )
    except OSError:
        failed = True
    if failed:
        raise PlanError(
            f"{python} cannot import torch and numpy; give --torch-python a Python that has both, or leave "
            "it out"
        )
    return python


def compile_plan(directory: Path) -> None:
    """Write configuration, plan and samples into the directory.

    Raises:
        PlanError: the process fails.
    """
    (directory / "federation.toml").write_text(CONFIG)
    run_process([*_make_command("build", directory), str(STEPS)])


def measure_steps(
    directory: Path, repeats: int, torch_python: str | None, progress: Progress
) -> dict[str, Any]:
    """Time every peer `repeats` times in turn, and reverse the order in each repeat.

    Returns:
        The summary of each peer, see `_summarize`. It is None for torch if no Python has it.

    Raises:
        PlanError: the first losses of two peers differ, so they did not do the same work.
    """
    commands = {peer: [*_make_command(peer, directory), str(EPOCHS)] for peer in PEERS if peer != "torch"}
    if torch_python:
        script = str(Path(__file__).with_name("torch_peer.py"))
        commands["torch"] = [torch_python, script, str(directory / "samples.npz"), str(EPOCHS)]
    runs: dict[str, list[dict[str, Any]]] = {peer: [] for peer in commands}
    for repeat in range(repeats):
        for peer in list(commands) if repeat % 2 == 0 else reversed(commands):
            runs[peer].append(run_process(commands[peer]))
            progress(f"{repeat + 1}/{repeats} {peer}: {median(runs[peer][-1]['ms']):.2f} ms a step")
    losses = {peer: peer_runs[0]["loss"] for peer, peer_runs in runs.items()}
    if max(losses.values()) - min(losses.values()) > LOSS_TOLERANCE:
        raise PlanError(
            f"the peers' first losses are {losses}, expected the same within {LOSS_TOLERANCE}: they train on "
            "different things"
        )
    return {peer: _summarize(runs[peer], runs["edgefl"]) if peer in runs else None for peer in PEERS}


def _summarize(runs: list[dict[str, Any]], edgefl_runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over processes. Each process contributes its median epoch.

    Returns:
        ms: wall clock time of a step. cpu_ms: processor time, which other work on the machine changes less.
        time_over_ours: median of the repeats' ratios. time_over_ours_range: their range.
    """
    ms, cpu = ([median(run[name]) for run in runs] for name in ("ms", "cpu_ms"))
    ratios = [
        milliseconds / median(edgefl_run["ms"])
        for milliseconds, edgefl_run in zip(ms, edgefl_runs, strict=True)
    ]
    return {
        "ms": median(ms),
        "cpu_ms": median(cpu),
        "steps_per_second": 1000 / median(ms),
        "time_over_ours": median(ratios),
        "time_over_ours_range": [min(ratios), max(ratios)],
        "first_loss": runs[0]["loss"],
        "version": runs[0]["version"],
    }


def _make_command(kind: str, directory: Path) -> list[str]:
    files = [str(directory / name) for name in ("federation.toml", "plan", "samples.npz")]
    return [sys.executable, "-m", "tests.benchmarks.simulate.peers", kind, *files]

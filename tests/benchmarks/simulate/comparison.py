"""Client steps a second compared with named peers, the scaling of a simulation, and its memory."""

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgefl.base.system.host import describe_machine
from tests.benchmarks.simulate.scale import measure_memory, measure_scaling
from tests.benchmarks.simulate.steps import compile_plan, find_torch, measure_steps

PACKAGES = ("ai-edge-litert", "tensorflow", "keras", "numpy")


def run_simulate_bench(
    repeats: int, torch_python: str | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return all three measurements with machine, versions and command.

    Raises:
        PlanError: `torch_python` has no torch, or a peer's process fails.
        EdgeflError: a simulation fails.
    """
    torch_path = find_torch(torch_python)
    with tempfile.TemporaryDirectory(prefix="edgefl-bench-") as name:
        directory = Path(name)
        progress("compiling the plan")
        compile_plan(directory)
        steps = measure_steps(directory, repeats, torch_path, progress)
        scaling = measure_scaling(directory, repeats, progress)
        memory = measure_memory(directory, progress)
    torch_option = f" --torch-python {torch_python}" if torch_python else ""
    return {
        "machine": describe_machine(),
        "versions": {package: version(package) for package in PACKAGES} | _torch_version(steps),
        "command": f"python -m tests.benchmarks simulate --repeats {repeats}{torch_option}",
        "steps": steps,
        "scaling": scaling,
        "memory": memory,
    }


def _torch_version(steps: dict[str, Any]) -> dict[str, str]:
    return {"torch": steps["torch"]["version"].split()[1]} if steps["torch"] else {}


def render(result: dict[str, Any]) -> str:
    """Return the result as text for a terminal."""
    lines = [
        f"{result['command']}\n{result['machine']}; "
        f"{', '.join(f'{k} {v}' for k, v in result['versions'].items())}",
        "",
        "LeNet-5 at 28x28x1, batch 10, SGD with momentum, one core:",
        f"{'peer':12} {'steps/s':>8} {'ms':>7} {'CPU ms':>7} {'time over ours':>15} {'first loss':>11}",
    ]
    for peer, row in result["steps"].items():
        if row is None:
            lines.append(f"{peer:12} not installed; --torch-python PATH names a Python that has it")
            continue
        low, high = row["time_over_ours_range"]
        span = f"{row['time_over_ours']:.2f} ({low:.2f}-{high:.2f})"
        lines.append(
            f"{peer:12} {row['steps_per_second']:8.0f} {row['ms']:7.2f} {row['cpu_ms']:7.2f} {span:>15} "
            f"{row['first_loss']:11.5f}"
        )
    scaling = result["scaling"]
    memory = result["memory"]
    one = scaling["steps_per_second_1"]
    two = scaling["steps_per_second_2"]
    low, high = scaling["ratio_range"]
    return "\n".join(
        [
            *lines,
            "",
            f"simulation of {scaling['clients']} clients of {scaling['samples']} samples: {one:.0f} client "
            f"steps/s in one process, {two:.0f} in two: {scaling['ratio']:.2f} times ({low:.2f}-{high:.2f})",
            f"peak memory, {memory['processes']} processes and their parent, {memory['cohort']} clients a "
            f"round: {memory['few_mb']:.0f} MB with {memory['few']} clients, {memory['many_mb']:.0f} MB with "
            f"{memory['many']}: {memory['ratio']:.2f} times",
        ]
    )

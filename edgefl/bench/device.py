"""`edgefl bench device`: compares training steps of LiteRT and Keras.

The Keras step is a tf.function of the same objective. Each runs in its own process, with one thread.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from edgefl.errors import PlanError
from edgefl.system.host import describe_machine

BENCH_MODELS: dict[str, tuple[str, tuple[int, int, int], int, int]] = {
    "lenet5-b10": ("lenet5", (28, 28, 1), 10, 100),
    "lenet5-b64": ("lenet5", (28, 28, 1), 64, 30),
    "aem-cnn-b10": ("aem-cnn", (32, 32, 3), 10, 30),
    "five-conv-b32": ("five-conv", (32, 32, 3), 32, 12),
}
"""Model, input shape, batch size and number of timed steps by the name of the benchmark."""


def render_config(name: str) -> str:
    """Return the content of a benchmark's federation.toml.

    Args:
        name: a key of `BENCH_MODELS`.
    """
    model, shape, batch, _ = BENCH_MODELS[name]
    return (
        f'[model]\nname = "{model}"\ninput_shape = {list(shape)}\nnum_classes = 10\n'
        f'[algorithm]\nname = "fedavg"\nbatch_size = {batch}\nlearning_rate = 0.001\nmomentum = 0.0\n'
    )


def _run(arguments: list[str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "edgefl.bench.step", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=_ENV,
    )
    if done.returncode:
        raise PlanError(
            f"the benchmark process exited with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


_ENV = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}


def run_device_bench(
    models: tuple[str, ...], repeats: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Measure training steps of LiteRT and Keras in turn.

    Args:
        models: keys of `BENCH_MODELS`.
        repeats: number of measurements of each model and learner.
        progress: receives a line per measurement.

    Returns:
        The result as a JSON tree, with one row per model. A row has the medians of milliseconds per step and
        of peak memory in MB, and the median ratio of LiteRT to Keras.

    Raises:
        PlanError: a benchmark process failed.
    """
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for name in models:
            config = Path(directory) / f"{name}.toml"
            config.write_text(render_config(name))
            plan = Path(directory) / name
            progress(f"{name}: compiling the plan")
            _run(["build", str(config), str(plan)])
            pairs = []
            for repeat in range(repeats):
                pair = {
                    learner: _run([learner, str(config), str(plan), str(BENCH_MODELS[name][3])])
                    for learner in ("litert", "keras")
                }
                progress(
                    f"{name}: {repeat + 1}/{repeats} LiteRT {pair['litert']['ms']:.2f} ms, Keras "
                    f"{pair['keras']['ms']:.2f} ms"
                )
                pairs.append(pair)
            rows.append(
                {
                    "model": name,
                    "batch_size": BENCH_MODELS[name][2],
                    **{
                        f"{k}_{unit}": median(p[k][unit] for p in pairs)
                        for k in ("litert", "keras")
                        for unit in ("ms", "mb")
                    },
                    "ratio": median(p["litert"]["ms"] / p["keras"]["ms"] for p in pairs),
                }
            )
    names = ("ai-edge-litert", "tensorflow", "keras", "numpy")
    return {
        "machine": describe_machine(),
        "versions": {n: version(n) for n in names},
        "command": "edgefl bench device",
        "rows": rows,
    }


def render_device_bench(result: dict[str, Any]) -> str:
    """Return the result of `run_device_bench` as text for a terminal."""
    rows = [
        f"{row['model']:14} {row['batch_size']:5d} {row['litert_ms']:10.2f} {row['keras_ms']:9.2f} "
        f"{row['ratio']:6.2f} {row['litert_mb']:10.0f} {row['keras_mb']:9.0f}"
        for row in result["rows"]
    ]
    return "\n".join(
        (
            f"{result['machine']}; {', '.join(f'{k} {v}' for k, v in result['versions'].items())}",
            f"{'model':14} {'batch':>5} {'LiteRT ms':>10} {'Keras ms':>9} {'ratio':>6} {'LiteRT MB':>10} "
            f"{'Keras MB':>9}",
            *rows,
        )
    )

"""`edgefl bench device`: measures training steps and inferences of a plan, and compares LiteRT with Keras.

The Keras step is a tf.function of the same objective. Each runs in its own process, with one thread. The
measurement of a given plan needs no TensorFlow, so it runs on a board. The result has no data of its owner.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from edgefl import __version__
from edgefl.base.errors import ConfigError, PlanError
from edgefl.base.system.host import describe_machine, read_total_memory_mb, read_versions
from edgefl.cli.bench.step import choose_signature
from edgefl.program.plan.spec import encode_plan, load_plan


@dataclass(frozen=True)
class BenchModel:
    """A model whose training step is measured.

    Attributes:
        name: the built-in model.
        input_shape: shape of a sample.
        num_classes: number of classes.
        batch_size: samples of a training step.
        steps: number of timed steps.
        micro_batch: `micro_batch` of `[training]`. The peer always trains a whole batch.
    """

    name: str
    input_shape: tuple[int, ...]
    num_classes: int
    batch_size: int
    steps: int
    micro_batch: int = 0


BENCH_MODELS = {
    "lenet5-b10": BenchModel(
        name="lenet5", input_shape=(28, 28, 1), num_classes=10, batch_size=10, steps=100
    ),
    "lenet5-b64": BenchModel(name="lenet5", input_shape=(28, 28, 1), num_classes=10, batch_size=64, steps=30),
    "lenet5-b64-m8": BenchModel(
        name="lenet5", input_shape=(28, 28, 1), num_classes=10, batch_size=64, steps=30, micro_batch=8
    ),
    "cnn1d-b32": BenchModel(name="cnn1d", input_shape=(128, 9), num_classes=6, batch_size=32, steps=60),
    "ds-cnn-b32": BenchModel(name="ds-cnn", input_shape=(49, 10, 1), num_classes=12, batch_size=32, steps=15),
    "aem-cnn-b10": BenchModel(
        name="aem-cnn", input_shape=(32, 32, 3), num_classes=10, batch_size=10, steps=30
    ),
    "five-conv-b32": BenchModel(
        name="five-conv", input_shape=(32, 32, 3), num_classes=10, batch_size=32, steps=12
    ),
    "five-conv-b32-m4": BenchModel(
        name="five-conv", input_shape=(32, 32, 3), num_classes=10, batch_size=32, steps=12, micro_batch=4
    ),
    "resnet8-b32": BenchModel(
        name="resnet8", input_shape=(32, 32, 3), num_classes=10, batch_size=32, steps=8
    ),
    "resnet20-b32": BenchModel(
        name="resnet20", input_shape=(32, 32, 3), num_classes=10, batch_size=32, steps=4
    ),
    "resnet20-b32-m4": BenchModel(
        name="resnet20", input_shape=(32, 32, 3), num_classes=10, batch_size=32, steps=4, micro_batch=4
    ),
    "mobilenetv1-b16": BenchModel(
        name="mobilenetv1", input_shape=(96, 96, 3), num_classes=2, batch_size=16, steps=8
    ),
    "mobilenetv2-b32": BenchModel(
        name="mobilenetv2", input_shape=(32, 32, 3), num_classes=7, batch_size=32, steps=6
    ),
}
"""The models of `edgefl bench device` by the name of the benchmark: -b is the batch, -m the micro-batch."""
RATIO_KEYS = {"keras": "ratio", "torch": "torch_ratio"}
"""The key of the ratio to a peer in a row, by the kind of the peer's process."""
PLAN_STEPS = 20
"""Number of timed steps of a given plan."""


def render_config(model: BenchModel) -> str:
    """Return the content of a benchmark's federation.toml."""
    return (
        f'[model]\nname = "{model.name}"\ninput_shape = {list(model.input_shape)}\n'
        f"num_classes = {model.num_classes}\n"
        f'[algorithm]\nname = "fedavg"\nbatch_size = {model.batch_size}\nlearning_rate = 0.001\n'
        f"momentum = 0.0\n[training]\nmicro_batch = {model.micro_batch}\n"
    )


def compile_bench_plan(model: BenchModel, plan: Path) -> Path:
    """Compile the plan of a benchmark in a process of its own, and return its directory.

    Args:
        plan: the directory of the new plan. Its configuration is written beside it.

    Raises:
        PlanError: the process failed.
    """
    config = plan.with_suffix(".toml")
    config.write_text(render_config(model))
    run_bench_step(["build", str(plan), str(config)])
    return plan


def run_bench_step(arguments: list[str]) -> Any:
    """Return the result of one process of `edgefl.cli.bench.step`, a JSON tree.

    Raises:
        PlanError: the process failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "edgefl.cli.bench.step", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=_ENV | ({"KERAS_BACKEND": "torch"} if arguments[0] == "torch" else {}),
    )
    if done.returncode:
        raise PlanError(
            f"the benchmark process exited with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


_ENV = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}


def _describe_bench(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "machine": describe_machine(),
        "memory_mb": read_total_memory_mb(),
        "edgefl": __version__,
        "versions": read_versions(),
        "command": "edgefl bench device",
        "rows": rows,
    }


def run_plan_bench(plan: Path, repeats: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure training steps and inferences of a plan with LiteRT. This needs no TensorFlow.

    Args:
        repeats: number of measurements.
        progress: receives a line per measurement.

    Returns:
        The result as a JSON tree with one row, see `run_device_bench`. The row has no figures of Keras.

    Raises:
        PlanError: the plan cannot be read, or a benchmark process failed.
    """
    loaded = load_plan(plan)
    rows = []
    for repeat in range(repeats):
        row = {kind: run_bench_step([kind, str(plan), str(PLAN_STEPS)]) for kind in ("litert", "predict")}
        progress(f"{repeat + 1}/{repeats} training step {row['litert']['ms']:.2f} ms")
        rows.append(row)
    spec = loaded.spec
    return _describe_bench(
        [
            {
                "model": Path(spec.model).name,
                "algorithm": spec.algorithm,
                "input_shape": list(spec.input_shape),
                "parameters": sum(math.prod(weight.shape) for weight in spec.weights),
                "plan_bytes": len(encode_plan(loaded)),
                "batch_size": spec.find_signature(choose_signature(loaded, "train")).batch_size,
                **_take_medians(rows),
            }
        ]
    )


def _take_medians(rows: list[dict[str, dict[str, float]]]) -> dict[str, float]:
    return {
        f"{kind}_{unit}": median(row[kind][unit] for row in rows) for kind in rows[0] for unit in ("ms", "mb")
    }


def run_device_bench(
    models: tuple[str, ...], repeats: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Measure training steps of LiteRT and Keras in turn, and of PyTorch if it is installed.

    Args:
        models: keys of `BENCH_MODELS`.
        repeats: number of measurements of each model and learner.
        progress: receives a line per measurement.

    Returns:
        The result as a JSON tree, with one row per model. A row has the medians of milliseconds per training
        step and per inference of one sample, and the peak memory of these processes in MB. It also has the
        median ratios of LiteRT to Keras and to PyTorch.

    Raises:
        ConfigError: TensorFlow is not installed.
        PlanError: a benchmark process failed.
    """
    if find_spec("tensorflow") is None:
        raise ConfigError(
            "the built-in models need TensorFlow, which is not installed here; pass --plan with the "
            "directory `plan` of a device that took part in a federation, or of `edgefl plan build -o plan` "
            "on another machine"
        )
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for name in models:
            progress(f"{name}: compiling the plan")
            model = BENCH_MODELS[name]
            plan = compile_bench_plan(model, Path(directory) / name)
            whole = plan
            if model.micro_batch:
                whole = compile_bench_plan(replace(model, micro_batch=0), Path(directory) / f"{name}-whole")
            plans = {"litert": plan, "keras": whole, "predict": plan}
            if find_spec("torch") is not None:
                plans["torch"] = whole
            pairs = []
            for repeat in range(repeats):
                pair = {
                    kind: run_bench_step([kind, str(path), str(model.steps)]) for kind, path in plans.items()
                }
                progress(
                    f"{name}: {repeat + 1}/{repeats} LiteRT {pair['litert']['ms']:.2f} ms, Keras "
                    f"{pair['keras']['ms']:.2f} ms"
                )
                pairs.append(pair)
            rows.append(
                {
                    "model": name,
                    "batch_size": model.batch_size,
                    "plan_bytes": len(encode_plan(load_plan(plan))),
                    **_take_medians(pairs),
                    **{
                        key: median(pair["litert"]["ms"] / pair[peer]["ms"] for pair in pairs)
                        for peer, key in RATIO_KEYS.items()
                        if peer in plans
                    },
                }
            )
    return _describe_bench(rows)


def render_plan_bench(result: dict[str, Any]) -> str:
    """Return the result of `run_plan_bench` as text for a terminal."""
    (row,) = result["rows"]
    step = f"{row['litert_ms']:.2f} ms, {row['litert_mb']:.0f} MB"
    inference = f"{row['predict_ms']:.3f} ms, {row['predict_mb']:.0f} MB"
    return (
        f"{_describe_host(result)}\n"
        f"{row['model']}, {row['algorithm']}: {row['parameters']:,} parameters, plan of "
        f"{row['plan_bytes']:,} bytes\n"
        f"training step of {row['batch_size']} samples: {step}\n"
        f"inference of one sample: {inference}"
    )


def _describe_host(result: dict[str, Any]) -> str:
    shown = ("ai-edge-litert", "tflite-runtime", "tensorflow", "torch", "keras", "numpy")
    versions = ", ".join(f"{name} {result['versions'][name]}" for name in shown if name in result["versions"])
    return f"{result['machine']}; {versions}"


def render_device_bench(result: dict[str, Any]) -> str:
    """Return the result of `run_device_bench` as text for a terminal."""
    titles = {"keras": "Keras", "torch": "PyTorch"}
    peers = [peer for peer in RATIO_KEYS if f"{peer}_ms" in result["rows"][0]]
    header = f"{'model':16} {'batch':>5} {'LiteRT ms':>10}"
    header += "".join(f" {titles[peer] + ' ms':>10} {'ratio':>6}" for peer in peers)
    header += "".join(f" {title + ' MB':>10}" for title in ("LiteRT", *(titles[peer] for peer in peers)))
    rows = []
    for row in result["rows"]:
        line = f"{row['model']:16} {row['batch_size']:5d} {row['litert_ms']:10.2f}"
        line += "".join(f" {row[f'{peer}_ms']:10.2f} {row[RATIO_KEYS[peer]]:6.2f}" for peer in peers)
        rows.append(line + "".join(f" {row[f'{kind}_mb']:10.0f}" for kind in ("litert", *peers)))
    return "\n".join((_describe_host(result), header, *rows))

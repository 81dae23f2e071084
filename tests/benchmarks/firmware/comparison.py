"""The generated C compared with TensorFlow Lite Micro and CMSIS-NN on the same graphs, counted by QEMU."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgefl.base.config import MIXTURE_ONLY, DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.base.errors import EdgeflError
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.system.files import SECRET_MODE, write_atomic
from edgefl.base.system.host import describe_machine
from edgefl.learning.checkpoint import encode_mixture

CORES = ("cortex-m3", "cortex-m4", "cortex-m7", "cortex-m55")
SMALL_MACHINES = ("cortex-m55",)
"""Cores whose machine in QEMU has no room for the largest model."""
SEED = 1
DEADLINE_S = 1800.0
CODE_BYTES = 75_000
"""Approximate size of TensorFlow Lite Micro's code on an M3 with reference kernels: an image of 110 KB minus
a model of 35 KB, measured for another mixture of three experts. No package registry has its sources, so the
benchmark does not compile it.
"""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Graph:
    """A mixture to measure: the mixture of the first of two clients after two rounds.

    Attributes:
        name: shown in the table.
        algorithm: the algorithm that trains the mixture.
        model: the model of each expert.
        options: options of the algorithm.
        weights: bits of the dense weights.
    """

    name: str
    algorithm: str
    model: ModelConfig
    options: dict[str, Any]
    weights: int = 8


_STEP = {"batch_size": 32, "learning_rate": 0.05}
_SMALL = {"filters1": 8, "filters2": 12, "hidden": 16, "dropout": 0.2}
_MFE: dict[str, Any] = {"epochs": 2, "adapt_epochs": 3, "gate_epochs": 5, **_STEP}
GRAPHS = (
    Graph(name="LeNet-5, pfl-mfe", algorithm="pfl-mfe", model=ModelConfig(name="lenet5"), options=_MFE),
    Graph(
        name="LeNet-5, pfl-mfe, dense weights of 3 bits",
        algorithm="pfl-mfe",
        model=ModelConfig(name="lenet5"),
        options=_MFE,
        weights=3,
    ),
    Graph(
        name="aem-cnn 8/12/16, aem of three experts",
        algorithm="aem",
        model=ModelConfig(name="aem-cnn", options=_SMALL),
        options={
            "num_experts": 2,
            "epochs": 2,
            "local_epochs": 6,
            "gate_epochs": 10,
            "gate": "cnn",
            "gate_options": {"filters1": 4, "filters2": 4, "hidden": 8},
            "local_options": _SMALL,
            **_STEP,
        },
    ),
)


def run_firmware_bench(
    samples: int,
    data: str,
    cmsis_nn: Path | None,
    models: Path | None,
    out: Path | None,
    command: str,
    progress: Progress,
) -> dict[str, Any]:
    """Train each graph, export it for a Cortex-M4, and return one row for each graph.

    Args:
        samples: number of samples of the certificate.
        data: the data set.
        cmsis_nn: directory of CMSIS-NN. None measures no peer.
        models: directory of int8 .tflite files that are measured as well, on random inputs.
        out: directory for states and exports. None uses a temporary one.
        command: the command that was typed.
        progress: receives progress.

    Raises:
        EdgeflError: a process fails.
    """
    rows = []
    with ExitStack() as stack:
        directory = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgefl-bench-")))
        exports: list[tuple[str, Path, list[str]]] = []
        for number, graph in enumerate(GRAPHS):
            home = directory / f"graph{number}"
            train(graph, data, home / "state")
            progress(f"{graph.name}: trained")
            options = ["--state", str(home / "state"), "--weights", str(graph.weights)]
            exports.append((graph.name, home / "export", options))
        for path in sorted(models.glob("*.tflite")) if models else ():
            exports.append((path.name, directory / path.stem, [str(path)]))
        for name, folder, options in exports:
            shared = ["-o", str(folder), "--target", "cortex-m4", "--samples", str(samples), "--json"]
            certificate = json.loads(_run_module("edgefl", "export", *options, *shared))
            measured = [cost["target"] for cost in certificate["cost"] if cost["target"] in CORES]
            peers = {} if cmsis_nn is None else {c: _measure_peer(folder, cmsis_nn, c) for c in measured}
            rows.append(_make_row(name, certificate, peers))
            progress(f"{name}: {certificate['golden']['samples']} samples, the same bytes everywhere")
    tools = certificate["tools"] | {name: version(name) for name in ("ai-edge-quantizer", "ai-edge-litert")}
    return {"machine": describe_machine(), "versions": tools, "command": command, "data": data, "rows": rows}


def train(graph: Graph, data: str, state: Path) -> None:
    """Federate two clients for two rounds, and write the state directory of the first client."""
    from edgefl.data import load_data, make_shards
    from edgefl.data.npz import save_shard
    from edgefl.learning.algorithms.plans import build_plan
    from edgefl.program.plan.spec import save_plan
    from edgefl.simulation.simulate import simulate

    config = FederationConfig(
        rounds=2,
        algorithm=graph.algorithm,
        options=graph.options,
        model=graph.model,
        seed=SEED,
        personalization=MIXTURE_ONLY,
    )
    dataset = load_data(DataConfig(name=data, num_train=1600, num_test=3000), SEED)
    shards = list(make_shards(dataset, PartitionConfig(name="dirichlet", num_clients=2), SEED).values())
    plan, initial = build_plan(config)
    simulation = simulate(plan, initial, {f"client{i}": shard for i, shard in enumerate(shards)}, config)
    files = DeviceFiles(state)
    save_plan(plan, files.plan)
    write_atomic(files.mixture, encode_mixture(simulation.mixtures["client0"]), SECRET_MODE)
    save_shard(files.shard, shards[0])
    note = {
        "data": str(files.shard.resolve()),
        "id": "client0",
        "federation": config.name,
        "seed": SEED,
    }
    write_atomic(files.note, json.dumps(note).encode(), SECRET_MODE)


def _make_row(name: str, certificate: dict[str, Any], peers: dict[str, Any]) -> dict[str, Any]:
    costs = {cost["target"]: cost for cost in certificate["cost"]}
    cores = {}
    for core in CORES:
        if core not in costs and core in SMALL_MACHINES:
            continue
        if core not in costs:
            reason = next(place["reason"] for place in certificate["parity"] if place["place"] == core)
            raise EdgeflError(f"nothing was measured on {core}: {reason}")
        peer = peers.get(core)
        cores[core] = costs[core] | {
            "cmsis_nn": peer,
            "instructions_over_cmsis_nn": costs[core]["instructions_mean"] / peer["instructions"]
            if peer
            else None,
        }
    arena = certificate["tflm"]["arena_bytes"]
    model = certificate["tflm"]["model_bytes"]
    cortex_m3 = cores["cortex-m3"]
    return {
        "graph": name,
        "samples": certificate["golden"]["samples"],
        "parity": [place["place"] for place in certificate["parity"] if place["status"] == "equal"],
        "accuracy_float": certificate["accuracy"]["accuracy_float"],
        "accuracy_int8": certificate["accuracy"]["accuracy_int8"],
        "macs": sum(layer["macs"] for layer in certificate["layers"]),
        "cores": cores,
        "tflm": {"arena_bytes": arena, "model_bytes": model, "image_bytes": model + CODE_BYTES},
        "ram_over_bound": certificate["arena"]["bytes"] / certificate["arena"]["bound_bytes"],
        "ram_over_arena": cortex_m3["ram_bytes"] / arena,
        "flash_over_image": cortex_m3["flash_bytes"] / (model + CODE_BYTES),
    }


def _measure_peer(export: Path, directory: Path, core: str) -> Any:
    return json.loads(
        _run_module("tests.benchmarks.firmware.cmsis_nn", str(export / "model.tflite"), str(directory), core)
    )


def _run_module(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if done.returncode:
        raise EdgeflError(f"{' '.join(arguments[:2])} failed: {done.stderr.strip()[-1500:]}")
    return done.stdout


def render(result: dict[str, Any]) -> str:
    """Return the result as text for a terminal."""
    lines = [
        f"{result['command']}\n{result['machine']}; "
        f"{', '.join(f'{k} {v}' for k, v in result['versions'].items())}"
    ]
    for row in result["rows"]:
        lines += ["", *_format_row(row)]
    return "\n".join(lines)


def _format_row(row: dict[str, Any]) -> Sequence[str]:
    tflm = row["tflm"]
    lines = [
        f"{row['graph']}: {row['macs']:,} MACs; {row['samples']} samples, the same bytes in "
        f"{', '.join(row['parity'])}",
        f"{'':10} {'flash B':>9} {'RAM B':>7} {'stack B':>7} {'instructions':>12} {'CMSIS-NN kernels':>16} "
        f"{'ours over them':>14}",
    ]
    for core, cost in row["cores"].items():
        peer = cost["cmsis_nn"]
        ratio = cost["instructions_over_cmsis_nn"]
        beside = (
            f"{peer['instructions']:16,} {ratio:14.2f}"
            if peer
            else f"{'not measured':>16} {'--cmsis-nn PATH':>14}"
        )
        lines.append(
            f"{core:10} {cost['flash_bytes']:9,} {cost['ram_bytes']:7,} {cost['stack_bytes']:7,} "
            f"{cost['instructions_mean']:12,} {beside}"
        )
    lines += [
        f"TFLM's arena {tflm['arena_bytes']:,} B (its wheel): our RAM is {row['ram_over_arena']:.2f} of it, "
        f"and {row['ram_over_bound']:.3f} of the most activations that live at the same time",
        f"TFLM's image about {tflm['image_bytes']:,} B (model {tflm['model_bytes']:,} + code "
        f"{CODE_BYTES:,}): our flash is {row['flash_over_image']:.2f} of it, target .3",
    ]
    return lines

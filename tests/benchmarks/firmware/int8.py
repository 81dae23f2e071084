"""The accuracy that int8 costs each client of a federation, by the device route and by TensorFlow's
converter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.config import MIXTURE_ONLY, DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.base.rng import derive_rng
from edgefl.base.system.files import write_atomic
from edgefl.base.system.host import describe_machine, read_versions
from edgefl.base.types import Shard
from edgefl.data import load_data, make_shards
from edgefl.data.npz import load_shard, save_shard
from edgefl.program.plan.fill import fill_template
from firmware_export.quantize.dense_weights import with_few_values
from firmware_export.quantize.device_route import RECIPES, quantize
from firmware_export.quantize.quantize import detect_mixing
from firmware_export.quantize.ranges import record_extremes
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.interpreter import load_tflite, measure_accuracy, run_samples
from tests.benchmarks.firmware.mixing import measure_agreement as measure_formulas

SAMPLES = 256
TRAIN = 4000
TEST = 6000
MODELS: Mapping[str, ModelConfig] = {
    "fashion-mnist": ModelConfig(name="lenet5", input_shape=(28, 28, 1), num_classes=10),
    "cifar10": ModelConfig(
        name="lenet5", input_shape=(32, 32, 3), num_classes=10, options={"filters1": 8, "filters2": 16}
    ),
    "uci-har": ModelConfig(name="cnn1d", input_shape=(128, 9), num_classes=6),
}
_GATES: Mapping[str, dict[str, Any]] = {
    "fashion-mnist": {"gate": "cnn"},
    "cifar10": {"gate": "cnn"},
    "uci-har": {"gate": "cnn1d", "gate_options": {"filters1": 8, "filters2": 8, "hidden": 8}},
}
_STEP = {"batch_size": 20, "learning_rate": 0.05}
OPTIONS: Mapping[str, dict[str, Any]] = {
    "aem": {
        "num_experts": 2,
        "epochs": 2,
        "local_epochs": 15,
        "local_learning_rate": 1e-3,
        "gate_epochs": 15,
        **_STEP,
    },
    "pfl-mfe": {"epochs": 2, "adapt_epochs": 10, "gate_epochs": 10, **_STEP},
    "fedmix": {
        "num_experts": 3,
        "epochs": 2,
        "batch_size": 20,
        "learning_rate": 0.05,
        "server_learning_rate": 0.01,
    },
    "ifca": {"num_experts": 2, "epochs": 2, **_STEP},
}
KINDS = tuple(OPTIONS)


@dataclass(frozen=True)
class Row:
    """A client's accuracies on its held-out samples, in per cent.

    Attributes:
        agreement: share of the samples where the device route and float give the same class.
        mixing: the agreement by each formula of `tests.benchmarks.firmware.mixing`, for mixtures of
            probabilities.
    """

    kind: str
    data: str
    client: str
    samples: int
    accuracy_float: float
    device: float
    converter: float
    agreement: float
    mixing: Mapping[str, float]


def make_config(kind: str, data: str, clients: int, rounds: int) -> FederationConfig:
    """Return the configuration of a federation to measure."""
    gate_options = _GATES[data] if kind == "aem" else {}
    return FederationConfig(
        name="int8",
        rounds=rounds,
        algorithm=kind,
        options={**OPTIONS[kind], **gate_options},
        model=MODELS[data],
        data=DataConfig(name=data, num_train=TRAIN, num_test=TEST),
        partition=PartitionConfig(name="dirichlet", num_clients=clients, options={"alpha": 0.5}),
        personalization=MIXTURE_ONLY,
    )


def play(config: FederationConfig, out: Path) -> None:
    """Run the federation, and write each client's float model and shard to `out`."""
    from edgefl.learning.algorithms.plans import build_plan
    from edgefl.simulation.simulate import simulate

    dataset = load_data(config.data, config.seed)
    shards = make_shards(dataset, config.partition, config.seed)
    plan, initial = build_plan(config)
    for client, mixture in simulate(plan, initial, shards, config).mixtures.items():
        save_shard(out / f"{client}.npz", shards[client])
        write_atomic(
            out / f"{client}.tflite", fill_template(plan.template, plan.spec.bindings, mixture.weights)
        )


def measure(kind: str, data: str, client: str, model: bytes, shard: Shard, dense: int = 8) -> Row:
    """Quantize one client's model by both routes with the same calibration samples, and measure it on the
    held-out samples.

    Args:
        kind: kind of the mixture.
        data: the data set.
        client: the client's id.
        model: the client's float .tflite.
        shard: the client's samples.
        dense: bits of dense weights by the device route.
    """
    from firmware_export.quantize.convert import convert_float

    x = shard.x_test
    y = shard.y_test
    calibration = shard.x_train[derive_rng(1, 0, "calibration").permutation(len(shard.x_train))[:SAMPLES]]
    expected, _ = run_samples(load_tflite(model), x)
    made = quantize(model, record_extremes(model, calibration), RECIPES[0])
    made = with_few_values(made, calibration, dense) if dense < 8 else made
    device_outputs, _ = run_samples(load_tflite(made, reference=True), x)
    converter_outputs, _ = run_samples(load_tflite(convert_float(model, calibration), reference=True), x)
    mixes = detect_mixing(read_graph(model)) == "probabilities"
    formulas = vars(measure_formulas(model, calibration, x)) if mixes else {}
    floats, device, converter = (
        100 * measure_accuracy(outputs, y) for outputs in (expected, device_outputs, converter_outputs)
    )
    return Row(
        kind=kind,
        data=data,
        client=client,
        samples=len(y),
        accuracy_float=floats,
        device=device,
        converter=converter,
        agreement=float((device_outputs.argmax(axis=1) == expected.argmax(axis=1)).mean()),
        mixing=formulas,
    )


def run_int8_bench(
    kinds: Sequence[str],
    data: Sequence[str],
    clients: int,
    rounds: int,
    dense: int,
    out: Path,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Return a row for each client, and the mean and worst loss of each route in each federation, in points.

    Args:
        kinds: kinds of mixtures.
        data: data sets.
        clients: number of clients of a federation.
        rounds: number of rounds of a federation.
        dense: bits of dense weights by the device route.
        out: directory for each client's float model and shard. A federation in it is not run again.
        progress: receives progress.
    """
    rows: list[Row] = []
    for name in data:
        for kind in kinds:
            home = out / f"{name}-{kind}-{clients}-{rounds}"
            home.mkdir(parents=True, exist_ok=True)
            if len(list(home.glob("*.tflite"))) < clients:
                progress(f"{kind} on {name}: {clients} clients, {rounds} rounds")
                play(make_config(kind, name, clients, rounds), home)
            for path in sorted(home.glob("*.tflite")):
                row = measure(
                    kind, name, path.stem, path.read_bytes(), load_shard(path.with_suffix(".npz")), dense
                )
                rows.append(row)
                progress(
                    f"  {row.client}: float {row.accuracy_float:.2f}, device {row.device:.2f}, converter "
                    f"{row.converter:.2f}"
                )
    return {
        "machine": describe_machine(),
        "versions": read_versions(),
        "clients": clients,
        "rounds": rounds,
        "dense": dense,
        "rows": [vars(row) for row in rows],
        "federations": summarize(rows),
    }


def summarize(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the mean and worst loss of each federation compared with float, in points."""
    federations = []
    for kind, data in dict.fromkeys((row.kind, row.data) for row in rows):
        members = [row for row in rows if (row.kind, row.data) == (kind, data)]
        device, converter = (
            np.array([row.accuracy_float - getattr(row, route) for row in members])
            for route in ("device", "converter")
        )
        formulas = members[0].mixing
        federations.append(
            {
                "kind": kind,
                "data": data,
                "clients": len(members),
                "float": float(np.mean([row.accuracy_float for row in members])),
                "device_mean": float(device.mean()),
                "device_worst": float(device.max()),
                "converter_mean": float(converter.mean()),
                "converter_worst": float(converter.max()),
                "agreement": float(np.mean([row.agreement for row in members])),
                "mixing": {
                    formula: float(np.mean([row.mixing[formula] for row in members])) for formula in formulas
                },
            }
        )
    return federations


def render(result: dict[str, Any]) -> str:
    """Return the table of each federation's mean and worst loss, in points."""
    lines = [f"{result['machine']}; {', '.join(f'{k} {v}' for k, v in result['versions'].items())}"]
    lines.append(
        f"{'data':14} {'kind':8} {'float':>6} {'device: mean':>13} {'worst':>6} {'converter: mean':>16} "
        f"{'worst':>6} {'as float':>9}"
    )
    for row in result["federations"]:
        lines.append(
            f"{row['data']:14} {row['kind']:8} {row['float']:6.2f} {row['device_mean']:13.2f} "
            f"{row['device_worst']:6.2f} {row['converter_mean']:16.2f} {row['converter_worst']:6.2f} "
            f"{row['agreement']:9.4f}"
        )
        if row["mixing"]:
            lines.append(
                "  as float, mixing "
                + ", ".join(f"{formula} {share:.4f}" for formula, share in row["mixing"].items())
            )
    return "\n".join(lines)

"""What each tuning of the export adds to the accuracy of every client's model, compared with its control.

The control trains in float for as many epochs and is quantized afterwards.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.rng import derive_rng
from edgefl.base.system.files import write_atomic
from edgefl.base.system.host import describe_machine, read_versions
from edgefl.base.types import Shard
from edgefl.data.npz import load_shard
from firmware_export.codegen.c_source import generate_c
from firmware_export.quantize.dense_weights import with_few_values
from firmware_export.quantize.tune import Tuning
from firmware_export.tflite.interpreter import load_tflite, measure_accuracy, run_samples
from tests.benchmarks.firmware.int8 import SAMPLES, make_config, play

UNTUNED = "none"
CONTROL = "control: float"
TUNINGS: Mapping[str, Tuning] = {
    "quantization-aware": Tuning(qat=True),
    "half pruned": Tuning(prune=0.5),
    "16 values a kernel": Tuning(cluster=16),
    "8 values a kernel": Tuning(cluster=8),
}
WEIGHT_BITS: Mapping[str, tuple[int, ...]] = {
    UNTUNED: (8, 4, 3),
    CONTROL: (8, 4, 3),
    "quantization-aware": (8, 4, 3),
    "half pruned": (8,),
    "16 values a kernel": (8, 4),
    "8 values a kernel": (3,),
}
"""Bits of dense weights that are measured after each tuning."""


@dataclass(frozen=True)
class Row:
    """A model of a client on its held-out samples.

    Attributes:
        data: the data set.
        client: seed of the federation and id of the client.
        tuning: name of the tuning.
        weights: bits of dense weights.
        samples: number of held-out samples.
        accuracy_float: accuracy of the float model before the tuning, in per cent.
        accuracy: accuracy of the integer model, in per cent.
        weight_bytes: size of the constants in the generated C.
        deflated_bytes: size of the .tflite after zlib.
    """

    data: str
    client: str
    tuning: str
    weights: int
    samples: int
    accuracy_float: float
    accuracy: float
    weight_bytes: int
    deflated_bytes: int


def measure(data: str, client: str, model: bytes, shard: Shard, epochs: int) -> list[Row]:
    """Tune a client's model on its training samples in every way, and measure it on its held-out samples.

    Args:
        data: the data set.
        client: seed of the federation and id of the client.
        model: the client's float .tflite.
        shard: the client's samples.
        epochs: epochs of each tuning and of the control.
    """
    from firmware_export.quantize.convert import convert_float
    from firmware_export.quantize.keras_clone import import_tf_keras
    from firmware_export.quantize.tune import train_control, tune_int8

    order = derive_rng(1, 0, "calibration").permutation(len(shard.x_train))
    x, y = shard.x_train[order], shard.y_train[order]
    calibration = x[:SAMPLES]
    on_float, _ = run_samples(load_tflite(model), shard.x_test)
    makers: dict[str, Callable[[], bytes]] = {
        UNTUNED: lambda: convert_float(model, calibration),
        CONTROL: lambda: convert_float(train_control(model, x, y, epochs), calibration),
    }
    for name, tuning in TUNINGS.items():
        makers[name] = partial(tune_int8, model, x, y, calibration, replace(tuning, epochs=epochs))
    rows = []
    for name, make in makers.items():
        made = make()
        import_tf_keras().backend.clear_session()
        for bits in WEIGHT_BITS[name]:
            few = with_few_values(made, calibration, bits) if bits < 8 else made
            answers, _ = run_samples(load_tflite(few, reference=True), shard.x_test)
            rows.append(
                Row(
                    data=data,
                    client=client,
                    tuning=name,
                    weights=bits,
                    samples=len(shard.y_test),
                    accuracy_float=100 * measure_accuracy(on_float, shard.y_test),
                    accuracy=100 * measure_accuracy(answers, shard.y_test),
                    weight_bytes=generate_c(few).weight_bytes,
                    deflated_bytes=len(zlib.compress(few, 9)),
                )
            )
    return rows


def run_tuning_bench(
    data: Sequence[str],
    clients: int,
    rounds: int,
    seeds: int,
    epochs: int,
    out: Path,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Return a row for each client, tuning and number of bits, and their summary.

    Args:
        data: data sets.
        clients: number of clients of a federation of PFL-MFE.
        rounds: number of rounds of a federation.
        seeds: number of federations on each data set.
        epochs: epochs of each tuning and of the control.
        out: directory for each client's float model, shard and rows. A client with rows is not tuned again.
        progress: receives progress.
    """
    rows: list[Row] = []
    for name in data:
        for seed in range(1, seeds + 1):
            home = out / f"{name}-{clients}-{rounds}-seed-{seed}"
            home.mkdir(parents=True, exist_ok=True)
            if len(list(home.glob("*.tflite"))) < clients:
                progress(f"{name}: {clients} clients, {rounds} rounds, seed {seed}")
                play(replace(make_config("pfl-mfe", name, clients, rounds), seed=seed), home)
            for path in sorted(home.glob("*.tflite")):
                cached = path.with_suffix(f".{epochs}-epochs.json")
                if not cached.exists():
                    progress(f"{name}, seed {seed}: tuning {path.stem}")
                    shard = load_shard(path.with_suffix(".npz"))
                    measured = measure(name, f"{seed}/{path.stem}", path.read_bytes(), shard, epochs)
                    write_atomic(cached, json.dumps([asdict(row) for row in measured]).encode())
                rows += [Row(**row) for row in json.loads(cached.read_bytes())]
    return {
        "machine": describe_machine(),
        "versions": read_versions(),
        "clients": clients,
        "rounds": rounds,
        "seeds": seeds,
        "epochs": epochs,
        "rows": [asdict(row) for row in rows],
        "tunings": summarize(rows),
    }


def summarize(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the means of each tuning over the clients, and its gain over the control in points.

    The control of a tuned model has dense weights of the same number of bits. A gain is the mean of the
    differences of each client, with its standard error.
    """
    groups: dict[tuple[str, int, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row.data, row.weights, row.tuning), {})[row.client] = row
    summaries = []
    for (data, bits, tuning), members in sorted(groups.items(), key=lambda item: (item[0][0], -item[0][1])):
        control = groups[data, bits, CONTROL]
        gains = np.array([row.accuracy - control[client].accuracy for client, row in members.items()])
        error = float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else 0.0
        means = {
            field: float(np.mean([getattr(row, field) for row in members.values()]))
            for field in ("accuracy_float", "accuracy", "weight_bytes", "deflated_bytes")
        }
        summaries.append(
            {"data": data, "weights": bits, "tuning": tuning, "clients": len(members)}
            | means
            | {"gain": float(gains.mean()), "gain_error": error}
        )
    return summaries


def render(result: dict[str, Any]) -> str:
    """Return the table of all tunings."""
    lines = [f"{result['machine']}; {', '.join(f'{k} {v}' for k, v in result['versions'].items())}"]
    lines.append(
        f"{'data':14} {'weights':>7} {'tuning':20} {'clients':>7} {'float':>6} {'int8':>6} "
        f"{'over the control':>16} {'C bytes':>8} {'packed':>8}"
    )
    for row in result["tunings"]:
        gain = "" if row["tuning"] == CONTROL else f"{row['gain']:+.2f} +- {row['gain_error']:.2f}"
        lines.append(
            f"{row['data']:14} {row['weights']:7} {row['tuning']:20} {row['clients']:7} "
            f"{row['accuracy_float']:6.2f} {row['accuracy']:6.2f} {gain:>16} {row['weight_bytes']:8,.0f} "
            f"{row['deflated_bytes']:8,.0f}"
        )
    return "\n".join(lines)

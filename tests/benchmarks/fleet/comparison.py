"""Fleets of stub clients over mosquitto with TLS, receipts and signatures, compared with bare paho and
Flower.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from edgefl.base.system.host import describe_machine
from tests.benchmarks.fleet.broker import make_keys, read_mosquitto_version
from tests.benchmarks.fleet.floor_run import run_floor
from tests.benchmarks.fleet.flower import run_flower
from tests.benchmarks.fleet.run import Load, run_fleet
from tests.benchmarks.flower import FLOWER, read_package_versions

PACKAGES = ("paho-mqtt", "pynacl", "safetensors", "numpy")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measured fleets.

    Attributes:
        pair: number of clients in the comparison with the peers.
        pair_rounds: rounds of edgefl and bare paho in that comparison.
        flower_rounds: rounds of Flower in that comparison.
        loads: (clients, rounds) of the larger fleets.
        model_bytes: the models' sizes.
    """

    pair: int = 10
    pair_rounds: int = 15
    flower_rounds: int = 4
    loads: tuple[tuple[int, int], ...] = ((100, 5), (500, 3))
    model_bytes: tuple[int, ...] = (240_000, 2_000_000)


def run_fleet_bench(
    sizes: Sizes, repeats: int, flwr_python: str | None, command: str, progress: Progress
) -> dict[str, Any]:
    """Return all measurements with machine, versions, command and the machine's load (1 minute) before and
    after.

    Raises:
        ConfigError: mosquitto or flwr is missing.
        EdgeflError: a process fails, or a fleet does not finish.
    """
    versions = {"mosquitto": read_mosquitto_version(), **{package: version(package) for package in PACKAGES}}
    if flwr_python:
        versions |= read_package_versions(flwr_python, [FLOWER])
    before = os.getloadavg()[0]
    beside = [_compare_peers(sizes, each, repeats, flwr_python, progress) for each in sizes.model_bytes]
    fleets = [
        _run_fleet(Load(clients=clients, model_bytes=size, rounds=rounds), progress)
        for clients, rounds in sizes.loads
        for size in sizes.model_bytes
    ]
    return {
        "machine": describe_machine(),
        "versions": versions,
        "command": command,
        "load": [before, os.getloadavg()[0]],
        "beside": beside,
        "fleets": fleets,
    }


@contextmanager
def _make_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="edgefl-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _run_fleet(load: Load, progress: Progress) -> dict[str, Any]:
    with _make_directory() as directory:
        row = run_fleet(load, directory)
    progress(
        f"{load.clients} clients x {load.model_bytes // 1000} KB: {row['round_s']:.3f} s a round, "
        f"{row['aggregator_mb']:.0f} MB"
    )
    return row


def _run_floor(clients: int, size: int, rounds: int, tls: bool) -> dict[str, Any]:
    with _make_directory() as directory:
        return run_floor(directory, make_keys(directory, []) if tls else None, size, clients, rounds)


def _compare_peers(
    sizes: Sizes, size: int, repeats: int, flwr_python: str | None, progress: Progress
) -> dict[str, Any]:
    """Run all peers in turn, in reverse order in every second repeat. A ratio compares runs of one repeat."""
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "floor": lambda: _run_floor(sizes.pair, size, sizes.pair_rounds, False),
        "floor_tls": lambda: _run_floor(sizes.pair, size, sizes.pair_rounds, True),
        "edgefl": lambda: _run_fleet(
            Load(clients=sizes.pair, model_bytes=size, rounds=sizes.pair_rounds), lambda line: None
        ),
    }
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in list(runs) if repeat % 2 == 0 else reversed(runs):
            results[name].append(runs[name]())
            progress(
                f"{repeat + 1}/{repeats} {size // 1000} KB, {sizes.pair} clients, {name}: "
                f"{results[name][-1]['round_s']:.4f} s a round"
            )
    row: dict[str, Any] = {"model_bytes": size, "clients": sizes.pair}
    for name, each in results.items():
        row[name] = {
            "round_s": median(run["round_s"] for run in each),
            "rounds_s": [run["round_s"] for run in each],
        }
        row[name]["client_mb"] = median(run["client_process_mb"] for run in each)
    for name in ("floor", "floor_tls"):
        ratios = [
            ours["round_s"] / theirs["round_s"]
            for ours, theirs in zip(results["edgefl"], results[name], strict=True)
        ]
        row[f"over_{name}"] = {"ratio": median(ratios), "range": [min(ratios), max(ratios)]}
    row["edgefl"] |= {
        "first_round_s": median(run["first_round_s"] for run in results["edgefl"]),
        "aggregator_cpu_s": median(run["aggregator_cpu_s"] for run in results["edgefl"]),
        "runs": results["edgefl"],
    }
    row["flower"] = None
    if flwr_python:
        with _make_directory() as directory:
            row["flower"] = run_flower(directory, flwr_python, size, sizes.pair, sizes.flower_rounds)
        progress(f"{size // 1000} KB, {sizes.pair} clients, Flower: {row['flower']['round_s']:.1f} s a round")
    return row


def render(result: dict[str, Any]) -> str:
    """Return the result as text for a terminal."""
    lines = [
        f"{result['command']}\n{result['machine']}; "
        f"{', '.join(f'{k} {v}' for k, v in result['versions'].items())}",
        f"load of the machine before and after: {result['load'][0]:.1f}, {result['load'][1]:.1f}",
        "",
        f"{'clients':>7} {'model KB':>8} {'':22} {'s a round':>9} {'ours over it':>20} {'first round s':>13} "
        f"{'a client MB':>11}",
    ]
    for row in result["beside"]:
        for name, label in (
            ("floor", "paho, QoS 1"),
            ("floor_tls", "paho, QoS 1, TLS"),
            ("edgefl", "edgefl, TLS, signed"),
            ("flower", "Flower"),
        ):
            if (peer := row[name]) is None:
                lines.append(
                    f"{'':16} {label:22} not measured; --flwr-python PATH names a Python that has it"
                )
                continue
            over = row.get(f"over_{name}")
            if name == "flower":
                over = {"ratio": row["edgefl"]["round_s"] / peer["round_s"], "range": [0, 0]}
            low, high = over["range"] if over else (0, 0)
            ratio = f"{over['ratio']:.2f}" + (f" ({low:.2f}-{high:.2f})" if high else "") if over else "1"
            first, mb = (f"{peer[key]:.1f}" if key in peer else "" for key in ("first_round_s", "client_mb"))
            lines.append(
                f"{row['clients']:7d} {row['model_bytes'] // 1000:8d} {label:22} {peer['round_s']:9.4f} "
                f"{ratio:>20} {first:>13} {mb:>11}"
            )
    lines += [
        "",
        f"{'clients':>7} {'model KB':>8} {'s a round':>9} {'aggregator MB':>13} {'accepted once':>14} "
        f"{'left out':>8} {'dropped':>7} {'KB up':>8} {'KB down':>8}  processor s a round",
    ]
    for row in [*(run for each in result["beside"] for run in each["edgefl"]["runs"][:1]), *result["fleets"]]:
        once = f"{row['updates_accepted_once']} of {row['updates_expected']}"
        sent = row["bytes_a_round"]
        lines.append(
            f"{row['clients']:7d} {row['model_bytes'] // 1000:8d} {row['round_s']:9.3f} "
            f"{row['aggregator_mb']:13.1f} {once:>14} {row['clients_left_out']:8d} "
            f"{row['dropped_by_broker'] + row['dropped_by_clients']:7d} {sent['up'] / 1000:8.1f} "
            f"{sent['down'] / 1000:8.1f}  "
            f"{row['aggregator_cpu_s']:.3f}"
        )
    return "\n".join(lines)

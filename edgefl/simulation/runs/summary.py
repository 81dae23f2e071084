"""Makes and reads the summary of a run: one row per client, and the distribution of each figure."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.errors import StateError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.run_directory import RunFiles
from edgefl.base.system.files import to_json_value
from edgefl.base.verdict import as_dict, judge_federation
from edgefl.learning.algorithms import read_assignments
from edgefl.learning.algorithms.clustering.cluster_models import explain_clusters
from edgefl.learning.algorithms.names import EXPERT_PREFIX
from edgefl.learning.privacy.accountant import summarize_spending
from edgefl.simulation.clients import ClientResult
from edgefl.simulation.runs.directory import RunDirectory, read_json
from edgefl.simulation.runs.metrics import (
    FigureSummary,
    estimate_global_accuracy,
    estimate_local_accuracy,
    summarize_figure,
)
from edgefl.simulation.runs.round_records import read_median_accuracy
from edgefl.simulation.simulate import FleetFigures, Simulation

if TYPE_CHECKING:
    from edgefl.simulation.runs.pipeline import PartitionedDataset

FIGURE_DESCRIPTIONS = {
    "accuracy": "own held-out samples",
    "auc": "own held-out samples: area under the ROC curve of anomalies",
    "r2": "own held-out samples: share of the variance that the model explains",
    "expected": "local test: accuracy by class on the common test set, weighted by the client's class shares",
    "global": "global test: accuracy on the common test set",
    "balanced": "own held-out samples, mean over classes",
    "precision": "own held-out samples: share of correct ones among the predictions of a class, mean over "
    "classes",
}
"""Descriptions by the first part of a figure's name. The second part is the model, such as `mixture`."""

ACCURACY_STEPS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Accuracies for which `summarize_fleet` reports the virtual time until they were reached."""
_KEYS = ("algorithm", "data", "figures", "clients", "rounds", "seconds", "bytes_up", "bytes_down")


def make_client_row(client_id: str, result: ClientResult, test_counts: np.ndarray) -> dict[str, Any]:
    """Return one client's row of summary.json.

    Args:
        test_counts: number of common test samples of each class, shape (classes,), int64.

    Returns:
        `id`, the metrics of the personalization, and `expected_MODEL` and `global_MODEL` for each model in
            `test_accuracies`, see `FIGURE_DESCRIPTIONS`.
    """
    row: dict[str, Any] = {"id": client_id, **result.metrics}
    for name, by_class in result.test_accuracies.items():
        row[f"expected_{name}"] = estimate_local_accuracy(by_class, result.class_share)
        row[f"global_{name}"] = estimate_global_accuracy(by_class, test_counts)
    return row


def summarize_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the distribution of each figure over clients, see `FigureSummary`.

    Args:
        rows: one row per client, with `n_train` as its size, see `make_client_row`.

    Returns:
        The fields of `FigureSummary` by the figure's name.
    """
    keys = dict.fromkeys(key for row in rows for key in row if key.partition("_")[0] in FIGURE_DESCRIPTIONS)
    sizes = [row["n_train"] for row in rows]
    return {key: asdict(summarize_figure([row.get(key, math.nan) for row in rows], sizes)) for key in keys}


def find_clusters(simulation: Simulation) -> dict[str, int]:
    """Return the cluster of each client by client id.

    The clusters are the assignments of the server. Without assignments, a client's cluster is the expert in
    the diagnostic `assignment` of its mixture. Clients without a cluster are left out.
    """
    assigned = read_assignments(simulation.state)
    preferred = {
        client_id: int(result.mixture.diagnostics["assignment"])
        for client_id, result in simulation.results.items()
        if "assignment" in result.mixture.diagnostics
    }
    return dict(assigned) or preferred


def find_dominant_experts(simulation: Simulation) -> dict[str, int]:
    """Return the shared expert that each client uses most, by client id.

    It is the shared expert with the highest mean gate weight in the diagnostics of the mixture. Without a
    gate it is the model that the client chose by its loss. Clients with neither are left out.
    """
    experts: dict[str, int] = {}
    for client_id, result in simulation.results.items():
        diagnostics = result.mixture.diagnostics
        weights = {
            int(match[1]): value
            for key, value in diagnostics.items()
            if (match := re.fullmatch(rf"gate/(?:{EXPERT_PREFIX})?(\d+)", key))
        }
        if weights:
            experts[client_id] = max(weights, key=lambda index: (weights[index], -index))
        elif "best" in diagnostics:
            experts[client_id] = int(diagnostics["best"])
    return experts


def _compare_with_truth(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the adjusted Rand index of a grouping of clients and their true clusters, None without both."""
    both = [row for row in rows if "truth" in row and key in row]
    if not both:
        return None
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score([row["truth"] for row in both], [row[key] for row in both]))


def summarize_run(
    config: FederationConfig,
    simulation: Simulation,
    records: Sequence[Mapping[str, Any]],
    partitioned: "PartitionedDataset",
    measured: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of summary.json. Numbers that are not finite become None.

    Args:
        records: the record of each round, see `RunDirectory.read_records`.
        partitioned: the data set of the federation.
        measured: what was measured before round 1, see
            `edgefl.program.plan.measured_values.list_measured_values`.

    Raises:
        ModuleNotFoundError: `[privacy]` is on, and the extra `dp` is not installed.
    """
    clusters = find_clusters(simulation)
    experts = find_dominant_experts(simulation)
    test_counts = partitioned.test_counts
    rows = []
    for client_id, result in simulation.results.items():
        row = make_client_row(client_id, result, test_counts)
        truth = partitioned.client_partitions[client_id].truth
        if truth >= 0:
            row["truth"] = truth
        if client_id in clusters:
            row["cluster"] = clusters[client_id]
        if client_id in experts:
            row["expert"] = experts[client_id]
        rows.append(row | {"diagnostics": dict(result.mixture.diagnostics)})
    summary: dict[str, Any] = {
        "federation": config.name,
        "algorithm": config.algorithm,
        "model": config.model.name,
        "data": config.data.name,
        "partition": config.partition.name,
        "seed": config.seed,
        "rounds": len(records),
        "seconds": round(sum(record["seconds"] for record in records), 2),
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records) + simulation.bytes_down,
        "figures": summarize_figures(rows),
    }
    if config.privacy.is_on:
        summary["privacy"] = {
            **summarize_spending(config, simulation.state.round - 1),
            "holds_against": "those who do not know the seed",
        }
    summary |= measured
    if simulation.fleet is not None:
        summary["fleet"] = summarize_fleet(simulation.fleet, records)
    explanations = [line for line in explain_clusters(simulation.state) if line]
    if explanations:
        summary["clustering"] = explanations
    for key, name in (("cluster", "adjusted_rand_index"), ("expert", "adjusted_rand_index_experts")):
        index = _compare_with_truth(rows, key)
        if index is not None:
            summary[name] = index
    usage = dict.fromkeys(key for row in rows for key in row["diagnostics"])
    means = {key: [row["diagnostics"][key] for row in rows if key in row["diagnostics"]] for key in usage}
    verdict = judge_federation(
        rows,
        algorithm=config.algorithm,
        num_classes=config.model.num_classes if config.task.is_classification else 0,
        select=config.personalization.select,
        rounds=config.rounds,
        accuracies=[read_median_accuracy(record) for record in records],
    )
    summary["verdict"] = as_dict(verdict)
    summary["diagnostics"] = {key: sum(values) / len(values) for key, values in means.items()}
    finite_summary: dict[str, Any] = to_json_value(summary | {"clients": rows})
    return finite_summary


def summarize_fleet(fleet: FleetFigures, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of `fleet` in summary.json, for a simulation in virtual time.

    Args:
        fleet: the events of the fleet.
        records: the record of each round, see `RunDirectory.read_records`.

    Returns:
        The fields of `fleet`, and `hours_to_accuracy`. This maps each of `ACCURACY_STEPS` that the mean
            accuracy of the clients reached to the virtual hours until the first such round.
    """
    reached: dict[str, float] = {}
    for record in records:
        accuracy = record.get("accuracy_mean", math.nan)
        for step in ACCURACY_STEPS:
            if accuracy >= step:
                reached.setdefault(f"{step:g}", round(record["hours"], 3))
    return {**asdict(fleet), "hours_to_accuracy": reached}


def write_results(run: RunDirectory, simulation: Simulation, summary: Mapping[str, Any]) -> None:
    """Write summary.json, confusion.json and gates.json, which make a run a finished one.

    Args:
        summary: the content of summary.json.

    Raises:
        StateError: a file cannot be written.
    """
    run.write(run.files.confusion, encode_confusions(simulation))
    run.write(run.files.gates, encode_gates(simulation))
    run.write(run.files.summary, json.dumps(summary, indent=1, allow_nan=False) + "\n")


def encode_confusions(simulation: Simulation) -> str:
    """Return the content of confusion.json.

    It maps each client id to rows of true class, predicted class and number of test samples.
    """
    return (
        json.dumps({client_id: result.confusion.tolist() for client_id, result in simulation.results.items()})
        + "\n"
    )


def encode_gates(simulation: Simulation) -> str:
    """Return the content of gates.json.

    It maps each client id to one row per class of its test samples. A row holds the class, the number of
    samples, and the mean gate weight of each expert. Clients without a gate have no rows.
    """
    return (
        json.dumps(
            {client_id: result.gates.round(6).tolist() for client_id, result in simulation.results.items()}
        )
        + "\n"
    )


def read_summary(run: Path) -> dict[str, Any]:
    """Read the summary of a run, or make it from the result of an aggregator.

    Raises:
        StateError: the file is missing, damaged, or not a summary.
    """
    path = RunFiles(run).summary
    result = AggregatorFiles(run).result
    if result.exists() and not path.exists():
        return _summarize_result(result)
    summary = read_json(path)
    lacking = [key for key in _KEYS if key not in summary]
    if lacking:
        raise StateError(
            f"{path} lacks {lacking[0]!r}, expected the summary of a run; run `edgefl simulate --resume` to "
            "write it again"
        )
    spreads = summary["figures"]
    parts = {field.name for field in fields(FigureSummary)}
    if not isinstance(spreads, dict) or any(
        not isinstance(figure, dict) or not parts <= set(figure) for figure in spreads.values()
    ):
        raise StateError(
            f"{path} has incomplete figures, expected {', '.join(sorted(parts))} for each; run `edgefl "
            "simulate --resume` to write it again"
        )
    return summary


def _summarize_result(path: Path) -> dict[str, Any]:
    """Return the keys of a summary that `edgefl compare` needs, from the result.json of an aggregator."""
    result = read_json(path)
    try:
        rows = [
            {key: math.nan if value is None else value for key, value in row.items()}
            for row in result["clients"]
        ]
        return {
            "algorithm": result["algorithm"],
            "data": "devices",
            "figures": to_json_value(summarize_figures(rows)),
            "clients": result["clients"],
            "rounds": result["rounds"],
            "seconds": result["seconds"],
            "bytes_up": sum(row.get("bytes_up", 0) for row in rows),
            "bytes_down": sum(row.get("bytes_down", 0) for row in rows),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"{path} is damaged: {error!r}, expected the result of an aggregator; start the aggregator again "
            "to write it again"
        ) from error

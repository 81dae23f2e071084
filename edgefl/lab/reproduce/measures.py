"""Reads the figures of an experiment's rows from the results of its stages."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.base.storage.run_directory import RunFiles
from edgefl.lab.reproduce.experiment import Experiment
from edgefl.lab.reproduce.stage import ExperimentResult


def count_used_experts(result: ExperimentResult) -> float:
    """Return the number of experts or clusters that have at least one client."""
    return float(len({row["cluster"] for row in result["clients"]}))


def _list_groups(result: ExperimentResult) -> tuple[list[int], list[int]]:
    """Return the true group and the cluster or expert of each client."""
    rows = result["clients"]
    return [row["truth"] for row in rows], [row["cluster"] for row in rows]


def measure_homogeneity(result: ExperimentResult) -> float:
    """Return how far each expert or cluster serves only one true group, from 0 to 1."""
    from sklearn.metrics import homogeneity_score

    return float(homogeneity_score(*_list_groups(result)))


def measure_completeness(result: ExperimentResult) -> float:
    """Return how far all clients of a true group have the same expert or cluster, from 0 to 1."""
    from sklearn.metrics import completeness_score

    return float(completeness_score(*_list_groups(result)))


def find_exact_round(result: ExperimentResult) -> float:
    """Return the first round from which the experts match the true groups exactly, or NaN for never.

    In an exact match, all clients of a group prefer the same expert, and no other client prefers it.
    """
    truth = {row["id"]: row["truth"] for row in result["clients"]}
    first = 0
    for record in result["records"]:
        best_experts = _find_best_experts(record)
        groups = [
            {expert for client, expert in best_experts.items() if truth[client] == group}
            for group in sorted(set(truth.values()))
        ]
        is_exact = all(len(group) == 1 for group in groups) and len(set.union(*groups)) == len(groups)
        first = (first or record["round"]) if is_exact else 0
    return float(first) or math.nan


def _find_best_experts(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the expert that each client of a round prefers, by client."""
    return {
        client: max((key for key in update if key.startswith("q/")), key=lambda key: update[key])
        for client, update in record["updates"].items()
    }


def measure_early_choices(result: ExperimentResult) -> float:
    """Return the per cent of clients that prefer the same expert in the second and in the last round.

    Only clients that trained in both rounds count. NaN without such a client.
    """
    early, last = (_find_best_experts(result["records"][i]) for i in (1, -1))
    both = early.keys() & last.keys()
    return 100 * fmean(early[client] == last[client] for client in both) if both else math.nan


def find_largest_share(result: ExperimentResult) -> float:
    """Return the share of the clients that choose the most chosen model after the rounds, in per cent.

    The picks in the rounds are not counted: exploration draws a part of them at random.
    """
    chosen = [row["diagnostics"]["best"] for row in result["clients"]]
    return 100 * max(chosen.count(model) for model in set(chosen)) / len(chosen)


def _split_by_accuracy(result: ExperimentResult) -> tuple[list[str], list[str]]:
    """Return the server's experts with at least 90% of the best one's accuracy on the test set, and the
    others.
    """
    accuracies = {name: value for name, value in result["models"].items() if name.startswith("expert")}
    limit = 0.9 * max(accuracies.values())
    useful = [name for name, value in accuracies.items() if value >= limit]
    return useful, [name for name in accuracies if name not in useful]


def count_useful_models(result: ExperimentResult) -> float:
    """Return the number of server models with at least 90% of the best one's accuracy on the test set."""
    return float(len(_split_by_accuracy(result)[0]))


def average_useless_loss(result: ExperimentResult) -> float:
    """Return the mean test loss of the server models with less than 90% of the best one's accuracy.

    It is NaN if there are none, or if a loss is not finite. A model that is confidently wrong has a higher
    loss than a uniform guess.
    """
    losses = [result["model_losses"][name] for name in _split_by_accuracy(result)[1]]
    return math.nan if None in losses or not losses else fmean(losses)


def sum_megabytes(result: ExperimentResult) -> float:
    """Return the megabytes that all clients sent and received."""
    return float(result["bytes_up"] + result["bytes_down"]) / 1e6


def _select_last_rounds(result: ExperimentResult, divisor: int) -> Sequence[Mapping[str, Any]]:
    """Return the records of the last rounds: with divisor 10, of the last tenth of all rounds."""
    records: Sequence[Mapping[str, Any]] = result["records"]
    return records[-max(1, len(records) // divisor) :]


def average_divergence(result: ExperimentResult) -> float:
    """Return the divergence of the clients' gradients, as a mean over models and the last tenth of rounds."""
    records = _select_last_rounds(result, 10)
    return fmean(fmean(record["measured"]["divergence"].values()) for record in records)


def _list_test_losses(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the mean over clients of the loss on test samples, for each evaluated round."""
    return [_average(record, "loss_mixture") for record in records if _list_evaluated_clients(record)]


def average_last_training_loss(result: ExperimentResult) -> float:
    """Return the loss in training, as a mean over the last tenth of rounds. NaN if one is not finite."""
    losses = [record["loss"] for record in _select_last_rounds(result, 10)]
    return math.nan if None in losses else fmean(losses)


def average_last_loss(result: ExperimentResult) -> float:
    """Return the loss on test samples, as a mean over clients and the last tenth of rounds. NaN without
    evaluations.
    """
    losses = _list_test_losses(_select_last_rounds(result, 10))
    return fmean(losses) if losses else math.nan


def measure_loss_oscillation(result: ExperimentResult) -> float:
    """Return how far the loss of a round is from the mean of its neighbours, as a mean over the last half.

    The loss is the mean over clients on their test samples. NaN with fewer than three evaluations.
    """
    losses = _list_test_losses(_select_last_rounds(result, 2))
    triples = zip(losses, losses[1:], losses[2:], strict=False)
    distances = [abs(middle - (before + after) / 2) for before, middle, after in triples]
    return fmean(distances) if distances else math.nan


def find_largest_gate_share(result: ExperimentResult) -> float:
    """Return the mean gate weight of the expert with the largest one, from 0 to 1."""
    return float(max(value for key, value in result["diagnostics"].items() if key.startswith("gate/")))


ROW_MEASURES: Mapping[str, Callable[[ExperimentResult], float]] = {
    "clusters": count_used_experts,
    "homogeneity": measure_homogeneity,
    "completeness": measure_completeness,
    "experts_used": count_used_experts,
    "exact_round": find_exact_round,
    "early_choices": measure_early_choices,
    "largest_share": find_largest_share,
    "useful_models": count_useful_models,
    "useless_loss": average_useless_loss,
    "megabytes": sum_megabytes,
    "divergence": average_divergence,
    "last_training_loss": average_last_training_loss,
    "last_loss": average_last_loss,
    "loss_oscillation": measure_loss_oscillation,
    "largest_gate_share": find_largest_gate_share,
}
"""Functions of a result by the name in `Row.value`."""


OLDER_STAGE_REMEDY = (
    f"correct the row, or if an older version played the stage, remove its {RunFiles.summary.name} and run "
    "the command again"
)
SHARE_PREFIXES = ("figures.", "models.", "new_client", "predicted_precision")
"""Beginnings of the paths of shares, which become per cent."""


ROUND_ACCURACY = "round_accuracy."
"""Beginning of the name of the mean accuracy over clients after a round, such as `round_accuracy.50`."""


def _find_round_accuracy(result: ExperimentResult, number: str) -> float:
    """Return the accuracy after a round in per cent, as a mean over clients.

    Raises:
        ConfigError: the clients were not evaluated after this round.
    """
    evaluated = {
        str(record["round"]): record for record in result["records"] if _list_evaluated_clients(record)
    }
    if number not in evaluated:
        raise ConfigError(
            f"the clients were not evaluated after round {number!r} of {ROUND_ACCURACY + number!r}, expected "
            f"one of {', '.join(evaluated) or 'none'}; correct the row, or evaluate_every of the stage"
        )
    return 100 * _average(evaluated[number], "accuracy_mixture")


def measure(result: ExperimentResult, value: str) -> float:
    """Return one figure of a result. NaN for a figure that was not finite.

    Args:
        result: the result of a stage.
        value: see `Row.value`.

    Raises:
        ConfigError: the result has no such figure.
    """
    if value.startswith(ROUND_ACCURACY):
        return _find_round_accuracy(result, value.removeprefix(ROUND_ACCURACY))
    if value in ROW_MEASURES:
        try:
            return ROW_MEASURES[value](result)
        except (LookupError, ValueError) as error:
            raise ConfigError(f"{value!r} is not in the stage: {error}; {OLDER_STAGE_REMEDY}") from error
    node: Any = result
    for part in value.split("."):
        if not isinstance(node, Mapping) or part not in node:
            have = ", ".join(node) if isinstance(node, Mapping) else str(node)
            raise ConfigError(f"the stage has no {part!r} of {value!r}, it has {have}; {OLDER_STAGE_REMEDY}")
        node = node[part]
    if node is None:
        return math.nan
    if not isinstance(node, int | float):
        raise ConfigError(f"{value!r} is {node!r}, expected the path of a number")
    return 100 * float(node) if value.startswith(SHARE_PREFIXES) else float(node)


def measure_rows(experiment: Experiment, results: Mapping[str, ExperimentResult]) -> dict[str, float | None]:
    """Return the figures of one seed by row. Rows of stages that did not run are left out.

    Args:
        results: results by stage.

    Returns:
        The figures. None for a figure that is not finite.

    Raises:
        ConfigError: as in `measure`.
    """
    rows = {}
    for row in experiment.rows:
        if all(stage in results for stage in row.stages):
            try:
                value = fmean(measure(results[stage], row.value) for stage in row.stages)
            except ConfigError:
                if not experiment.model_file:
                    raise
                value = math.nan  # such as layers that the model of the file does not have
            rows[row.name] = round(value, 6) if math.isfinite(value) else None
    return rows


def extract_curves(results: Mapping[str, ExperimentResult]) -> dict[str, dict[str, Sequence[float]]]:
    """Return the means over clients after each evaluated round.

    Args:
        results: results by stage.

    Returns:
        For each stage with evaluations, the numbers of the rounds, and the means of `accuracy_mixture` and
            `loss_mixture`.
    """
    curves: dict[str, dict[str, Sequence[float]]] = {}
    for stage, result in results.items():
        evaluated = [record for record in result["records"] if _list_evaluated_clients(record)]
        if evaluated:
            curves[stage] = {
                "rounds": [record["round"] for record in evaluated],
                **{key: [_average(record, key) for record in evaluated] for key in _CURVES},
            }
    return curves


_CURVES = ("accuracy_mixture", "loss_mixture")


def _list_evaluated_clients(record: Mapping[str, Any]) -> list[Mapping[str, float]]:
    """Return the figures of the clients that were evaluated after a round, if they are finite."""
    clients = record.get("measured", {}).get("clients", {}).values()
    return [client for client in clients if set(_CURVES) <= client.keys()]


def _average(record: Mapping[str, Any], key: str) -> float:
    return round(fmean(client[key] for client in _list_evaluated_clients(record)), 4)

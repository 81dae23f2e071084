"""What a round's record says in scalars by name: pure functions, the same names from the simulator and from
an aggregator.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.verdict import read_comparison_counts

Write = Callable[[int, Mapping[str, float]], None]
"""Takes a step, which is a round, and its scalars by name."""


@dataclass(frozen=True)
class Writer:
    """Writes to one log.

    Attributes:
        write: takes the scalars of a step.
        tag: takes a name and a text about the whole run.
    """

    write: Write
    write_tag: Callable[[str, str], None]


ROUND_FIELDS = ("loss", "seconds", "bytes_up", "bytes_down")
ACCURACY_FIELDS = {"mean": "accuracy_mean", "p10": "accuracy_p10", "p90": "accuracy_p90"}
"""Fields of a record with the accuracy over clients."""
PERSONALIZE = "personalize"
"""The phase in which clients report the accuracy of the model that they take away."""


def extract_round_scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of a round: `round/loss`, `round/updates`, `clients/accuracy`, ....

    Only finite numbers.

    `record`: a Summary of an aggregator or a Record of the simulator, as a dict. `clients/NAME` is the mean
    of what the clients report in their updates, weighted by their samples, and comes from the simulator
    alone. `round/accuracy_mean` is of a round's validation samples. After the rounds the same field is of
    test samples and of the models that clients take away, so that it has the name that a simulation gives it.
    The `metrics` of a Summary, such as `auc_mean`, are named in the same way: `round/auc_mean`, and after the
    rounds `end/auc/mean`.
    """
    scalars = {f"round/{name}": record[name] for name in ROUND_FIELDS if name in record}
    ended = record.get("phase") == PERSONALIZE
    scalars |= {
        f"end/accuracy_shipped/{part}" if ended else f"round/{name}": record[name]
        for part, name in ACCURACY_FIELDS.items()
        if name in record
    }
    for name, value in record.get("metrics", {}).items():
        metric, _, part = name.rpartition("_")
        scalars.setdefault(f"end/{metric}/{part}" if ended else f"round/{name}", value)
    updates = record.get("updates", 0)
    scalars["round/updates"] = len(updates) if isinstance(updates, Mapping) else updates
    if "dropped" in record:
        scalars["round/dropped"] = len(record["dropped"])
    if isinstance(updates, Mapping):
        scalars |= _average_updates(updates)
    return _drop_nonfinite(scalars)


def _average_updates(updates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for metrics in updates.values() for name in metrics} - {"num_samples", "loss"})
    means = {}
    for name in names:
        weighted = [
            (metrics[name], metrics["num_samples"])
            for metrics in updates.values()
            if math.isfinite(metrics.get(name, math.nan))
        ]
        if samples := sum(count for _, count in weighted):
            means[f"clients/{name}"] = sum(value * count for value, count in weighted) / samples
    return means


def extract_figure_scalars(figures: Mapping[str, Mapping[str, float | None]]) -> dict[str, float]:
    """Return the scalars of a run's end: mean, 10th percentile and standard deviation over clients of each of
    summary.json's figures.
    """
    return _drop_nonfinite(
        {
            f"end/{name}/{part}": spread.get(part)
            for name, spread in figures.items()
            for part in ("mean", "p10", "std")
        }
    )


def extract_verdict_scalars(verdict: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of a verdict: mean figures, numbers of devices by comparison, and the gain.

    Args:
        verdict: a verdict as a tree, see `edgefl.verdict.as_dict`.
    """
    figures = {**verdict["means"], **read_comparison_counts(verdict), "gain_points": verdict["gain_points"]}
    return _drop_nonfinite({f"verdict/{name}": value for name, value in figures.items()})


def _drop_nonfinite(scalars: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value) for name, value in scalars.items() if value is not None and math.isfinite(value)
    }

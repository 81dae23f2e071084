"""Extracts named scalars from the record of a round. Pure functions.

The simulator and the aggregator use the same names.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.base.verdict import read_comparison_counts, read_round_metric

Write = Callable[[int, Mapping[str, float]], None]
"""Writes the scalars of a step, which is a round, by name."""


@dataclass(frozen=True)
class Writer:
    """Writes to one log.

    Attributes:
        write: writes the scalars of a round.
        write_tag: writes a text about the whole run under a name.
    """

    write: Write
    write_tag: Callable[[str, str], None]


ROUND_FIELDS = ("loss", "seconds", "bytes_up", "bytes_down")
ACCURACY_FIELDS = {"mean": "accuracy_mean", "p10": "accuracy_p10", "p90": "accuracy_p90"}
"""Fields of a record with the accuracy over clients, by the name of the statistic."""
PERSONALIZE = "personalize"
"""The phase in which clients report the accuracy of their final models."""


def extract_round_scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite scalars of a round, such as `round/loss`, `round/updates` and `clients/accuracy`.

    `clients/NAME` is the mean of a metric in the clients' updates, weighted by their samples. Only the
    simulator records it.

    `round/accuracy_mean` is measured on validation samples. After the rounds, the same field is measured on
    test samples with the final models of the clients. It is then named `end/accuracy_shipped/mean`, as in a
    simulation. For another task than classification the names have r2 or auc, such as `round/r2_mean`.

    The `metrics` of a Summary, such as `auc_mean`, follow the same pattern: `round/auc_mean`, and after the
    rounds `end/auc/mean`.

    Args:
        record: a Summary of an aggregator or a Record of the simulator, as a dict.
    """
    scalars = {f"round/{name}": record[name] for name in ROUND_FIELDS if name in record}
    ended = record.get("phase") == PERSONALIZE
    measure = read_round_metric(record).partition("_")[0]
    scalars |= {
        f"end/{measure}_shipped/{part}" if ended else f"round/{measure}_{part}": record[name]
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
    """Return the scalars for the end of a run.

    Each figure of summary.json becomes its mean, 10th percentile and standard deviation over clients, such as
    `end/accuracy_shipped/mean`.

    Args:
        figures: the statistics of each figure, by the name of the figure.
    """
    return _drop_nonfinite(
        {
            f"end/{name}/{part}": spread.get(part)
            for name, spread in figures.items()
            for part in ("mean", "p10", "std")
        }
    )


def extract_verdict_scalars(verdict: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of a verdict: mean figures, number of devices by comparison, and the gain.

    Args:
        verdict: a verdict as a tree, see `edgefl.base.verdict.as_dict`.
    """
    figures = {**verdict["means"], **read_comparison_counts(verdict), "gain_points": verdict["gain_points"]}
    return _drop_nonfinite({f"verdict/{name}": value for name, value in figures.items()})


def _drop_nonfinite(scalars: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value) for name, value in scalars.items() if value is not None and math.isfinite(value)
    }

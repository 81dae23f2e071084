"""What a round's record says in scalars by name: pure functions, the same names from the simulator and from
an aggregator.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.verdict import comparison_counts

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
    tag: Callable[[str, str], None]


PLAIN = ("loss", "seconds", "bytes_up", "bytes_down")
ACCURACY = {"mean": "accuracy_mean", "p10": "accuracy_p10", "p90": "accuracy_p90"}
"""Fields of a record with the accuracy over clients."""
PERSONALIZE = "personalize"
"""The phase in which clients report the accuracy of the model that they take away."""


def round_scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of a round: `round/loss`, `round/updates`, `clients/accuracy`, ....

    Only finite numbers.

    `record`: a Summary of an aggregator or a Record of the simulator, as a dict. `clients/NAME` is the mean
    of what the clients report in their updates, weighted by their samples, and comes from the simulator
    alone. `round/accuracy_mean` is of a round's validation samples. After the rounds the same field is of
    test samples and of the models that clients take away, so that it has the name that a simulation gives it.
    The `metrics` of a Summary, such as `auc_mean`, are named in the same way: `round/auc_mean`, and after the
    rounds `end/auc/mean`.
    """
    told = {f"round/{name}": record[name] for name in PLAIN if name in record}
    ended = record.get("phase") == PERSONALIZE
    told |= {
        f"end/accuracy_shipped/{part}" if ended else f"round/{name}": record[name]
        for part, name in ACCURACY.items()
        if name in record
    }
    for name, value in record.get("metrics", {}).items():
        metric, _, part = name.rpartition("_")
        told.setdefault(f"end/{metric}/{part}" if ended else f"round/{name}", value)
    updates = record.get("updates", 0)
    told["round/updates"] = len(updates) if isinstance(updates, Mapping) else updates
    if "dropped" in record:
        told["round/dropped"] = len(record["dropped"])
    if isinstance(updates, Mapping):
        told |= _means(updates)
    return _finite(told)


def _means(updates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for each in updates.values() for name in each} - {"num_samples", "loss"})
    told = {}
    for name in names:
        known = [
            (each[name], each["num_samples"])
            for each in updates.values()
            if math.isfinite(each.get(name, math.nan))
        ]
        if samples := sum(count for _, count in known):
            told[f"clients/{name}"] = sum(value * count for value, count in known) / samples
    return told


def figure_scalars(figures: Mapping[str, Mapping[str, float | None]]) -> dict[str, float]:
    """Return the scalars of a run's end: mean, 10th percentile and standard deviation over clients of each of
    summary.json's figures.
    """
    return _finite(
        {
            f"end/{name}/{part}": spread.get(part)
            for name, spread in figures.items()
            for part in ("mean", "p10", "std")
        }
    )


def verdict_scalars(verdict: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of a verdict: mean figures, numbers of devices by comparison, and the gain.

    Args:
        verdict: a verdict as a tree, see `edgefl.verdict.as_dict`.
    """
    figures = {**verdict["means"], **comparison_counts(verdict), "gain_points": verdict["gain_points"]}
    return _finite({f"verdict/{name}": value for name, value in figures.items()})


def _finite(told: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in told.items() if value is not None and math.isfinite(value)}

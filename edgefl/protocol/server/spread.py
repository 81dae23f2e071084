"""Measures how a metric is spread over the clients of a round.

A metric counts only if at least half of the clients report it. Decisions for all clients use the median, so
fewer than half of the clients cannot move a decision beyond the values that the other clients report.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from edgefl.base.verdict import find_round_metric

MAX_SPREADS = 32
"""Maximum number of metrics in a summary."""
METRICS_WITHOUT_SPREAD = frozenset({"loss", "shipped"})
"""Metrics that have no spread. The loss is a mean over samples, and `shipped` is an index."""
_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True)
class Spread:
    """Mean, median and percentiles over clients, each client counted once. All are NaN without clients.

    Attributes:
        mean: the mean.
        median: the median, which decisions use.
        p10: the 10th percentile.
        p90: the 90th percentile.
    """

    mean: float = math.nan
    median: float = math.nan
    p10: float = math.nan
    p90: float = math.nan


def measure_spread(name: str, clients: Iterable[Mapping[str, float]]) -> Spread:
    """Return the spread of one metric over the clients that report it as a finite number.

    Args:
        name: the name of the metric, such as `accuracy`.
    """
    values = [client[name] for client in clients if math.isfinite(client.get(name, math.nan))]
    if not values:
        return Spread()
    low, median, high = np.percentile(values, (10, 50, 90)).tolist()
    return Spread(mean=float(np.mean(values)), median=median, p10=low, p90=high)


def list_common_metrics(clients: Iterable[Mapping[str, float]]) -> dict[str, int]:
    """Return the metrics that at least half of the clients report as finite numbers.

    Returns:
        The number of clients that report each metric, by name.
    """
    reports = list(clients)
    counts = Counter(name for client in reports for name, value in client.items() if math.isfinite(value))
    return {name: count for name, count in counts.items() if 2 * count >= len(reports)}


def measure_spreads(clients: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the spread of every metric that at least half of the clients report.

    The spread is `NAME_mean`, `NAME_median`, `NAME_p10` and `NAME_p90`. Metrics without a spread are left
    out, and so are unusual names. A name consists of at most 40 lower-case
    letters, digits and `_`, and starts with a letter. If there are more than `MAX_SPREADS` metrics, the most
    frequently reported ones are returned.
    """
    reports = list(clients)
    counts = list_common_metrics(reports)
    names = [name for name in counts if name not in METRICS_WITHOUT_SPREAD and _METRIC_NAME.fullmatch(name)]
    names = sorted(sorted(names, key=lambda name: (-counts[name], name))[:MAX_SPREADS])
    return {
        f"{name}_{part}": value
        for name in names
        for part, value in asdict(measure_spread(name, reports)).items()
    }


def measure_loss(clients: Iterable[Mapping[str, float]]) -> float:
    """Return the median training loss over clients, or NaN if fewer than half of them report a loss.

    Args:
        clients: the metrics of each client.
    """
    reports = list(clients)
    return measure_spread("loss", reports).median if "loss" in list_common_metrics(reports) else math.nan


def summarize_accuracy(clients: Iterable[Mapping[str, float]]) -> Spread:
    """Return the spread over clients of the accuracy that they report.

    For another task than classification, it is the spread of the R2, or of the AUC at the end.

    Args:
        clients: the metrics of each client.

    Returns:
        The spread of the first metric of `edgefl.base.verdict.ROUND_METRICS` that at least half of the
        clients report. NaN when there is none.
    """
    reports = list(clients)
    common = list_common_metrics(reports)
    name = find_round_metric(common)
    return measure_spread(name, reports) if name in common else Spread()

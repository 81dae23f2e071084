"""Measures how a metric is spread over the clients of a round."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from edgefl.wire.messages import Begin

MAX_SPREADS = 32
"""Maximum number of metrics in a summary."""
METRICS_WITHOUT_SPREAD = frozenset({"loss", "shipped"})
"""Metrics that have no spread. The loss is a mean over samples, and `shipped` is an index."""
_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True)
class Spread:
    """Mean and percentiles over clients, each client counted once. All are NaN without clients.

    Attributes:
        mean: the mean.
        p10: the 10th percentile.
        p90: the 90th percentile.
    """

    mean: float = math.nan
    p10: float = math.nan
    p90: float = math.nan


def measure_spread(name: str, clients: Iterable[Mapping[str, float]]) -> Spread:
    """Return the spread of one metric over the clients that report it as a finite number.

    Args:
        name: the name of the metric, such as `accuracy`.
        clients: the metrics of each client.
    """
    values = [client[name] for client in clients if math.isfinite(client.get(name, math.nan))]
    if not values:
        return Spread()
    low, high = np.percentile(values, (10, 90)).tolist()
    return Spread(float(np.mean(values)), low, high)


def measure_spreads(clients: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the spread of every metric that clients report, as `NAME_mean`, `NAME_p10` and `NAME_p90`.

    Metrics without a spread are left out, and so are unusual names. A name consists of at most 40 lower-case
    letters, digits and `_`, and starts with a letter. If there are more than `MAX_SPREADS` metrics, the most
    frequently reported ones are returned.

    Args:
        clients: the metrics of each client.
    """
    reports = list(clients)
    counts = Counter(name for client in reports for name, value in client.items() if math.isfinite(value))
    names = [name for name in counts if name not in METRICS_WITHOUT_SPREAD and _METRIC_NAME.fullmatch(name)]
    names = sorted(sorted(names, key=lambda name: (-counts[name], name))[:MAX_SPREADS])
    return {
        f"{name}_{part}": value
        for name in names
        for part, value in asdict(measure_spread(name, reports)).items()
    }


def average_loss(begins: Sequence[Begin]) -> float:
    """Return the mean training loss over all samples of the updates that report a loss.

    Args:
        begins: the announcements of the updates, with their numbers of samples.

    Returns:
        The loss, or NaN when no update reports a finite loss.
    """
    reported = [
        (begin.metrics["loss"], begin.num_samples)
        for begin in begins
        if math.isfinite(begin.metrics.get("loss", math.nan))
    ]
    samples = sum(count for _, count in reported)
    return sum(loss * count for loss, count in reported) / samples if samples else math.nan

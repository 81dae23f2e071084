"""How a metric is spread over the clients of a round."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgefl.wire.messages import Begin


@dataclass(frozen=True)
class Spread:
    """Mean, 10th and 90th percentile over clients, each client counted once; NaN of no client."""

    mean: float = math.nan
    p10: float = math.nan
    p90: float = math.nan


def spread_of(name: str, clients: Iterable[Mapping[str, float]]) -> Spread:
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


def mean_loss(begins: Sequence[Begin]) -> float:
    """Return the mean training loss over samples of the updates that report one; else NaN."""
    reported = [
        (begin.metrics["loss"], begin.num_samples)
        for begin in begins
        if math.isfinite(begin.metrics.get("loss", math.nan))
    ]
    samples = sum(count for _, count in reported)
    return sum(loss * count for loss, count in reported) / samples if samples else math.nan

"""How a metric is spread over the clients of a round."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


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

"""The range of each figure that a client reports about itself.

The message of an enrolled client is still a stranger's input. A figure outside of its range is not a number
from here on, as if the client had not reported it. Only a loss is limited to its range instead, because the
loss of honest training may diverge.
"""

import math
import re
from collections.abc import Mapping

from edgefl.base.verdict import MEASURES, SHARE_PREFIX
from edgefl.learning.algorithms.names import BLEND_PREFIX, SCORE_METRIC_PREFIX
from edgefl.learning.client.selection import SHIPPED_MODELS

MAX_LOSS = 1e9
"""Largest loss, and largest negative loss."""
MAX_FIGURE = 1e15
"""Largest absolute value of a figure without a range of its own."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_/.:-]{0,79}")
_COUNTS = frozenset({"n_train", "n_validation", "n_test", "test_gained", "test_lost"})


def limit_figures(metrics: Mapping[str, float], max_count: int) -> dict[str, float]:
    """Return the metrics of a client with each figure in its range.

    An accuracy, an AUC, an R2 and a score are from 0 to 1. A number of samples is a whole number of at most
    `max_count`. The test samples that only one of two models predicts correctly are test samples. Metrics
    with unusual names are left out.

    Args:
        metrics: the metrics that the client reported.
        max_count: maximum number of samples of a client.
    """
    figures = {
        name: _limit(name, value, max_count) for name, value in metrics.items() if _NAME.fullmatch(name)
    }
    tested = figures.get("n_test", math.nan)
    if "n_test" in figures and not figures.get("test_gained", 0.0) + figures.get("test_lost", 0.0) <= tested:
        figures |= {name: math.nan for name in ("test_gained", "test_lost") if name in figures}
    return figures


def _limit(name: str, value: float, max_count: int) -> float:
    if name.endswith("loss"):
        return min(max(value, -MAX_LOSS), MAX_LOSS) if math.isfinite(value) else math.nan
    low, high = -MAX_FIGURE, MAX_FIGURE
    if name.partition("_")[0] in MEASURES or name.startswith(
        (SCORE_METRIC_PREFIX, BLEND_PREFIX, SHARE_PREFIX)
    ):
        low, high = 0.0, 1.0
    elif name == "shipped":
        low, high = 0.0, len(SHIPPED_MODELS) - 1.0
    elif name in _COUNTS:
        low, high = 0.0, float(max_count)
        value = value if float(value).is_integer() else math.nan
    return value if low <= value <= high else math.nan

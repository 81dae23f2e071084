"""Decides whether a claim of a paper is reproduced. The check is fixed before the experiment runs.

A claim is about one figure, or about the difference of two figures of the same seed. With at least five
seeds, a bootstrap over the seeds gives an interval of the mean. The claim is reproduced if the whole interval
is within the limits of the claim, and not reproduced if no part of it is.

The percentile interval is too short for few seeds. For five normally distributed values, 84% of such
intervals contain the true mean, and 7 to 8% are wholly above it. A verdict of five seeds is no proof.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from edgefl.reproduce.experiment import PaperClaim
from edgefl.reproduce.report import ExperimentVerdict

MIN_SEEDS = 5
"""Number of seeds that a verdict needs. With fewer seeds the mean is only reported."""
NUM_RESAMPLES = 10_000
CONFIDENCE_PERCENT = 95

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
UNDECIDED = "undecided"
NO_RUN = "not run"
OUT_OF_REACH = "out of reach (cost)"


def estimate_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits that hold 95% of the means of resampled values.

    The generator has a fixed seed, so equal values give equal limits.

    Args:
        values: one value per seed.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13 (percentile interval).
    """
    rng = np.random.default_rng(0)
    drawn = rng.choice(np.asarray(values, np.float64), (NUM_RESAMPLES, len(values)))
    tail = (100 - CONFIDENCE_PERCENT) / 2
    low, high = np.percentile(drawn.mean(axis=1), (tail, 100 - tail))
    return float(low), float(high)


def judge_claim(claim: PaperClaim, rows: Sequence[Mapping[str, float]]) -> ExperimentVerdict:
    """Return the verdict on a claim.

    Args:
        claim: the claim.
        rows: for each seed, the figures by row. Seeds without the rows of the claim are left out.
    """
    values = [
        seed[claim.row] - (seed[claim.than] if claim.than else 0.0)
        for seed in rows
        if claim.row in seed and (not claim.than or claim.than in seed)
    ]
    if not values:
        return ExperimentVerdict(claim.text, "", NO_RUN, claim.paper)
    sign = "+" if claim.than else ""
    if len(values) < MIN_SEEDS:
        seeds = f"{len(values)} seed{'s' if len(values) > 1 else ''}, {MIN_SEEDS} needed"
        measured = f"{np.mean(values):{sign}.2f} ({seeds})"
        return ExperimentVerdict(claim.text, measured, UNDECIDED, claim.paper)
    low, high = estimate_interval(values)
    measured = f"{np.mean(values):{sign}.2f} ({low:{sign}.2f} to {high:{sign}.2f})"
    return ExperimentVerdict(claim.text, measured, _decide(claim, low, high), claim.paper)


def _decide(claim: PaperClaim, low: float, high: float) -> str:
    """Return the outcome for an interval."""
    lower = -np.inf if claim.at_least is None else claim.at_least
    upper = np.inf if claim.at_most is None else claim.at_most
    if lower <= low and high <= upper:
        return REPRODUCED
    return NOT_REPRODUCED if high < lower or low > upper else UNDECIDED

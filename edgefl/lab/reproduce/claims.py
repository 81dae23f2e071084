"""Decides whether a claim of a paper is reproduced.

A claim is about one figure, or about the difference of two figures of the same seed. With at least five
seeds, Student's t gives a 95% interval of the mean over seeds. The claim is reproduced if the whole interval
is within the limits of the claim, and not reproduced if no part of it is. A difference that is equal to its
limit with all seeds is undecided.

A bootstrap over five seeds would be too short: 84% of such intervals contain the true mean of normally
distributed values.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from edgefl.lab.reproduce.experiment import PaperClaim
from edgefl.lab.reproduce.report import ExperimentVerdict, format_figure

MIN_SEEDS = 5
"""Number of seeds that a verdict needs. With fewer seeds the mean is only reported."""
CONFIDENCE = 0.95

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
UNDECIDED = "undecided"
NO_RUN = "not run"
OUT_OF_REACH = "out of reach (cost)"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, NO_RUN, OUT_OF_REACH)


def estimate_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the mean by Student's t.

    Args:
        values: one value per seed, at least two.
    """
    from scipy.stats import t

    quantile = float(t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1))
    margin = quantile * float(np.std(values, ddof=1)) / len(values) ** 0.5
    mean = float(np.mean(values))
    return mean - margin, mean + margin


SeedRows = Mapping[str, float | None]
"""The figures of one seed by row. None for a figure that is not finite."""


def describe_claim(claim: PaperClaim) -> str:
    """Return the claim in words, with its limits unless they are 0, and whether it was added later."""
    limits = [
        f"{name} {limit:g}"
        for name, limit in (("at least", claim.at_least), ("at most", claim.at_most))
        if limit
    ]
    notes = [*limits, *(["added later"] if claim.added_later else [])]
    return f"{claim.text} ({', '.join(notes)})" if notes else claim.text


def judge_claim(claim: PaperClaim, rows: Sequence[SeedRows]) -> ExperimentVerdict:
    """Return the verdict on a claim.

    Args:
        rows: for each seed, the figures by row. Seeds in which a row of the claim did not run are left out.
            With a figure that is not finite, the claim is undecided.
    """
    line = describe_claim(claim)
    names = [name for name in (claim.row, claim.than) if name]
    seeds = [[seed[name] for name in names] for seed in rows if all(name in seed for name in names)]
    if not seeds:
        return ExperimentVerdict(line=line, measured="", outcome=NO_RUN, paper=claim.paper)
    finite = [[figure for figure in figures if figure is not None] for figures in seeds]
    if missing := sum(len(figures) < len(names) for figures in finite):
        measured = f"{missing} of {len(seeds)} seeds without a finite figure"
        return ExperimentVerdict(line=line, measured=measured, outcome=UNDECIDED, paper=claim.paper)
    values = [figures[0] - sum(figures[1:]) for figures in finite]
    sign = "+" if claim.than else ""
    mean = float(np.mean(values))
    if len(values) < MIN_SEEDS:
        count = f"{len(values)} seed{'s' if len(values) > 1 else ''}, {MIN_SEEDS} needed"
        measured = f"{format_figure(mean, sign)} ({count})"
        return ExperimentVerdict(line=line, measured=measured, outcome=UNDECIDED, paper=claim.paper)
    low, high = estimate_interval(values)
    measured = f"{format_figure(mean, sign)} ({format_figure(low, sign)} to {format_figure(high, sign)})"
    return ExperimentVerdict(
        line=line, measured=measured, outcome=_decide(claim, low, high), paper=claim.paper
    )


def _decide(claim: PaperClaim, low: float, high: float) -> str:
    """Return the outcome for an interval."""
    lower = -np.inf if claim.at_least is None else claim.at_least
    upper = np.inf if claim.at_most is None else claim.at_most
    if claim.than and low == high and low in (lower, upper):
        return UNDECIDED
    if lower <= low and high <= upper:
        return REPRODUCED
    return NOT_REPRODUCED if high < lower or low > upper else UNDECIDED

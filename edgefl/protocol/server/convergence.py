"""Ends the rounds when the accuracy of the clients no longer rises.

`least_rounds` of `[federation]` turns it on. The clients report the accuracy of their current models in each
round. The median over the clients of a round, averaged over five rounds, is a smooth curve. The rounds end
when the last ten values of this curve bring no new maximum, and `least_rounds` rounds were played. Fewer than
half of the clients cannot move a median beyond the accuracies of the others.

The accuracies are part of the server state, so a restarted server takes the same decision. Only rounds of
the phase `federate` count: an algorithm that pretrains or clusters first is not ended before.

Source: Prechelt, Early Stopping - But When?, 1998, for a patience on a smoothed curve.
"""

import logging
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgefl.base.config import FederationConfig
from edgefl.base.types import Scalars, ServerState, StateRecord, Update
from edgefl.base.verdict import SMOOTHED_ROUNDS
from edgefl.learning.algorithms.base import PHASE_FEDERATE, PHASE_PERSONALIZE, Algorithm
from edgefl.protocol.server.spread import summarize_accuracy

LOGGER = logging.getLogger(__name__)

PATIENCE_ROUNDS = 10
"""Number of rounds without a new maximum after which the rounds end."""


@dataclass(frozen=True)
class AccuracyHistory(StateRecord):
    """The accuracy of the rounds so far.

    Attributes:
        by_round: median accuracy by round, from 0 to 1. Rounds without an accuracy are left out.
    """

    by_round: Mapping[int, float] = field(default_factory=dict)


def has_stopped_rising(accuracies: Sequence[float]) -> bool:
    """Return whether the smoothed accuracy had no new maximum for `PATIENCE_ROUNDS` rounds.

    Args:
        accuracies: median accuracy of each round, in order. Rounds without an accuracy are left out.
    """
    means = [
        statistics.fmean(accuracies[end - SMOOTHED_ROUNDS : end])
        for end in range(SMOOTHED_ROUNDS, len(accuracies) + 1)
    ]
    return len(means) > PATIENCE_ROUNDS and max(means[-PATIENCE_ROUNDS:]) <= max(means[:-PATIENCE_ROUNDS])


def with_convergence_check(algorithm: Algorithm, config: FederationConfig) -> Algorithm:
    """Return the algorithm with the check after its `aggregate`. Simulator and aggregator use the same check.

    Args:
        algorithm: the algorithm with all other layers that change `aggregate`.
        config: the federation. With `least_rounds = 0` the algorithm is returned unchanged.
    """
    if not config.least_rounds:
        return algorithm

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        metrics: list[Scalars] = []

        def record_metrics() -> Iterator[Update]:
            for update in updates:
                metrics.append(update.metrics)
                yield update

        after = algorithm.aggregate(state, record_metrics())
        if state.phase != PHASE_FEDERATE:
            return after
        accuracy = summarize_accuracy(metrics).median
        measured = {} if math.isnan(accuracy) else {state.round: accuracy}
        history = {**state.read_record(AccuracyHistory).by_round, **measured}
        after = after.with_record(AccuracyHistory(history))
        if after.phase != PHASE_FEDERATE or state.round < config.least_rounds:
            return after
        if not has_stopped_rising([history[number] for number in sorted(history)]):
            return after
        LOGGER.info(
            f"round {state.round}: the accuracy had no new maximum for {PATIENCE_ROUNDS} rounds, so the "
            f"rounds end before {config.rounds}"
        )
        return replace(after, phase=PHASE_PERSONALIZE)

    return replace(algorithm, aggregate=aggregate)

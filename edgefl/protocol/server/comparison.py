"""Lets devices choose and blend their models by the figures of all devices.

The broadcast of the last round also holds everything that a device needs to make its models, and asks the
device to compare them. The updates of that round report the mean score of each model, and its share in a
blend. The broadcast of the personalization holds the rank and the mean share of each model. See
`edgefl.learning.client.comparison` for the device's part.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from edgefl.base.config import FederationConfig
from edgefl.base.types import Broadcast, ServerState, StateRecord, Update
from edgefl.learning.algorithms.base import PHASE_PERSONALIZE, Algorithm
from edgefl.learning.algorithms.names import (
    BLEND_PREFIX,
    COMPARE_SCALAR,
    RANK_SCALAR_PREFIX,
    SCORE_METRIC_PREFIX,
)
from edgefl.learning.client.selection import COMPARED_MODELS, PREFERRED_ORDER
from edgefl.program.plan.spec import PlanSpec

SCORE_SCALE = 1e6
"""Scores are compared as integers of this scale, so that the order of devices changes no difference."""


def should_compare_models(config: FederationConfig, spec: PlanSpec) -> bool:
    """Return whether devices compare their models in the last round.

    Scores are sent only where accuracies are, see `FederationConfig.reports_accuracy`.
    """
    return config.share_scores and config.reports_accuracy and bool(spec.personalization.get("select"))


@dataclass(frozen=True)
class ModelOrder(StateRecord):
    """The models in the order of the scores of all clients, the best first. Empty before the last round."""

    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class BlendShares(StateRecord):
    """The mean share of each model in the blends of all clients. Empty before the last round."""

    by_model: Mapping[str, float] = field(default_factory=dict)


def with_comparison(algorithm: Algorithm, config: FederationConfig, spec: PlanSpec) -> Algorithm:
    """Return the algorithm with a comparison of models in its last round.

    After the last round the server state holds the order of the models and the shares of blends. The
    algorithm is returned unchanged where devices do not compare their models.

    Args:
        algorithm: the algorithm, without a learner.
    """
    if not should_compare_models(config, spec):
        return algorithm

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        sent = algorithm.broadcast(state, client_id)
        if state.phase == PHASE_PERSONALIZE:
            order = state.read_record(ModelOrder).models
            ranks = {RANK_SCALAR_PREFIX + name: float(index) for index, name in enumerate(order)}
            means = state.read_record(BlendShares).by_model
            shares = {BLEND_PREFIX + name: share for name, share in means.items()}
            return replace(sent, scalars={**sent.scalars, **ranks, **shares})
        if state.round != config.rounds:
            return sent
        last = algorithm.broadcast(replace(state, phase=PHASE_PERSONALIZE), client_id)
        return replace(
            sent,
            models={**last.models, **sent.models},
            scalars={**last.scalars, **sent.scalars, COMPARE_SCALAR: 1.0},
        )

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        reported: list[dict[str, float]] = []
        shares: list[dict[str, float]] = []

        def record_scores() -> Iterator[Update]:
            for update in updates:
                reported.append(read_fractions(update, SCORE_METRIC_PREFIX))
                shares.append(read_fractions(update, BLEND_PREFIX))
                yield update

        after = algorithm.aggregate(state, record_scores())
        if state.round != config.rounds:
            return after
        ranked = after.with_record(ModelOrder(tuple(rank_models(reported))))
        return ranked.with_record(BlendShares(average_shares(shares)))

    return replace(algorithm, broadcast=broadcast, aggregate=aggregate)


def read_fractions(update: Update, prefix: str) -> dict[str, float]:
    """Return the figures that an update reports for its models, from 0 to 1, by model.

    Figures outside this range are clipped. Figures that are not finite are left out.

    Args:
        prefix: the prefix of their metrics.
    """
    figures = {name: update.metrics.get(prefix + name, math.nan) for name in COMPARED_MODELS}
    return {name: min(max(value, 0.0), 1.0) for name, value in figures.items() if math.isfinite(value)}


def average_shares(reported: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean share of each model over all devices, by model. Their sum is 1.

    Each device counts once, whatever number of samples it has. So one of n devices moves no mean by more than
    1/n.

    Args:
        reported: the shares of each device, from 0 to 1, by model. The shares of a device are divided by
            their sum. A device without shares does not count.
    """
    totals = [(shares, math.fsum(shares.values())) for shares in reported]
    parts = [{name: share / total for name, share in shares.items()} for shares, total in totals if total > 0]
    means = {name: math.fsum(part.get(name, 0.0) for part in parts) for name in COMPARED_MODELS}
    return {name: total / len(parts) for name, total in means.items() if total > 0}


def rank_models(reported: Iterable[Mapping[str, float]]) -> list[str]:
    """Return the models sorted by their scores over all devices, highest first.

    The score of a model is the median over devices of its difference from the mean score of the device's
    models. So fewer than half of the devices cannot move it beyond the differences that the others report. A
    model is ranked if at least half of the devices report it. A device that lacks a ranked model does not
    count. Models of equal score keep the order of `PREFERRED_ORDER`.

    Args:
        reported: the scores of each device, from 0 to 1, by model.
    """
    devices = list(reported)
    names = [
        name
        for name in PREFERRED_ORDER
        if 2 * sum(name in scores for scores in devices) >= max(len(devices), 1)
    ]
    whole = [
        [round(SCORE_SCALE * scores[name]) for name in names]
        for scores in devices
        if all(name in scores for name in names)
    ]
    if not whole:
        return []
    medians = {
        name: statistics.median(len(names) * values[i] - sum(values) for values in whole)
        for i, name in enumerate(names)
    }
    return sorted(names, key=lambda name: -medians[name])

"""Lets devices choose their models by the scores of all devices.

The broadcast of the last round also holds everything that a device needs to make its models, and asks the
device to compare them. The updates of that round report the mean score of each model. The broadcast of the
personalization holds the rank of each model. See `edgefl.client.comparison` for the device's part.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from edgefl.algorithms.base import PHASE_PERSONALIZE, Algorithm
from edgefl.algorithms.names import COMPARE_SCALAR, RANK_SCALAR_PREFIX, SCORE_METRIC_PREFIX
from edgefl.client.selection import COMPARED_MODELS, PREFERRED_ORDER
from edgefl.config import FederationConfig
from edgefl.plan.spec import PlanSpec
from edgefl.types import Broadcast, ServerState, StateRecord, Update

SCORE_SCALE = 1e6
"""Scores are compared as integers of this scale, so that the order of devices changes no difference."""


def should_compare_models(config: FederationConfig, spec: PlanSpec) -> bool:
    """Return whether devices compare their models in the last round.

    Scores are sent only where accuracies are, see `FederationConfig.reports_accuracy`.

    Args:
        config: the federation.
        spec: the plan's specification.
    """
    return config.share_scores and config.reports_accuracy and bool(spec.personalization.get("select"))


@dataclass(frozen=True)
class ModelOrder(StateRecord):
    """The models in the order of the scores of all clients, the best first. Empty before the last round."""

    models: tuple[str, ...] = ()


def with_comparison(algorithm: Algorithm, config: FederationConfig, spec: PlanSpec) -> Algorithm:
    """Return the algorithm with a comparison of models in its last round.

    After the last round the server state holds the order of the models. The algorithm is returned unchanged
    where devices do not compare their models.

    Args:
        algorithm: the algorithm, without a learner.
        config: the federation.
        spec: the plan's specification.
    """
    if not should_compare_models(config, spec):
        return algorithm

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        sent = algorithm.broadcast(state, client_id)
        if state.phase == PHASE_PERSONALIZE:
            order = state.read_record(ModelOrder).models
            ranks = {RANK_SCALAR_PREFIX + name: float(index) for index, name in enumerate(order)}
            return replace(sent, scalars={**sent.scalars, **ranks})
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

        def record_scores() -> Iterator[Update]:
            for update in updates:
                reported.append(read_scores(update))
                yield update

        after = algorithm.aggregate(state, record_scores())
        if state.round != config.rounds:
            return after
        return after.with_record(ModelOrder(tuple(rank_models(reported))))

    return replace(algorithm, broadcast=broadcast, aggregate=aggregate)


def read_scores(update: Update) -> dict[str, float]:
    """Return the scores that an update reports, from 0 to 1, by model.

    Scores outside this range are clipped. Scores that are not finite are left out.
    """
    scores = {name: update.metrics.get(SCORE_METRIC_PREFIX + name, math.nan) for name in COMPARED_MODELS}
    return {name: min(max(value, 0.0), 1.0) for name, value in scores.items() if math.isfinite(value)}


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

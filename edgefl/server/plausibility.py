"""Whether a federation can go on from the state that a round made: one finite but absurd update must not ruin
it.

A round is skipped when an array of its new state holds NaN or infinity, or when a model moved too far:

    |w' - w| > 10 (|w| + m) + sqrt(n)

|.| is the L2 norm over all n weights of a model, w the model before the round (zero for a new model), w'
after it, and m the lower median of the norms of the round's updates. The state before the round then stays,
and the next round begins.

The bound is wide on purpose, because it must never stop honest training. A mean of updates moves a model by
no more than the largest update, and m measures what an update of this round is: a step beyond ten times the
model and m together means that training diverged. sqrt(n) is one for each weight: an optimizer at the server
with a rate of up to 1 may leave a model of zeros.

Source: Sun et al., Can You Really Backdoor Federated Learning?, arXiv:1911.07963, bounds the norms of
updates; Andrew et al., Differentially Private Learning with Adaptive Clipping, arXiv:1905.03871, takes the
bound from a quantile of the norms. Fewer than half of the clients cannot move the median.

A client whose own update is beyond the bound is named, and takes part in no later round: else it would have
every round skipped.

Under secure aggregation single updates are not seen: m is 0 and nobody is named. With `[privacy]` only NaN
and infinity count: updates are clipped there, and a rule on their norms would tell of them what the noise
hides.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgefl.algorithms.base import Algorithm
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.types import ServerState, Update, Weights

LOGGER = logging.getLogger(__name__)

STEP_FACTOR = 10.0
_IMPLAUSIBLE_PREFIX = "left-out/"


def measure_norm(weights: Mapping[str, NDArray[np.floating]]) -> float:
    """Return the L2 norm over all arrays, in float64."""
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in weights.values()))


def compute_step_limit(before: Weights | None, after: Weights, median: float) -> float:
    """Return how far a model may move in a round.

    See above. before: None for a new model; median: of the norms of the round's updates.
    """
    size = sum(array.size for array in after.values())
    return STEP_FACTOR * ((measure_norm(before) if before else 0.0) + median) + math.sqrt(size)


def find_problem(before: ServerState, after: ServerState, median: float, *, finite_only: bool = False) -> str:
    """Return why a federation cannot go on from the state after a round, empty when it can."""
    for named in (after.models, after.slots):
        for name, weights in named.items():
            for key, array in weights.items():
                if bad := int(array.size - np.isfinite(array).sum()):
                    return f"{name}/{key} would hold {bad} NaN or infinite values"
    for name, weights in () if finite_only else after.models.items():
        previous = before.models.get(name)
        if previous is weights:
            continue
        if previous is not None and any(
            previous[key].shape != array.shape for key, array in weights.items() if key in previous
        ):
            previous = None
        change = {
            key: array.astype(np.float64) - (previous or {}).get(key, 0.0) for key, array in weights.items()
        }
        step = measure_norm(change)
        limit = compute_step_limit(previous, weights, median)
        if step > limit:
            return f"{name} would move by {step:.3g} (L2 norm), expected {limit:.3g} at most"
    return ""


def check_samples(client_id: str, count: int, max_samples: int) -> None:
    """Raise ConfigError for a client that counts more samples than a federation allows."""
    if count > max_samples:
        raise ConfigError(
            f"{client_id} has {count} samples, expected {max_samples} at most; raise max_samples of "
            f"[federation]"
        )


def list_implausible_clients(state: ServerState) -> frozenset[str]:
    """Return the clients whose update was absurd in an earlier round. They take part in no later one."""
    return frozenset(
        key.removeprefix(_IMPLAUSIBLE_PREFIX) for key in state.scalars if key.startswith(_IMPLAUSIBLE_PREFIX)
    )


def with_plausibility_check(algorithm: Algorithm, config: FederationConfig) -> Algorithm:
    """Return the algorithm with the check after its `aggregate`. Simulator and aggregator use the same one.

    Args:
        algorithm: as the round plays it, with noise or sums already in its `aggregate`.
        config: says whether single updates are seen.
    """
    sees_updates = not (config.privacy.is_on or config.privacy.secure_aggregation)

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        norms: dict[str, float] = {}

        def record_norms() -> Iterator[Update]:
            for update in updates:
                check_samples(update.client_id, update.num_samples, config.max_samples)
                if sees_updates:
                    client_norm = math.sqrt(
                        sum(measure_norm(deltas) ** 2 for deltas in update.deltas.values())
                    )
                    norms[update.client_id] = max(client_norm, norms.get(update.client_id, 0.0))
                yield update

        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below
            after = algorithm.aggregate(state, record_norms())
        median = sorted(norms.values())[(len(norms) - 1) // 2] if norms else 0.0
        earlier_marks = {
            key: value for key, value in state.scalars.items() if key.startswith(_IMPLAUSIBLE_PREFIX)
        }
        problem = find_problem(state, after, median, finite_only=config.privacy.is_on)
        if not problem:
            return replace(after, scalars={**after.scalars, **earlier_marks}) if earlier_marks else after
        limit = max(
            (compute_step_limit(model, model, median) for model in state.models.values()), default=math.inf
        )
        implausible = sorted(
            client_id for client_id, client_norm in norms.items() if not client_norm <= limit
        )
        line = describe_skipped_round(
            state.round, problem, {client_id: norms[client_id] for client_id in implausible}
        )
        LOGGER.warning(line, extra={"round": state.round})
        new_marks = {f"{_IMPLAUSIBLE_PREFIX}{client_id}": float(state.round) for client_id in implausible}
        return replace(state, round=state.round + 1, scalars={**state.scalars, **new_marks})

    return replace(algorithm, aggregate=aggregate)


def describe_skipped_round(round: int, problem: str, implausible: Mapping[str, float]) -> str:
    """Return the line about a skipped round."""
    if not implausible:
        return (
            f"round {round}: skipped, the models stay as they were: {problem}; lower the learning rate, or "
            "use a robust mean"
        )
    named = ", ".join(
        f"{client_id} (norm {client_norm:.3g})" for client_id, client_norm in implausible.items()
    )
    return (
        f"round {round}: skipped, the models stay as they were: {problem}. Left out from now on: {named}; "
        "look at their logs and data"
    )

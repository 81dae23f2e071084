"""Skips a round whose new state is implausible: one finite but absurd update must not ruin a federation.

A round is skipped when an array of its new state holds NaN or infinity, or when a model moved too far:

    |w' - w| > 10 (|w| + m) + sqrt(n)

|.| is the L2 norm over all n weights of a model. w is the model before the round, or zero for a new model.
w' is the model after the round. m is the lower median of the norms of the round's updates. When a round is
skipped, the state before it stays and the next round begins.

The bound is wide on purpose, because it must never stop honest training. A mean of updates moves a model by
no more than the largest update, and m measures the size of an update in this round. A step beyond ten times
the model and m together means that training diverged. sqrt(n) is one for each weight. A server optimizer with
a rate of up to 1 may need it to leave a model of zeros.

A client whose own update is beyond the bound is named and takes part in no later round. Otherwise it would
make the server skip every round.

Under secure aggregation single updates are not visible. m is then 0 and no client is named. With `[privacy]`
only NaN and infinity count. Updates are clipped there, and a rule on their norms would reveal what the noise
hides.

Source: Sun et al., Can You Really Backdoor Federated Learning?, arXiv:1911.07963, bounds the norms of
updates. Andrew et al., Differentially Private Learning with Adaptive Clipping, arXiv:1905.03871, takes the
bound from a quantile of the norms. Fewer than half of the clients cannot move the median.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.storage.records import iterate_arrays
from edgefl.base.types import ServerState, StateRecord, Update, Weights
from edgefl.learning.algorithms.base import Algorithm

LOGGER = logging.getLogger(__name__)

STEP_FACTOR = 10.0


@dataclass(frozen=True)
class LeftOutClients(StateRecord):
    """The clients that take part in no later round.

    Attributes:
        rounds: the round in which each client was left out, by client id.
    """

    rounds: Mapping[str, int] = field(default_factory=dict)


def measure_norm(weights: Mapping[str, NDArray[np.floating]]) -> float:
    """Return the L2 norm over all arrays, computed in float64.

    Args:
        weights: arrays of any shape and floating dtype, by name.
    """
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in weights.values()))


def compute_step_limit(before: Weights | None, after: Weights, median: float) -> float:
    """Return how far a model may move in a round, as an L2 norm. The module gives the formula.

    Args:
        before: the model before the round, None for a new model.
        after: the model after the round.
        median: lower median of the L2 norms of the round's updates.
    """
    size = sum(array.size for array in after.values())
    return STEP_FACTOR * ((measure_norm(before) if before else 0.0) + median) + math.sqrt(size)


def find_problem(before: ServerState, after: ServerState, median: float, *, finite_only: bool = False) -> str:
    """Return why a federation cannot continue from the state after a round.

    Args:
        before: the server state before the round.
        after: the server state after the round.
        median: lower median of the L2 norms of the round's updates.
        finite_only: check for NaN and infinity only.

    Returns:
        The reason, or an empty string when the state is plausible.
    """
    for name, array in (*iterate_arrays(after.models), *iterate_arrays(after.records)):
        if bad := int(array.size - np.isfinite(array).sum()):
            return f"{name} would hold {bad} NaN or infinite values"
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
    """Check that a client does not report more samples than a federation allows.

    Args:
        client_id: the client, for the error.
        max_samples: the maximum, `max_samples` of `[federation]`.

    Raises:
        ConfigError: the client reports more samples.
    """
    if count > max_samples:
        raise ConfigError(
            f"{client_id} has {count} samples, expected {max_samples} at most; raise max_samples of "
            f"[federation]"
        )


def list_left_out_clients(state: ServerState) -> frozenset[str]:
    """Return the clients that are left out since an earlier round, because of an update that cannot be used.

    They take part in no later round. They still make their models after the last round.
    """
    return frozenset(read_left_out_rounds(state))


def read_left_out_rounds(state: ServerState) -> dict[str, int]:
    """Return the round in which each client was left out, by client id."""
    return dict(sorted(state.read_record(LeftOutClients).rounds.items()))


def mark_left_out(state: ServerState, clients: Iterable[str], round: int) -> ServerState:
    """Return the state in which clients are left out of all later rounds.

    Args:
        clients: ids of the clients.
        round: number of the round whose updates cannot be used.
    """
    marks = dict.fromkeys(clients, round)
    before = state.read_record(LeftOutClients).rounds
    return state.with_record(LeftOutClients({**before, **marks})) if marks else state


def with_plausibility_check(algorithm: Algorithm, config: FederationConfig) -> Algorithm:
    """Return the algorithm with the check after its `aggregate`. Simulator and aggregator use the same check.

    `aggregate` of the returned algorithm raises ConfigError when a client reports too many samples, see
    `check_samples`.

    Args:
        algorithm: the algorithm, with noise or masked sums already in its `aggregate`.
        config: the federation, which decides whether single updates are visible.
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

        with np.errstate(over="ignore", invalid="ignore"):  # `find_problem` reports an overflow
            after = algorithm.aggregate(state, record_norms())
        median = sorted(norms.values())[(len(norms) - 1) // 2] if norms else 0.0
        earlier_marks = state.read_record(LeftOutClients)
        problem = find_problem(state, after, median, finite_only=config.privacy.is_on)
        if not problem:
            return after.with_record(earlier_marks) if earlier_marks.rounds else after
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
        return mark_left_out(replace(state, round=state.round + 1), implausible, state.round)

    return replace(algorithm, aggregate=aggregate)


def describe_skipped_round(round: int, problem: str, implausible: Mapping[str, float]) -> str:
    """Return the log line about a skipped round.

    Args:
        problem: why it is skipped, see `find_problem`.
        implausible: the L2 norms of the implausible updates, by client.
    """
    if not implausible:
        return (
            f"round {round}: skipped, the models do not change: {problem}; lower the learning rate, or "
            "use a robust mean"
        )
    named = ", ".join(
        f"{client_id} (norm {client_norm:.3g})" for client_id, client_norm in implausible.items()
    )
    return (
        f"round {round}: skipped, the models do not change: {problem}. Left out from now on: {named}; "
        "look at their logs and data"
    )

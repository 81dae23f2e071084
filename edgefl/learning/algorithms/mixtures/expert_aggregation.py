"""The server's side of FedMix: the experts in each broadcast, their mean deltas, and the optimizer step.

Source: Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, equation 8, with p(s|k) proportional
to q(k|s) N_s over the round's updates. Pruning: appendix I.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from edgefl.base.types import Broadcast, Scalars, ServerState, StateRecord, Update, Weights
from edgefl.learning.algorithms.arithmetic import average_by_group
from edgefl.learning.algorithms.mixtures import responsibility as rs
from edgefl.learning.algorithms.names import name_expert
from edgefl.learning.algorithms.server_optimizer import OptimizerSlots, step_optimizer

SERVER_PRUNE_FACTOR = 0.9
"""The server prunes at this share of the client's threshold.

A client therefore does not lose an expert near the threshold at once.
"""


def encode_responsibility(responsibility: rs.Real) -> dict[str, float]:
    """Return q(z|s) as the metrics `q/0`, `q/1`, ... of an update.

    Args:
        responsibility: q(z|s), shape (experts,), float64.
    """
    return {f"q/{k}": float(value) for k, value in enumerate(responsibility)}


def decode_responsibility(metrics: Scalars, num_experts: int) -> rs.Real:
    """Return q(z|s) from the metrics of an update.

    Args:
        metrics: the metrics of the update, with q(z|s) as `q/0`, `q/1`, ... (`encode_responsibility`).
        num_experts: number of experts, K.

    Returns:
        q(z|s), shape (experts,), float64, scaled to sum to 1. Uniform if the metrics hold no distribution.
    """
    values = np.array([metrics.get(f"q/{k}", np.nan) for k in range(num_experts)])
    fits = np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0
    return values / values.sum() if fits else np.full(num_experts, 1 / num_experts)


@dataclass(frozen=True)
class Responsibilities(StateRecord):
    """The q(z|s) that each client reported last.

    Attributes:
        by_client: q(z|s) for each expert, by client id.
    """

    by_client: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def load_responsibility(state: ServerState, client_id: str, num_experts: int) -> rs.Real | None:
    """Return the q(z|s) that a client reported last.

    Args:
        num_experts: number of experts, K.

    Returns:
        q(z|s), shape (experts,), float64. None for a client that has not taken part in a round.
    """
    reported = state.read_record(Responsibilities).by_client.get(client_id)
    return None if reported is None or len(reported) != num_experts else np.array(reported)


def make_broadcast(state: ServerState, client_id: str, num_experts: int, threshold: float) -> Broadcast:
    """Return the broadcast with all models except the client's pruned experts.

    An expert is pruned if the client last reported a responsibility below `SERVER_PRUNE_FACTOR` times the
    threshold.

    Args:
        state: the server state before the round.
        client_id: the receiving client.
        num_experts: number of experts, K.
        threshold: the client's threshold of q(k|s), eta / K.
    """
    last = load_responsibility(state, client_id, num_experts)
    sent = range(num_experts) if last is None else rs.filter_experts(last, SERVER_PRUNE_FACTOR * threshold)
    left_out = {name_expert(k) for k in range(num_experts) if k not in sent}
    return Broadcast(
        round=state.round,
        phase=state.phase,
        models={name: model for name, model in state.models.items() if name not in left_out},
    )


def choose_experts(
    models: Mapping[int, Weights], responsibility: rs.Real, threshold: float
) -> tuple[int, ...]:
    """Return the experts that a client uses.

    These are the received experts with q(k|s) of at least the threshold. If there is none, it is the received
    expert with the highest q(k|s).

    Args:
        models: the received experts by index.
        responsibility: q(z|s), shape (experts,), float64.
        threshold: minimum q(k|s).
    """
    left = tuple(k for k in rs.filter_experts(responsibility, threshold) if k in models)
    return left or (max(models, key=lambda k: responsibility[k]),)


def average_experts(
    state: ServerState, updates: Iterable[Update], num_experts: int, threshold: float
) -> tuple[dict[str, Weights], ServerState]:
    """Return the mean delta of each model in the updates, and the state with the reported responsibilities.

    The weights of the mean are p(s|k) for experts and N_s for other models. A client's experts below the
    threshold have no weight. The responsibilities of its other experts are scaled to sum to 1.

    Args:
        state: the server state before the round.
        updates: the round's updates, read once and one at a time.
        num_experts: number of experts, K.
        threshold: minimum q(k|s).

    Source: Reisser et al., arXiv:2107.06724, equation 8 and the renormalisation of algorithm 2.
    """
    reported = dict(state.read_record(Responsibilities).by_client)

    def weigh_deltas() -> Iterator[tuple[str, Weights, float]]:
        for update in updates:
            responsibility = decode_responsibility(update.metrics, num_experts)
            reported[update.client_id] = tuple(responsibility.tolist())
            pruned = rs.prune_experts(responsibility, rs.filter_experts(responsibility, threshold))
            weight = {name_expert(k): float(value) for k, value in enumerate(pruned)}
            yield from (
                (name, delta, update.num_samples * weight.get(name, 1.0))
                for name, delta in update.deltas.items()
            )

    means = average_by_group(weigh_deltas())
    return means, state.with_record(Responsibilities(reported))


def step_models(
    state: ServerState,
    means: Mapping[str, Weights],
    learning_rate: float,
    model_rates: Mapping[str, float] = {},
    optimizer: str = "adam",
) -> ServerState:
    """Return the next round's state after an optimizer step on each model that has a mean delta.

    A model without a mean delta is not changed.

    Args:
        state: the server state before the round.
        means: mean delta of each trained model, by the model's name.
        learning_rate: step size of the server optimizer.
        model_rates: step sizes of models with another learning rate, by the model's name.
        optimizer: one of `server_optimizer.OPTIMIZERS`.

    Raises:
        ConfigError: as in `server_optimizer.check_optimizer`.
    """
    models = dict(state.models)
    slots = dict(state.read_record(OptimizerSlots).by_model)
    for name, delta in means.items():
        models[name], slots[name] = step_optimizer(
            optimizer,
            {"learning_rate": model_rates.get(name, learning_rate)},
            models[name],
            delta,
            slots.get(name, {}),
        )
    return replace(state, round=state.round + 1, models=models).with_record(OptimizerSlots(slots))

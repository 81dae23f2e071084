"""The server's side of FedMix: which experts a client is sent, the mean delta of each, a step of Adam on it.

Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, equation 8, p(s|k) proportional to q(k|s) N_s
over the round's updates, and appendix I, pruning.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from edgefl.algorithms.arithmetic import average_by_group
from edgefl.algorithms.mixtures import responsibility as rs
from edgefl.algorithms.names import name_expert
from edgefl.algorithms.server_optimizer import step_optimizer
from edgefl.types import Broadcast, Scalars, ServerState, Update, Weights

SERVER_PRUNE_FACTOR = 0.9
"""An expert is pruned at the server later than at the client, so that one near the threshold is not lost at
once.
"""


def encode_responsibility(responsibility: rs.Real) -> dict[str, float]:
    """Return q(z|s) as metrics of an update: `q/0`, `q/1`, ..."""
    return {f"q/{k}": float(value) for k, value in enumerate(responsibility)}


def decode_responsibility(metrics: Scalars, num_experts: int) -> rs.Real:
    """Return q(z|s) out of an update's metrics: float64[experts], uniform where it is missing or no
    distribution.
    """
    values = np.array([metrics.get(f"q/{k}", np.nan) for k in range(num_experts)])
    fits = np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0
    return values / values.sum() if fits else np.full(num_experts, 1 / num_experts)


def load_responsibility(state: ServerState, client_id: str, num_experts: int) -> rs.Real | None:
    """Return the q(z|s) that a client told last, float64[experts].

    None for one that took part in no round.
    """
    values = np.array([state.scalars.get(f"q/{client_id}/{k}", np.nan) for k in range(num_experts)])
    return values if np.isfinite(values).all() else None


def make_broadcast(state: ServerState, client_id: str, num_experts: int, threshold: float) -> Broadcast:
    """Return all models for this client but the experts that it last told to have less than .9 of the
    threshold of.
    """
    last = load_responsibility(state, client_id, num_experts)
    sent = range(num_experts) if last is None else rs.filter_experts(last, SERVER_PRUNE_FACTOR * threshold)
    left_out = {name_expert(k) for k in range(num_experts) if k not in sent}
    return Broadcast(
        state.round,
        state.phase,
        {name: model for name, model in state.models.items() if name not in left_out},
    )


def choose_experts(
    models: Mapping[int, Weights], responsibility: rs.Real, threshold: float
) -> tuple[int, ...]:
    """Return the experts that a client uses: those received with q(k|s) of at least the threshold, or else
    the likeliest received.
    """
    left = tuple(k for k in rs.filter_experts(responsibility, threshold) if k in models)
    return left or (max(models, key=lambda k: responsibility[k]),)


def average_experts(
    state: ServerState, updates: Iterable[Update], num_experts: int, threshold: float
) -> tuple[dict[str, Weights], ServerState]:
    """Return the mean delta of each model that came back, experts' by p(s|k), others' by N_s, and the state
    with what was told.

    A client's experts below the threshold count for nothing, the others for all of it (the renormalisation of
    algorithm 2).
    """
    scalars = dict(state.scalars)

    def weigh_deltas() -> Iterator[tuple[str, Weights, float]]:
        for update in updates:
            responsibility = decode_responsibility(update.metrics, num_experts)
            scalars.update(
                {f"q/{update.client_id}/{k}": float(value) for k, value in enumerate(responsibility)}
            )
            pruned = rs.prune_experts(responsibility, rs.filter_experts(responsibility, threshold))
            weight = {name_expert(k): float(value) for k, value in enumerate(pruned)}
            yield from (
                (name, delta, update.num_samples * weight.get(name, 1.0))
                for name, delta in update.deltas.items()
            )

    means = average_by_group(weigh_deltas())
    return means, replace(state, scalars=scalars)


def step_models(
    state: ServerState,
    means: Mapping[str, Weights],
    learning_rate: float,
    model_rates: Mapping[str, float] = {},
    optimizer: str = "adam",
) -> ServerState:
    """Return the next round's state after the optimizer's step on each model that has a mean delta.

    One that nobody trained stays.

    own_rates: learning rates of models that have one of their own, by name.
    """
    models = dict(state.models)
    slots = dict(state.slots)
    for name, delta in means.items():
        models[name], slots[name] = step_optimizer(
            optimizer,
            {"learning_rate": model_rates.get(name, learning_rate)},
            models[name],
            delta,
            slots.get(name, {}),
        )
    return replace(state, round=state.round + 1, models=models, slots=slots)

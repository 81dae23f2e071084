"""Federated averaging of a part of the model; the rest is each client's own and stays on its device.

The server decides once, by name, what is own. It broadcasts the shared part as `global` and the own part's
first values as `start`; these never change, so they cross the wire once for each client. An update holds the
shared part only.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.names import ALONE, FEDERATED, GLOBAL
from edgefl.algorithms.papers.fedavg import FedAvgOptions, fedavg
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner
from edgefl.types import Array, Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights

START = "start"


def partial_sharing(
    learner: Learner | None,
    name: str,
    choose_own: Callable[[Weights], Collection[str]],
    options: FedAvgOptions,
) -> Algorithm:
    """Return FedAvg of all weights but those that `choose_own` names.

    The mixture is the shared part with the client's own. A client without an own part, since it never trained
    or lost its state, trains the whole for one round's epochs and keeps that. Raises ConfigError at `init`
    when nothing or all is own.
    """
    base = fedavg(learner, options)
    defence = options.defence

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        own = set(choose_own(weights))
        if not own or len(own) == len(weights):
            raise ConfigError(
                f"{name}: {len(own)} of {len(weights)} weights would be each client's own, expected some and "
                "not all"
            )
        state = base.init(weights, rng)
        shared = {key: array for key, array in weights.items() if key not in own}
        return replace(
            state,
            models={
                **state.models,
                GLOBAL: shared,
                START: {key: weights[key] for key in weights if key in own},
            },
        )

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        sent = base.broadcast(state, client_id)
        return replace(sent, models={**sent.models, START: state.models[START]})

    def whole(broadcast: Broadcast, state: ClientState) -> dict[str, Array]:
        start = broadcast.models[START]
        return {
            **start,
            **{key: array for key, array in state.arrays.items() if key in start},
            **broadcast.models[GLOBAL],
        }

    def trained(
        received: Weights, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[dict[str, Array], Update]:
        """Return the weights after a round's training, and the update as it is before any defence."""
        alone = Broadcast(ALONE, "", {GLOBAL: received})
        update, _ = base.local_update(alone, ClientState(), shard, client_id, rng)
        return {
            key: np.asarray(received[key] + delta, np.float32) for key, delta in update.deltas[GLOBAL].items()
        }, update

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        end, update = trained(whole(broadcast, state), shard, client_id, rng)
        shared = {key: update.deltas[GLOBAL][key] for key in broadcast.models[GLOBAL]}
        moving = {spec.name for spec in learner.spec.signature("train").trained}
        sent = replace(update, round=broadcast.round, deltas={GLOBAL: defence.apply(shared, moving, rng)})
        return sent, replace(state, arrays={key: end[key] for key in broadcast.models[START]})

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        model = whole(broadcast, state)
        peers = {FEDERATED: Peer("predict", {**broadcast.models[START], **broadcast.models[GLOBAL]})}
        if any(key in state.arrays for key in broadcast.models[START]):
            return Mixture(model, peers), state
        end, _ = trained(model, shard, "", rng)
        return Mixture(end, peers), replace(state, arrays={key: end[key] for key in broadcast.models[START]})

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        return Peer("predict", whole(broadcast, state))

    return replace(
        base,
        name=name,
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        personalize=personalize,
        current=current,
    )

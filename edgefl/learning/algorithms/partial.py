"""Federated averaging of a part of the model. The other weights are personal and stay on each device.

The server decides once, by name, which weights are personal. It broadcasts the shared part as `global` and
the initial values of the personal part as `start`. The latter never change, so each client downloads them
only once. An update holds only the shared part.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.options import suggest_nearest
from edgefl.base.types import (
    Array,
    Broadcast,
    ClientState,
    Mixture,
    Peer,
    ServerState,
    Shard,
    Update,
    Weights,
)
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.names import FEDERATED_MODEL, GLOBAL, LOCAL_ROUND, extract_layer
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, fedavg
from edgefl.learning.algorithms.update_sanitization import split_comma_list
from edgefl.program.learner.base import Learner

START_MODEL = "start"


def select_local_weights(weights: Weights, layers: str, option: str = "local_layers") -> list[str]:
    """Return the names of the weights in these layers.

    Args:
        weights: the weights of the model, in the plan's order.
        layers: layers or prefixes of layers, separated by commas. Empty selects the first layer.
        option: name of the option that holds the layers, for the error.

    Raises:
        ConfigError: an entry is not a layer of the model.
    """
    chosen = split_comma_list(layers) or (extract_layer(next(iter(weights))),)
    for layer in chosen:
        if not any(_is_in_layer(name, layer) for name in weights):
            model_layers = list(dict.fromkeys(extract_layer(name) for name in weights))
            raise ConfigError(
                f"{option} has {layer!r}, which is no layer of the model; "
                f"{suggest_nearest(layer, model_layers)}"
            )
    return [name for name in weights if any(_is_in_layer(name, layer) for layer in chosen)]


def _is_in_layer(name: str, layer: str) -> bool:
    return name.startswith(f"{layer}/")


def make_partial_sharing(
    learner: Learner | None,
    name: str,
    choose_personal: Callable[[Weights], Collection[str]],
    options: FedAvgOptions,
) -> Algorithm:
    """Return FedAvg of all weights except the personal ones.

    The mixture is the shared part with the client's personal part. A client has no personal part if it has
    never trained or lost its state. It then trains the whole model for one round's epochs and uses that.

    Args:
        learner: runs the plan. The aggregator passes None.
        name: name of the algorithm.
        choose_personal: returns the names of the personal weights.
        options: the options of FedAvg.

    Raises:
        ConfigError: as in `fedavg`. `init` raises it if no weight or all weights are personal.
    """
    base = fedavg(learner, options)
    sanitizer = options.sanitizer

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        personal = set(choose_personal(weights))
        if not personal or len(personal) == len(weights):
            raise ConfigError(
                f"{name}: {len(personal)} of {len(weights)} weights would be personal, expected some but "
                "not all"
            )
        state = base.init(weights, rng)
        shared = {key: array for key, array in weights.items() if key not in personal}
        return replace(
            state,
            models={
                **state.models,
                GLOBAL: shared,
                START_MODEL: {key: weights[key] for key in weights if key in personal},
            },
        )

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        sent = base.broadcast(state, client_id)
        return replace(sent, models={**sent.models, START_MODEL: state.models[START_MODEL]})

    def assemble_model(broadcast: Broadcast, state: ClientState) -> dict[str, Array]:
        start = broadcast.models[START_MODEL]
        return {
            **start,
            **{key: array for key, array in state.arrays.items() if key in start},
            **broadcast.models[GLOBAL],
        }

    def train_model(
        received: Weights, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[dict[str, Array], Update]:
        """Return the weights after a round's training, and the update before its sanitization."""
        local_broadcast = Broadcast(round=LOCAL_ROUND, phase="", models={GLOBAL: received})
        update, _ = base.local_update(local_broadcast, ClientState(), shard, client_id, rng)
        return {
            key: np.asarray(received[key] + delta, np.float32) for key, delta in update.deltas[GLOBAL].items()
        }, update

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        trained, update = train_model(assemble_model(broadcast, state), shard, client_id, rng)
        shared = {key: update.deltas[GLOBAL][key] for key in broadcast.models[GLOBAL]}
        trained_names = {spec.name for spec in learner.spec.find_signature("train").trained}
        sent = replace(
            update, round=broadcast.round, deltas={GLOBAL: sanitizer.apply(shared, trained_names, rng)}
        )
        return sent, replace(state, arrays={key: trained[key] for key in broadcast.models[START_MODEL]})

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        model = assemble_model(broadcast, state)
        peers = {
            FEDERATED_MODEL: Peer("predict", {**broadcast.models[START_MODEL], **broadcast.models[GLOBAL]})
        }
        if any(key in state.arrays for key in broadcast.models[START_MODEL]):
            return Mixture(weights=model, peers=peers), state
        trained, _ = train_model(model, shard, "", rng)
        return Mixture(weights=trained, peers=peers), replace(
            state, arrays={key: trained[key] for key in broadcast.models[START_MODEL]}
        )

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        return Peer("predict", assemble_model(broadcast, state))

    return replace(
        base,
        name=name,
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        personalize=personalize,
        current=current,
    )

"""FedRep: all clients learn one representation, and each client learns its own head on it.

The trunk of the model is shared, and the head is personal. In each round, a client first trains its head on
the features of the received trunk, which does not change. Then it trains the trunk below the new head, which
does not change. The client sends only the delta of the trunk. After the rounds, it trains its head once more
on the last trunk.

Four things differ from the paper:

- The head is the head of the plan, which is all dense layers at the end of the model. The paper's head is the
  last dense layer.
- While the head trains, the trunk computes features in inference mode, so it has neither dropout nor new
  batch statistics. Without augmentation a client computes the features once in each round.
- The mean of the trunks is weighted by the number of samples. The paper assumes clients of the same size.
- All heads start from the same initial values, which the server sends once.

Communication cost: down the trunk, and once the initial values of the head. Up the delta of the trunk.

Source: Collins, Hassani, Mokhtari and Shakkottai, Exploiting Shared Representations for Personalized
Federated Learning, ICML 2021, arXiv:2102.07078, algorithm 1.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.types import Broadcast, ClientState, Mixture, Shard, Update, Weights
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import GLOBAL, extract_layer, find_head_weights
from edgefl.learning.algorithms.options import as_sgd_hyper, check_count
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives
from edgefl.learning.algorithms.partial import START_MODEL, make_partial_sharing, select_local_weights
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective


@dataclass(frozen=True)
class FedRepOptions(FedAvgOptions):
    """Options of FedAvg, whose training trains only the trunk here, and of the head.

    Raises:
        ConfigError: head_epochs is below 1, or as in `FedAvgOptions`.

    Attributes:
        head_epochs: epochs of the head in a round, before the `epochs` of the trunk, and after the rounds.
        head_learning_rate: step size of the head's SGD. Momentum, weight decay and batch size are those of
            the trunk.
        head_layers: layers of the head, or prefixes of them, separated by commas. Empty: the last dense
            layers.
    """

    head_epochs: int = 10
    head_learning_rate: float = 0.01
    head_layers: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("head_epochs", self.head_epochs)


def select_head(weights: Weights, layers: str) -> list[str]:
    """Return the names of the head's weights.

    Args:
        weights: the weights of the model, in the plan's order.
        layers: the option head_layers.

    Raises:
        ConfigError: an entry of head_layers is not a layer of the model.
    """
    return select_local_weights(weights, layers, "head_layers") if layers else find_head_weights(weights)


def fedrep(learner: Learner | None, options: FedRepOptions) -> Algorithm:
    """Return FedAvg of the trunk, before which each client trains its own head.

    The mixture is the last trunk under the client's head. A client that has no head, because it never trained
    or lost its state, starts from the initial head.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: as in `fedavg`. `init` raises it if a layer does not exist, or no weight or all weights
            belong to the head.

    Source: Collins et al., arXiv:2102.07078, algorithm 1.
    """
    base = make_partial_sharing(
        learner, "fedrep", lambda weights: select_head(weights, options.head_layers), options
    )
    hyper = {**as_sgd_hyper(options), "learning_rate": options.head_learning_rate}

    def train_head(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> ClientState:
        assert learner is not None
        start = broadcast.models[START_MODEL]
        head = {name: state.arrays.get(name, array) for name, array in start.items()}
        trunk = broadcast.models[GLOBAL]
        data = {"x": shard.x_train}
        if not learner.spec.augmentation:
            data = {"features": learner.predict("features", trunk, data)}
        trained, _ = learner.fit(
            "train_head",
            {**trunk, **head},
            data,
            shard.y_train,
            epochs=options.head_epochs,
            rng=rng,
            hyper=hyper,
        )
        return replace(state, arrays={**head, **trained})

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        state = train_head(broadcast, state, shard, rng)
        return base.local_update(broadcast, state, shard, client_id, rng)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        return base.personalize(broadcast, train_head(broadcast, state, shard, rng), shard, rng)

    return replace(base, local_update=local_update, personalize=personalize)


def train_trunk(network: "Network", objective: "Objective") -> "Objective":
    """Return the objective with the head frozen, so that it trains only the trunk.

    Args:
        objective: an objective that trains the whole model, of `edgefl.program.compiler.objective.classify`.
    """
    head = tuple(spec for spec in objective.trained if spec.name in network.head_names)
    return replace(
        objective,
        trained=tuple(spec for spec in objective.trained if spec not in head),
        frozen=(*objective.frozen, *head),
    )


def build_fedrep_objectives(network: "Network", options: FedRepOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, whose `train` trains the trunk, `features` and `train_head`.

    With an augmentation, the head trains on samples, and each step computes the features of its samples.

    Raises:
        ConfigError: the model has no head or no trunk to train, or head_layers are not the model's head.

    Source: Collins et al., arXiv:2102.07078, algorithm 1.
    """
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.optimizer import sgd

    _check_split(network, options.head_layers)
    train, *others = build_fedavg_objectives(network, options)
    optimizer = sgd(options.head_learning_rate, momentum=options.momentum, weight_decay=options.weight_decay)
    make_head = of.train_head_on_samples if network.is_augmented else of.train_head
    return (
        train_trunk(network, train),
        *others,
        of.extract_features(network, of.PREDICT_BATCH),
        make_head(network, options.batch_size, optimizer),
    )


def _check_split(network: "Network", layers: str) -> None:
    if not network.head_names:
        raise ConfigError(
            "fedrep trains a personal head, but the model has no dense layer at its end; end the model with "
            "Dense, or use lg-fedavg"
        )
    if not set(network.trunk_names) & set(network.trainable):
        raise ConfigError(
            f"fedrep shares the layers before the head, but none of the {len(network.trunk_names)} weights "
            "before the head is trained; use a model with trained layers before its last dense layers, or "
            "use pfl-ft"
        )
    selected = select_head(network.read_weights(), layers)
    if set(selected) != set(network.head_names):
        head = ",".join(dict.fromkeys(extract_layer(name) for name in network.head_names))
        raise ConfigError(
            f"head_layers is {layers!r}, which selects {', '.join(selected) or 'no weight'}, expected all "
            f"dense layers at the end of the model; set head_layers = {head!r}"
        )


ENTRIES = {
    "fedrep": Entry(
        options=FedRepOptions,
        factory=fedrep,
        objectives=build_fedrep_objectives,
        source="Collins et al., arXiv:2102.07078",
    )
}

"""FedAvg, federated averaging.

Client k trains E epochs of SGD and returns w_k. The server takes the mean weighted by the number of samples,
w <- w + sum_k n_k / n (w_k - w).

Three extensions are off by default. The mean may be a robust one (`edgefl.learning.algorithms.robust`). The
server may use the mean as a gradient (`edgefl.learning.algorithms.server_optimizer`). A device may change its
delta before it sends it (`edgefl.learning.algorithms.update_sanitization`).

Communication cost: down one model, up one delta and one count.

Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS
2017, algorithm 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgefl.base.types import Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights
from edgefl.learning.algorithms import robust
from edgefl.learning.algorithms import server_optimizer as server
from edgefl.learning.algorithms.arithmetic import subtract
from edgefl.learning.algorithms.base import PHASE_FEDERATE, Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import (
    FEDERATED_MODEL,
    GLOBAL,
    LOCAL_ROUND,
    RECEIVED_PREFIX,
    with_prefix,
)
from edgefl.learning.algorithms.options import SGDOptions, TrainingOptions, as_sgd_hyper
from edgefl.learning.algorithms.server_optimizer import OptimizerSlots
from edgefl.learning.algorithms.update_sanitization import UpdateSanitizer, split_comma_list
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective


@dataclass(frozen=True)
class FedAvgOptions(TrainingOptions):
    """Options of FedAvg.

    Raises:
        ConfigError: the mean or the server optimizer is unknown, or an option is out of range.

    Attributes:
        mean: weighted (by samples), trimmed, median or krum. All except weighted count each client once and
            keep a round's deltas in memory.
        trim: share of the clients cut off at either end of each value, with mean = "trimmed".
        krum_faults: number of clients that may be hostile, f, with mean = "krum". A round with fewer than 2 f
            + 3 updates changes no model and is counted in the state's scalars.
        krum_keep: number of deltas with the lowest scores that are averaged, with mean = "krum".
        clip_norm: maximum L2 norm of a delta at the server. 0: no limit.
        server_optimizer: none, momentum, adam or yogi.
        server_learning_rate: step size of the server optimizer. 0: 1 for none and momentum, .001 for adam and
            yogi.
        server_beta1: decay of the server optimizer's momentum.
        server_beta2: decay of the server optimizer's velocity.
        server_epsilon: added to the root of the server optimizer's velocity.
        clip_update: maximum L2 norm of a delta, to which the device scales it down. 0: no limit.
        noise_multiplier: standard deviation of the Gaussian noise that the device adds, as a multiple of
            clip_update. 0: no noise.
        withhold: suffixes of the names of weights whose delta is sent as zero, separated by commas. These
            weights keep their broadcast values.
    """

    mean: str = "weighted"
    trim: float = 0.1
    krum_faults: int = 1
    krum_keep: int = 1
    clip_norm: float = 0.0
    server_optimizer: str = "none"
    server_learning_rate: float = 0.0
    server_beta1: float = 0.9
    server_beta2: float = 0.999
    server_epsilon: float = 1e-8
    clip_update: float = 0.0
    noise_multiplier: float = 0.0
    withhold: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        robust.check_mean(self.mean, self.trim)
        server.check_optimizer(self.server_optimizer, self.server_hyper)

    @property
    def server_hyper(self) -> dict[str, float]:
        """The hyperparameters of the server optimizer."""
        return {
            "learning_rate": self.server_learning_rate,
            "beta1": self.server_beta1,
            "beta2": self.server_beta2,
            "epsilon": self.server_epsilon,
        }

    @property
    def sanitizer(self) -> UpdateSanitizer:
        """The changes that a device makes to its delta before it sends it."""
        return UpdateSanitizer(self.clip_update, self.noise_multiplier, split_comma_list(self.withhold))


def fedavg(learner: Learner | None, options: FedAvgOptions) -> Algorithm:
    """Return FedAvg, whose mixture is the global model.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: there is noise without clip_update. `init` raises it if a withheld weight does not exist.

    Source: McMahan et al., AISTATS 2017, algorithm 1.
    """
    sanitizer = options.sanitizer
    hyper = as_sgd_hyper(options)

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        sanitizer.check(weights)
        return ServerState(round=1, phase=PHASE_FEDERATE, models={GLOBAL: weights})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        return Broadcast(round=state.round, phase=state.phase, models={GLOBAL: state.models[GLOBAL]})

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        received = broadcast.models[GLOBAL]
        weights = {**received, **with_prefix(RECEIVED_PREFIX, received)}
        trained, loss = learner.fit(
            "train", weights, {"x": shard.x_train}, shard.y_train, epochs=options.epochs, rng=rng, hyper=hyper
        )
        delta = subtract({**received, **trained}, received)  # zero for frozen weights
        if broadcast.round != LOCAL_ROUND:
            delta = sanitizer.apply(delta, trained, rng)
        return Update(
            client_id=client_id,
            round=broadcast.round,
            num_samples=len(shard.y_train),
            deltas={GLOBAL: delta},
            metrics={"loss": loss},
        ), state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        delta = robust.average_deltas(
            options.mean,
            ((update.deltas[GLOBAL], update.num_samples) for update in updates),
            trim=options.trim,
            faults=options.krum_faults,
            keep=options.krum_keep,
            clip_norm=options.clip_norm,
        )
        after = replace(state, round=state.round + 1)
        if delta is None:
            return after
        before = state.read_record(OptimizerSlots).by_model
        model, slots = server.step_optimizer(
            options.server_optimizer,
            options.server_hyper,
            state.models[GLOBAL],
            delta,
            before.get(GLOBAL, {}),
        )
        after = replace(after, models={**state.models, GLOBAL: model})
        return after.with_record(OptimizerSlots({**before, GLOBAL: slots})) if slots else after

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        model = broadcast.models[GLOBAL]
        return Mixture(weights=model, peers={FEDERATED_MODEL: Peer("predict", model)}), state

    by_sums = options.mean == "weighted" and not options.clip_norm
    return Algorithm(
        name="fedavg",
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        takes_late=True,
        by_sums=by_sums,
    )


def build_fedavg_objectives(network: "Network", options: SGDOptions) -> tuple["Objective", ...]:
    """Return the objectives `train`, `predict` and `predict_mixture`. The last two have the same graph."""
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.optimizer import sgd

    optimizer = sgd(options.learning_rate, momentum=options.momentum, weight_decay=options.weight_decay)
    return (
        of.classify(network, options.batch_size, optimizer),
        of.predict_logits(network, of.PREDICT_BATCH),
        of.predict_logits(network, of.PREDICT_BATCH, "predict_mixture"),
    )


ENTRIES = {
    "fedavg": Entry(
        options=FedAvgOptions,
        factory=fedavg,
        objectives=build_fedavg_objectives,
        source="McMahan et al., AISTATS 2017",
    )
}

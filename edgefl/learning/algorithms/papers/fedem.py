"""FedEM: each client's data are a mixture of M distributions that all clients share.

A component is a model, and client s has private mixture weights pi_s. In each round, a client runs one step
of expectation-maximization on the received components:

- E: q(m | x_i, y_i) is proportional to pi_m exp(-loss_im), with the loss of component m at sample i.
- M: pi_m = mean_i q(m | x_i, y_i). Component m trains some epochs of SGD on mean_i q(m | x_i, y_i) loss_im.

The server takes the mean of each component, weighted by the number of samples. A client predicts with log
sum_m pi_m p_m(y|x).

Differences from the paper:

- At the end, every client repeats the E step and the M step of pi on the last components, from uniform pi if
  it has no state. The paper does so only for clients that did not train.
- pi_m is at least 1e-6 in the E step, so that a faded component can return.
- The decentralized variant and regressions are left out.

Communication cost: down M models, up M deltas and one count. pi and q stay on the device. A component with
small q moves little, so the norms of the deltas hint at pi.

Source: Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021,
arXiv:2108.10252, algorithm 1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.types import Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights
from edgefl.learning.algorithms.arithmetic import add, average_by_group, subtract
from edgefl.learning.algorithms.base import PHASE_FEDERATE, Algorithm, TrainedModels
from edgefl.learning.algorithms.draws import draw_initial_weights
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.mixtures.constant_shares import (
    PI_NAME,
    assemble_constant_mixture,
    build_constant_mixture_objective,
    infer_responsibilities,
)
from edgefl.learning.algorithms.mixtures.responsibility import Real
from edgefl.learning.algorithms.names import FEDERATED_MODEL, name_expert, name_experts, select_experts
from edgefl.learning.algorithms.options import TrainingOptions, as_sgd_hyper, check_count, limit_experts
from edgefl.program.learner.base import Learner, predict_label_log_p
from edgefl.program.plan.spec import PREDICT_MIXTURE, TensorSpec

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

RESPONSIBILITY = "responsibility"
"""The data tensor with the weight of each sample in a component's training, shape (n, 1)."""


@dataclass(frozen=True)
class FedEmOptions(TrainingOptions):
    """Options of training by SGD, and of the mixture.

    Raises:
        ConfigError: num_experts is below 1.

    Attributes:
        num_experts: number of components, M. If it is not set, there is at most one for each client that the
            configuration expects.
        final_steps: EM steps of pi on the last components.
    """

    num_experts: int = 3
    final_steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_experts", self.num_experts)


def resolve_fedem_options(options: FedEmOptions, config: FederationConfig) -> FedEmOptions:
    """Return the options with at most one component for each expected client.

    Args:
        config: the configuration, which sets the expected clients.
    """
    return replace(options, num_experts=limit_experts(options.num_experts, config))


def estimate_pi(pi: Real, log_p: Real, steps: int) -> Real:
    """Return the mixture weights after some EM steps on fixed components.

    Args:
        pi: mixture weights before the steps, shape (components,), float64.
        log_p: log p_m(y_i | x_i), shape (n, components), float64.
        steps: number of EM steps.
    """
    for _ in range(steps):
        pi = infer_responsibilities(pi, log_p).mean(axis=0)
    return pi


def fedem(learner: Learner | None, options: FedEmOptions) -> Algorithm:
    """Return FedEM, whose mixture is all components weighted by the client's pi.

    Component 0 starts from the initial weights, and the others from further draws. pi starts uniform.

    Args:
        learner: runs the plan. The aggregator passes None.

    Source: Marfoq et al., arXiv:2108.10252, algorithm 1.
    """
    count = options.num_experts
    hyper = as_sgd_hyper(options)

    def read_pi(state: ClientState) -> Real:
        stored = state.arrays.get(PI_NAME, np.zeros(0))
        return stored.astype(np.float64) if stored.shape == (count,) else np.full(count, 1 / count)

    def measure_log_p(models: Mapping[int, Weights], shard: Shard) -> Real:
        assert learner is not None
        x, y = shard.x_train, shard.y_train
        return np.stack([predict_label_log_p(learner, "predict", models[k], x, y) for k in models], axis=1)

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        models = draw_initial_weights(weights, count, rng)
        return ServerState(
            round=1, phase=PHASE_FEDERATE, models={name_expert(k): model for k, model in enumerate(models)}
        )

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        return Broadcast(round=state.round, phase=state.phase, models=state.models)

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        models = select_experts(broadcast.models)
        q = infer_responsibilities(read_pi(state), measure_log_p(models, shard))
        deltas = {}
        total = 0.0
        for k, model in models.items():
            data = {"x": shard.x_train, RESPONSIBILITY: q[:, k : k + 1].astype(np.float32)}
            trained, loss = learner.fit(
                "train", model, data, shard.y_train, epochs=options.epochs, rng=rng, hyper=hyper
            )
            deltas[name_expert(k)] = subtract({**model, **trained}, model)
            total += loss
        pi = q.mean(axis=0).astype(np.float32)
        update = Update(
            client_id=client_id,
            round=broadcast.round,
            num_samples=len(shard.y_train),
            deltas=deltas,
            metrics={"loss": total},
        )
        return update, ClientState({PI_NAME: pi})

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        means = average_by_group(
            (name, delta, update.num_samples) for update in updates for name, delta in update.deltas.items()
        )
        models = {
            name: add(model, means[name]) if name in means else model for name, model in state.models.items()
        }
        return replace(state, round=state.round + 1, models=models)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        models = select_experts(broadcast.models)
        pi = estimate_pi(read_pi(state), measure_log_p(models, shard), options.final_steps)
        largest = int(pi.argmax())
        diagnostics = {
            "assignment": float(largest),
            **{f"responsibility/{k}": float(value) for k, value in enumerate(pi)},
        }
        even = np.full(count, 1 / count)
        peers = {
            "expert": Peer("predict", models[largest]),
            FEDERATED_MODEL: Peer(PREDICT_MIXTURE, assemble_constant_mixture(models, even, models[0])),
        }
        return Mixture(
            weights=assemble_constant_mixture(models, pi, models[0]), peers=peers, diagnostics=diagnostics
        ), state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        models = select_experts(broadcast.models)
        return Peer(PREDICT_MIXTURE, assemble_constant_mixture(models, read_pi(state), models[0]))

    return Algorithm(
        name="fedem",
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        current=current,
        by_sums=True,
        trained=TrainedModels(required=name_experts(count)),
    )


def build_fedem_objectives(network: "Network", options: FedEmOptions) -> tuple["Objective", ...]:
    """Return `train`, whose samples have weights, `predict` and `predict_mixture`.

    Args:
        network: the model of a component.

    Source: Marfoq et al., arXiv:2108.10252, algorithm 1.
    """
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.optimizer import sgd

    optimizer = sgd(options.learning_rate, momentum=options.momentum, weight_decay=options.weight_decay)
    plain = of.classify(network, options.batch_size, optimizer)

    def weigh_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        losses, assigned = plain.loss_per_sample(weights, data, noise)
        return losses * tf.reshape(data[RESPONSIBILITY], [-1]), assigned

    train = replace(
        plain,
        data=(*plain.data, TensorSpec(RESPONSIBILITY, (options.batch_size, 1))),
        loss_per_sample=weigh_loss,
    )
    predict = of.predict_logits(network, of.PREDICT_BATCH)
    return train, predict, build_constant_mixture_objective(network, options.num_experts)


ENTRIES = {
    "fedem": Entry(
        options=FedEmOptions,
        factory=fedem,
        objectives=build_fedem_objectives,
        source="Marfoq et al., NeurIPS 2021, arXiv:2108.10252",
        models="num_experts",
        resolve=resolve_fedem_options,
        needs_classes="its mixture is of probabilities of classes",
        trains_one_model=False,
    )
}

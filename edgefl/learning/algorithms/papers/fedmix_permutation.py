"""FedMix for clients with different mappings from samples to labels: one expert for each kind of client.

pi = q(z|s) takes the place of a gate. After each batch, pi <- alpha pi + (1 - alpha) pi_now. pi_now is
proportional to exp(mean_i log p(y_i, k | x_i) / beta), with p(y, k | x) = p_k(y|x) pi_k. The prior is the
previous pi, so an expert that fits slightly better stands out within some rounds.

The client ascends sum_k pi_k log p_k(y|x). This separates into one objective for each expert. So each expert
takes the step of a classifier on the same batch, with the learning rate times pi_k. The loss of that step is
the likelihood that pi needs.

The server works as in FedMix: p(s|k) is proportional to pi_k N_s, followed by Adam. Pruning uses pi.

Communication cost: down the client's experts, up their deltas, a count and pi, which is K numbers.

Source: Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, section 4.3 and appendix B, equations
11 and 13.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.types import Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights
from edgefl.learning.algorithms.arithmetic import subtract
from edgefl.learning.algorithms.base import PHASE_FEDERATE, Algorithm, TrainedModels
from edgefl.learning.algorithms.draws import draw_initial_weights
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.mixtures import responsibility as rs
from edgefl.learning.algorithms.mixtures.constant_shares import (
    PI_NAME,
    assemble_constant_mixture,
    build_constant_mixture_objective,
)
from edgefl.learning.algorithms.mixtures.expert_aggregation import (
    average_experts,
    choose_experts,
    encode_responsibility,
    make_broadcast,
    step_models,
)
from edgefl.learning.algorithms.names import FEDERATED_MODEL, name_expert, name_experts, select_experts
from edgefl.learning.algorithms.options import check_choice, check_count, check_range, limit_experts
from edgefl.learning.algorithms.server_optimizer import MAX_WEIGHT_RATE, WEIGHT_DISTANCE, choose_server_rate
from edgefl.program.learner.base import Learner, iterate_batches, predict_label_log_p
from edgefl.program.plan.spec import PREDICT_MIXTURE

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective

MIN_PRIOR = 1e-6
"""Minimum prior of an expert, so that a faded expert can return when it fits much better."""


def update_pi(before: rs.Real, log_p: Mapping[int, float], beta: float, damping: float) -> rs.Real:
    """Return pi after a batch.

    Experts without a likelihood fade by the damping.

    Args:
        before: pi before the batch, shape (experts,), float64.
        log_p: mean log p_k(y|x) of the evaluated experts by index.
        beta: temperature, above 0.
        damping: share of the previous pi, from 0 to 1.

    Returns:
        pi, shape (experts,), float64.

    Source: Reisser et al., arXiv:2107.06724, equations 11 and 13.
    """
    looked_at = list(log_p)
    prior = np.log(np.maximum(before[looked_at], MIN_PRIOR))
    now = np.zeros_like(before)
    now[looked_at] = rs.from_joints([prior + list(log_p.values())], beta)
    return rs.damp_responsibility(before, now, damping)


@dataclass(frozen=True)
class FedMixPermutationOptions:
    """Options of FedMix for permuted labels.

    Raises:
        ConfigError: an option is out of range.

    Attributes:
        num_experts: number of experts, K. If it is not set, there is at most one for each client that the
            configuration expects.
        epochs: passes over the client's samples in a round.
        learning_rate: step size of SGD on the client.
        batch_size: samples in a training batch, fixed when the plan is built.
        server_learning_rate: step size of the server's Adam. 0: .3 / rounds, at least .001 and at most
            .03.
        damping: alpha, the share of pi that remains after a batch.
        beta: temperature of pi.
        prune: pruning threshold eta. A client no longer trains an expert with pi_k < eta / K. 0: no pruning.
        mixture: sum for sum_k pi_k p_k, or likeliest for the expert with the largest pi, which needs 1/K of
            the memory.
    """

    num_experts: int = 4
    epochs: int = 3
    learning_rate: float = 0.05
    batch_size: int = 64
    server_learning_rate: float = 0.0
    damping: float = 0.75
    beta: float = 1.0
    prune: float = 0.0
    mixture: str = "sum"

    def __post_init__(self) -> None:
        check_count("num_experts", self.num_experts)
        check_range("prune", self.prune)
        check_count("batch_size", self.batch_size)
        check_choice("mixture", self.mixture, ["sum", "likeliest"])
        if self.beta == 0 or self.damping > 1:
            raise ConfigError(
                f"[algorithm] beta is {self.beta}, expected above 0; damping is {self.damping}, expected "
                "from 0 to 1"
            )


def resolve_permutation_options(
    options: FedMixPermutationOptions, config: FederationConfig
) -> FedMixPermutationOptions:
    """Return the options with values that are derived from the configuration, where they are not set.

    These are the server's learning rate for the configuration's rounds, and at most one expert for each
    expected client.

    Args:
        config: the configuration, which sets the number of rounds and the expected clients.
    """
    return replace(
        options,
        num_experts=limit_experts(options.num_experts, config),
        server_learning_rate=options.server_learning_rate
        or choose_server_rate("adam", WEIGHT_DISTANCE, config.rounds, MAX_WEIGHT_RATE),
    )


def fedmix_permutation(learner: Learner | None, options: FedMixPermutationOptions) -> Algorithm:
    """Return FedMix for permuted labels, whose mixture is the client's experts weighted by pi.

    Expert 0 starts from the initial weights, and the others from further draws. pi starts uniform.

    Args:
        learner: runs the plan. The aggregator passes None.

    Source: Reisser et al., arXiv:2107.06724, section 4.3 and appendix B.
    """
    num_experts = options.num_experts
    threshold = options.prune / num_experts

    def read_pi(state: ClientState) -> rs.Real | None:
        stored = state.arrays.get(PI_NAME, np.zeros(0))
        return stored.astype(np.float64) if stored.shape == (num_experts,) else None

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        return ServerState(
            round=1,
            phase=PHASE_FEDERATE,
            models={
                name_expert(k): model
                for k, model in enumerate(draw_initial_weights(weights, num_experts, rng))
            },
        )

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        return make_broadcast(state, client_id, num_experts, threshold)

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        models = select_experts(broadcast.models)
        x = shard.x_train
        y = shard.y_train
        stored_pi = read_pi(state)
        pi = np.full(num_experts, 1 / num_experts) if stored_pi is None else stored_pi
        now = {k: dict(model) for k, model in models.items()}
        total = 0.0
        for _ in range(options.epochs):
            for index, weight in iterate_batches(
                len(y), learner.spec.find_signature("train").batch_size, rng
            ):
                rows = index[weight > 0]
                seed = int(rng.integers(1 << 62))
                losses = {}
                for k in choose_experts(models, pi, threshold):
                    # Each expert gets the same batch and noise, as in one joint step.
                    shared_rng = np.random.Generator(np.random.PCG64(seed))
                    hyper = {"learning_rate": options.learning_rate * float(pi[k])}
                    trained, losses[k] = learner.fit(
                        "train", now[k], {"x": x[rows]}, y[rows], epochs=1, rng=shared_rng, hyper=hyper
                    )
                    now[k] |= trained
                total += sum(float(pi[k]) * loss for k, loss in losses.items()) * len(rows)
                pi = update_pi(pi, {k: -loss for k, loss in losses.items()}, options.beta, options.damping)
        deltas = {name_expert(k): subtract(now[k], models[k]) for k in choose_experts(models, pi, threshold)}
        metrics = {"loss": total / max(1, options.epochs * len(y)), **encode_responsibility(pi)}
        new_state = replace(state, arrays={**state.arrays, PI_NAME: pi.astype(np.float32)})
        return Update(
            client_id=client_id, round=broadcast.round, num_samples=len(y), deltas=deltas, metrics=metrics
        ), new_state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        means, state = average_experts(state, updates, num_experts, threshold)
        return step_models(state, means, options.server_learning_rate)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        models = select_experts(broadcast.models)
        pi = read_pi(state)
        if pi is None:
            log_p = {
                k: float(predict_label_log_p(learner, "predict", model, shard.x_train, shard.y_train).mean())
                for k, model in models.items()
            }
            pi = update_pi(np.full(num_experts, 1 / num_experts), log_p, options.beta, 0.0)
        used = choose_experts(models, pi, threshold)
        shares = rs.prune_experts(pi, used)
        likeliest = models[max(used, key=lambda k: pi[k])]
        diagnostics = {
            "assignment": float(pi.argmax()),
            **{f"responsibility/{k}": float(value) for k, value in enumerate(pi)},
        }
        peers = {"expert": Peer("predict", likeliest)}
        if options.mixture == "likeliest":
            return Mixture(weights=likeliest, peers=peers, diagnostics=diagnostics), state
        even = rs.prune_experts(np.zeros(num_experts), tuple(models))
        peers[FEDERATED_MODEL] = Peer(PREDICT_MIXTURE, assemble_constant_mixture(models, even, likeliest))
        return Mixture(
            weights=assemble_constant_mixture(models, shares, likeliest), peers=peers, diagnostics=diagnostics
        ), state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        models = select_experts(broadcast.models)
        stored_pi = read_pi(state)
        pi = np.full(num_experts, 1 / num_experts) if stored_pi is None else stored_pi
        used = choose_experts(models, pi, threshold)
        likeliest = models[max(used, key=lambda k: pi[k])]
        if options.mixture == "likeliest":
            return Peer("predict", likeliest)
        return Peer(PREDICT_MIXTURE, assemble_constant_mixture(models, rs.prune_experts(pi, used), likeliest))

    return Algorithm(
        name="fedmix-permutation",
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        current=current,
        trained=TrainedModels(
            required=(), choices=name_experts(num_experts), min_choices=1, max_choices=num_experts
        ),
    )


def build_permutation_objectives(
    network: "Network", options: FedMixPermutationOptions
) -> tuple["Objective", ...]:
    """Return `train`, `predict` and `predict_mixture`, which is log sum_k pi_k p_k or one expert.

    Args:
        options: the options of the algorithm. Its `mixture` selects the graph of `predict_mixture`.

    Source: Reisser et al., arXiv:2107.06724, section 4.3 and appendix B.
    """
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.optimizer import sgd

    train = of.classify(network, options.batch_size, sgd(options.learning_rate))
    predict = of.predict_logits(network, of.PREDICT_BATCH)
    if options.mixture == "likeliest":
        return train, predict, of.predict_logits(network, of.PREDICT_BATCH, PREDICT_MIXTURE)
    return train, predict, build_constant_mixture_objective(network, options.num_experts)


ENTRIES = {
    "fedmix-permutation": Entry(
        options=FedMixPermutationOptions,
        factory=fedmix_permutation,
        objectives=build_permutation_objectives,
        source="Reisser et al., arXiv:2107.06724, appendix B",
        models="num_experts",
        resolve=resolve_permutation_options,
        needs_classes="its clients differ in the order of their classes",
        trains_one_model=False,
    )
}

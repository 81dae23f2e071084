"""FedMix: a federation of experts, each for a region of the samples, and a private gate on every client.

Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, equations 6, 8, 9 and algorithm 2:
a client ascends E_q(z|y)[log p_wz(y|x,z) + log p_theta(z|x,s)] by the logits phi of q(z|y), the experts w and
its gate theta, with no entropy term (MAP); p_theta(z|x,s) = softmax(A h_s + b), h_s = sum_k q(k|s) h_k, h_k
the input of expert k's last layer, and q(z|s) = sum_y p(y|s) q(z|y). Server, all by Adam: Delta_k = sum_s
p(s|k) (w_k - w_ks), p(s|k) proportional to q(k|s) N_s, and Delta_phi = sum_s N_s / N (phi - phi_s) - grad
H(sum_c p(c) q(z|c)), the classes c taken as equally frequent.
Pruning: a client neither trains nor returns an expert with q(k|s) < eta / K, the server does not send it one
with q(k|s) < .9 eta / K. (Algorithm 2 of the paper sets p(z|s) anew in each round; what a client told last
has to outlive it.)

Traffic: down the client's experts and phi, with a federated gate that too; up their deltas, a count and
q(z|s), K numbers.
p(y|s), the gate and the personal bias stay on the device; phi's delta tells which labels a client has, as the
output layer's does.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from edgefl.algorithms.arithmetic import subtract
from edgefl.algorithms.base import FEDERATE, Algorithm
from edgefl.algorithms.draws import first_weights
from edgefl.algorithms.entry import entry
from edgefl.algorithms.mixtures import responsibility as rs
from edgefl.algorithms.mixtures.expert_averages import broadcast_to, expert_means, metrics_of, step_each
from edgefl.algorithms.papers.fedavg import FEDERATED
from edgefl.algorithms.papers.fedmix.gate import (
    GATE,
    conditions_of,
    gate_probabilities,
    hidden_of,
    mixture_of,
    private_of,
    used_of,
)
from edgefl.algorithms.papers.fedmix.objectives import (
    BIAS,
    BOUND,
    CHOSEN,
    CONDITION,
    KERNEL,
    LIKELIHOOD,
    MIXTURE,
    PHI,
    SHARE,
    TRAIN_GATE,
    fedmix_objectives,
    train_name,
)
from edgefl.algorithms.papers.ifca import experts, name_of
from edgefl.algorithms.server_optimizer import check_optimizer
from edgefl.config import nearest
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner
from edgefl.types import Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights


def fedmix(
    learner: Learner | None,
    *,
    num_experts: int = 4,
    epochs: int = 1,
    learning_rate: float = 0.05,
    batch_size: int = 64,
    server_optimizer: str = "adam",
    server_learning_rate: float = 0.0,
    phi_learning_rate: float = 0.0,
    objective: str = BOUND,
    prune: float = 0.0,
    condition: str = "label",
    num_sides: int = 8,
    entropy: float = 1.0,
    gate: str = "local",
    gate_epochs: int = 10,
    bias: bool = False,
) -> Algorithm:
    """Return FedMix; a client's mixture is its experts under its gate.

    Expert 0 starts from the initial weights, the others from further draws; phi starts uniform, the gate at
    zero.
    server_optimizer: adam, none, momentum, yogi. server_learning_rate: 0 is the usual one, .001 for adam and
    yogi, else 1.
    phi_learning_rate: for phi, 0 is the server's; Adam moves each logit by at most about its rate a round, so
    that experts part within tens of rounds only at a higher rate than the weights bear. objective: "bound",
    or "likelihood" for equation 3 itself, a mixture of experts without q(z|y): p(s|k) is then of the client's
    mean gate. It takes no prune and no side.
    prune: eta, 0 keeps all. condition: "label", or "side" for q(z|side information), of which there are
    num_sides kinds.
    entropy: weight of the marginal entropy's gradient. gate: "local", or "federated", whose weights are
    averaged like a model's while q(k|s) stays the client's. gate_epochs: training of a gate where a client
    comes to personalization without one. bias: each client adds output biases of its own to all experts'
    logits; a client that took part in no round has none.
    Raises ConfigError for options that are no such thing.
    """
    del batch_size
    check_experts(num_experts, prune)
    check_choice("condition", condition, ["label", "side"])
    check_choice("gate", gate, ["local", FEDERATED])
    check_choice("objective", objective, [BOUND, LIKELIHOOD])
    if objective == LIKELIHOOD and (prune or condition != "label"):
        raise ConfigError(
            '[algorithm] objective = "likelihood" has no q(z|y) for prune or condition; leave them out, or '
            'take "bound"'
        )
    check_optimizer(server_optimizer, {"learning_rate": server_learning_rate})
    threshold = prune / num_experts
    hyper = {"learning_rate": learning_rate}

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        apart = {PHI: (PHI,)} | ({GATE: (KERNEL, BIAS)} if gate == FEDERATED else {})
        own = {model: {name: weights[name] for name in names} for model, names in apart.items()}
        network = {
            name: array
            for name, array in weights.items()
            if not any(name in names for names in apart.values())
        }
        drawn = {name_of(k): model for k, model in enumerate(first_weights(network, num_experts, rng))}
        return ServerState(1, FEDERATE, {**drawn, **own})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        return broadcast_to(state, client_id, num_experts, threshold)

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        phi = broadcast.models[PHI][PHI]
        conditions = conditions_of(shard, condition, len(phi))
        shares = rs.shares_of(conditions, len(phi))
        models = experts(broadcast.models)
        used = used_of(models, rs.by_client(rs.by_condition(phi), shares), threshold)
        private = private_of(learner, broadcast, state)
        weights = {
            **{
                f"expert{slot}/{name}": array
                for slot, k in enumerate(used)
                for name, array in models[k].items()
            },
            **private,
            PHI: phi,
            SHARE: shares[None].astype(np.float32),
            CHOSEN: np.eye(num_experts, dtype=np.float32)[:, list(used)],
        }
        data = {"x": shard.x_train} | (
            {} if condition == "label" else {CONDITION: np.eye(len(phi), dtype=np.float32)[conditions]}
        )
        signature = train_name(len(used), num_experts)
        trained, loss = learner.fit(
            signature, weights, data, shard.y_train, epochs=epochs, rng=rng, hyper=hyper
        )
        now = {**weights, **trained}
        after = rs.by_client(rs.by_condition(now[PHI]), shares)
        if objective == LIKELIHOOD:
            ended = {k: {name: now[f"expert{k}/{name}"] for name in models[k]} for k in used}
            after = gate_probabilities(hidden_of(learner, ended, after, shard.x_train), now).mean(axis=0)
        least = min(threshold, max(after[k] for k in used))
        deltas = {
            name_of(k): subtract({name: now[f"expert{slot}/{name}"] for name in models[k]}, models[k])
            for slot, k in enumerate(used)
            if after[k] >= least
        }
        deltas[PHI] = subtract({PHI: now[PHI]}, broadcast.models[PHI])
        own = {name: now[name] for name in private}
        if gate == FEDERATED:
            deltas[GATE] = subtract({name: own.pop(name) for name in (KERNEL, BIAS)}, broadcast.models[GATE])
        metrics = {"loss": loss, **metrics_of(after)}
        return Update(client_id, broadcast.round, len(shard.y_train), deltas, metrics), replace(
            state, arrays={**state.arrays, **own}
        )

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        means, state = expert_means(state, updates, num_experts, threshold)
        if PHI in means:
            phi = state.models[PHI][PHI]
            push = entropy * rs.marginal_entropy_gradient(phi, np.full(len(phi), 1 / len(phi)))
            means[PHI] = {PHI: np.asarray(means[PHI][PHI] + push, np.float32)}
        return step_each(
            state,
            means,
            server_learning_rate,
            {PHI: phi_learning_rate or server_learning_rate},
            server_optimizer,
        )

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        phi = broadcast.models[PHI][PHI]
        conditions = conditions_of(shard, condition, len(phi))
        of_condition = rs.by_condition(phi)
        models = experts(broadcast.models)
        q = rs.by_client(of_condition, rs.shares_of(conditions, len(phi)))
        used = used_of(models, q, threshold)
        left = {k: models[k] for k in used}
        q = rs.pruned(q, used)
        hidden = hidden_of(learner, left, q, shard.x_train)
        private = private_of(learner, broadcast, state)
        if gate == "local" and KERNEL not in state.arrays:
            data = {"hidden": hidden, "responsibility": of_condition[conditions].astype(np.float32)}
            trained = learner.fit(
                TRAIN_GATE, private, data, shard.y_train, epochs=gate_epochs, rng=rng, hyper=hyper
            )[0]
            private = {**private, **trained}
        weights = mixture_of(left, q, private)
        shared = {name: np.zeros_like(array) for name, array in private.items()} | dict(
            broadcast.models.get(GATE, {})
        )
        even = mixture_of(models, rs.pruned(np.zeros(num_experts), tuple(models)), shared)
        peers = {FEDERATED: Peer(MIXTURE, even), "expert": Peer("predict", models[int(q.argmax())])}
        usage = gate_probabilities(hidden, weights).mean(axis=0)
        told = {
            f"{kind}/{k}": float(v)
            for kind, row in (("responsibility", q), ("gate", usage))
            for k, v in enumerate(row)
        }
        return Mixture(weights, peers, told | {"specialization": rs.specialization(of_condition)}), state

    return Algorithm("fedmix", init, broadcast, local_update, aggregate, personalize)


def check_experts(num_experts: int, prune: float) -> None:
    """Raise ConfigError when there is no expert, or might be none left."""
    if num_experts < 1:
        raise ConfigError(f"[algorithm] num_experts is {num_experts}, expected 1 or more")
    if prune > 1:
        raise ConfigError(
            f"[algorithm] prune is {prune}, expected a share from 0 to 1; above 1 no expert might be left"
        )


def check_choice(key: str, value: str, choices: list[str]) -> None:
    """Raise ConfigError for a value that is none of the choices."""
    if value not in choices:
        raise ConfigError(
            f"[algorithm] {key} is {value!r}, expected {' or '.join(choices)}; {nearest(value, choices)}"
        )


ENTRIES = {
    "fedmix": entry(fedmix, fedmix_objectives, "Reisser et al., arXiv:2107.06724", models="num_experts")
}

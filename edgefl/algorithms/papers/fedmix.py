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

The plan has a training signature for each number of experts that a client may be left with, so a pruned
expert costs no time. The client's experts are settled once a round, because a program's shapes are fixed. The
step computes q(z|s) from phi and the client's p(y|s): the gate's term moves phi through h_s and the experts
through h_k, as the paper's gradients do.

objective = "likelihood" is equation 3 itself: the bound with the true posterior p(z|x,y,s) for q(z|y), held
fixed in the gradient, and with its entropy, has the value and the gradients of -log sum_z p(z|x,s) p(y|x,z).
phi stays uniform, for h_s.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.algorithms.arithmetic import subtract
from edgefl.algorithms.base import FEDERATE, Algorithm
from edgefl.algorithms.draws import first_weights
from edgefl.algorithms.entry import Entry
from edgefl.algorithms.mixtures import responsibility as rs
from edgefl.algorithms.mixtures.expert_averages import (
    broadcast_to,
    expert_means,
    metrics_of,
    step_each,
    used_of,
)
from edgefl.algorithms.mixtures.gate import (
    BIAS,
    HIDDEN_LOGITS,
    KERNEL,
    TRAIN_GATE,
    gate_probabilities,
    hidden_of,
)
from edgefl.algorithms.names import FEDERATED, PHI, expert_name, experts, specs_with_prefix, without_prefix
from edgefl.algorithms.options import check_choice, check_count, check_range, experts_for
from edgefl.algorithms.server_optimizer import check_optimizer, rate_for_rounds
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError, DataError
from edgefl.learner.base import Learner
from edgefl.plan.spec import MIXTURE, TensorSpec
from edgefl.types import (
    Array,
    Broadcast,
    ClientState,
    Labels,
    Mixture,
    Peer,
    ServerState,
    Shard,
    Update,
    Weights,
)

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

TRAIN = "train_mixture"
PERSONAL = "personal"
"""Before the name of the weight that a client adds its own to: the bias of the last layer."""
SHARE = "condition_share"
CHOSEN = "chosen"
CONDITION = "condition"
BOUND = "bound"
LIKELIHOOD = "likelihood"
GATE = "gate"
CLOSED = -16.0
"""Added to the gate's logit of an expert that the client has not: e^-16 of its share is left, in float and in
int8.
"""


WEIGHT_DISTANCE = 0.3
"""How far the server optimizer must be able to move a weight: about the size of a layer's first weights."""
PHI_DISTANCE = 4.0
"""How far it must be able to move a logit of phi: e^4 to 1 is a responsibility of .98 to .02."""


@dataclass(frozen=True)
class FedMixOptions:
    """Options of FedMix. Raises ConfigError for options that do not fit together.

    Adam moves each logit of phi by at most about its rate a round, so that experts part within tens of
    rounds only at a higher rate than the weights bear: phi_learning_rate.

    Attributes:
        num_experts: the number of experts, K; where it is not set, at most one for each client that the
            configuration expects
        epochs: passes over the client's samples in a round
        learning_rate: step size of SGD on the client
        batch_size: samples in a training batch; fixed when the plan is built
        server_optimizer: adam, none, momentum or yogi
        server_learning_rate: step size of the server optimizer; 0: for adam and yogi .3 / rounds, at least
            .001, else 1
        phi_learning_rate: step size of the server optimizer on phi; 0: for adam and yogi 4 / rounds, at
            most 1 and at least server_learning_rate, else server_learning_rate
        objective: bound, or likelihood for equation 3 itself, a mixture of experts without q(z|y): p(s|k)
            is then of the client's mean gate, and there is neither prune nor condition = "side"
        prune: eta, 0 to 1; 0 keeps all experts
        condition: label, or side for q(z|side information)
        num_sides: number of kinds of side information
        entropy: weight of the marginal entropy's gradient
        gate: local, or federated, whose weights are averaged like a model's while q(k|s) stays the client's
        gate_epochs: epochs of the training of a gate, where a client comes to personalization without one
        personal_epochs: epochs of the personal training after the rounds, of experts, gate and bias
            (appendix G); 0: the experts stay as the federation sent them
        bias: each client adds output biases of its own to all experts' logits; a client that took part in
            no round has none
    """

    num_experts: int = 4
    epochs: int = 5
    learning_rate: float = 0.02
    batch_size: int = 10
    server_optimizer: str = "adam"
    server_learning_rate: float = 0.0
    phi_learning_rate: float = 0.0
    objective: str = BOUND
    prune: float = 0.0
    condition: str = "label"
    num_sides: int = 8
    entropy: float = 1.0
    gate: str = "local"
    gate_epochs: int = 10
    personal_epochs: int = 10
    bias: bool = False

    def __post_init__(self) -> None:
        check_count("num_experts", self.num_experts)
        check_range("prune", self.prune)
        check_count("batch_size", self.batch_size)
        check_choice("condition", self.condition, ["label", "side"])
        check_choice("gate", self.gate, ["local", FEDERATED])
        check_choice("objective", self.objective, [BOUND, LIKELIHOOD])
        if self.objective == LIKELIHOOD and (self.prune or self.condition != "label"):
            raise ConfigError(
                '[algorithm] objective = "likelihood" has no q(z|y) for prune or condition; leave them out, '
                'or take "bound"'
            )
        check_optimizer(self.server_optimizer, {"learning_rate": self.server_learning_rate})


def fitted_rates(options: FedMixOptions, config: FederationConfig) -> FedMixOptions:
    """Return the options with the server's rates for a configuration's rounds, and at most one expert for
    each client, where they are not set.
    """
    name = options.server_optimizer
    rate = options.server_learning_rate or rate_for_rounds(name, WEIGHT_DISTANCE, config.rounds)
    phi_rate = max(rate, rate_for_rounds(name, PHI_DISTANCE, config.rounds))
    return replace(
        options,
        num_experts=experts_for(options.num_experts, config),
        server_learning_rate=rate,
        phi_learning_rate=options.phi_learning_rate or (phi_rate if name in ("adam", "yogi") else rate),
    )


def fedmix(learner: Learner | None, options: FedMixOptions) -> Algorithm:
    """Return FedMix; a client's mixture is its experts under its gate.

    Expert 0 starts from the initial weights, the others from further draws. phi starts uniform, the gate at
    zero.
    """
    num_experts = options.num_experts
    threshold = options.prune / num_experts
    hyper = {"learning_rate": options.learning_rate}

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        apart = {PHI: (PHI,)} | ({GATE: (KERNEL, BIAS)} if options.gate == FEDERATED else {})
        own = {model: {name: weights[name] for name in names} for model, names in apart.items()}
        network = {
            name: array
            for name, array in weights.items()
            if not any(name in names for names in apart.values())
        }
        drawn = {expert_name(k): model for k, model in enumerate(first_weights(network, num_experts, rng))}
        return ServerState(1, FEDERATE, {**drawn, **own})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        return broadcast_to(state, client_id, num_experts, threshold)

    def train(
        models: Mapping[int, Weights],
        phi: Array,
        private: Weights,
        shard: Shard,
        epochs: int,
        rng: np.random.Generator,
    ) -> tuple[dict[str, Array], float]:
        """Return experts (by their order among `models`), gate, bias and phi after training, and the loss."""
        assert learner is not None
        conditions = conditions_of(shard, options.condition, len(phi))
        weights = {
            **{
                f"expert{slot}/{name}": array
                for slot, model in enumerate(models.values())
                for name, array in model.items()
            },
            **private,
            PHI: phi,
            SHARE: rs.shares_of(conditions, len(phi))[None].astype(np.float32),
            CHOSEN: np.eye(num_experts, dtype=np.float32)[:, list(models)],
        }
        data = {"x": shard.x_train} | (
            {}
            if options.condition == "label"
            else {CONDITION: np.eye(len(phi), dtype=np.float32)[conditions]}
        )
        signature = train_name(len(models), num_experts)
        trained, loss = learner.fit(
            signature, weights, data, shard.y_train, epochs=epochs, rng=rng, hyper=hyper
        )
        return {**weights, **trained}, loss

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        phi = broadcast.models[PHI][PHI]
        shares = rs.shares_of(conditions_of(shard, options.condition, len(phi)), len(phi))
        models = experts(broadcast.models)
        used = used_of(models, rs.by_client(rs.by_condition(phi), shares), threshold)
        private = private_of(learner, broadcast, state)
        now, loss = train({k: models[k] for k in used}, phi, private, shard, options.epochs, rng)
        after = rs.by_client(rs.by_condition(now[PHI]), shares)
        if options.objective == LIKELIHOOD:
            ended = {k: {name: now[f"expert{k}/{name}"] for name in models[k]} for k in used}
            after = gate_probabilities(hidden_of(learner, ended, after, shard.x_train), now).mean(axis=0)
        least = min(threshold, max(after[k] for k in used))
        deltas = {
            expert_name(k): subtract({name: now[f"expert{slot}/{name}"] for name in models[k]}, models[k])
            for slot, k in enumerate(used)
            if after[k] >= least
        }
        deltas[PHI] = subtract({PHI: now[PHI]}, broadcast.models[PHI])
        own = {name: now[name] for name in private}
        if options.gate == FEDERATED:
            deltas[GATE] = subtract({name: own.pop(name) for name in (KERNEL, BIAS)}, broadcast.models[GATE])
        metrics = {"loss": loss, **metrics_of(after)}
        return Update(client_id, broadcast.round, len(shard.y_train), deltas, metrics), replace(
            state, arrays={**state.arrays, **own}
        )

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        means, state = expert_means(state, updates, num_experts, threshold)
        if PHI in means:
            phi = state.models[PHI][PHI]
            push = options.entropy * rs.marginal_entropy_gradient(phi, np.full(len(phi), 1 / len(phi)))
            means[PHI] = {PHI: np.asarray(means[PHI][PHI] + push, np.float32)}
        return step_each(
            state,
            means,
            options.server_learning_rate,
            {PHI: options.phi_learning_rate or options.server_learning_rate},
            options.server_optimizer,
        )

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        phi = broadcast.models[PHI][PHI]
        conditions = conditions_of(shard, options.condition, len(phi))
        of_condition = rs.by_condition(phi)
        models = experts(broadcast.models)
        shares = rs.shares_of(conditions, len(phi))
        q = rs.by_client(of_condition, shares)
        used = used_of(models, q, threshold)
        left = {k: models[k] for k in used}
        q = rs.pruned(q, used)
        hidden = hidden_of(learner, left, q, shard.x_train)
        private = private_of(learner, broadcast, state)
        if options.gate == "local" and KERNEL not in state.arrays:
            data = {"hidden": hidden, "responsibility": of_condition[conditions].astype(np.float32)}
            trained = learner.fit(
                TRAIN_GATE, private, data, shard.y_train, epochs=options.gate_epochs, rng=rng, hyper=hyper
            )[0]
            private = {**private, **trained}
        own, own_private, own_q = left, private, q
        if options.personal_epochs:
            now, _ = train(left, phi, private, shard, options.personal_epochs, rng)
            own = {
                k: {name: now[f"expert{slot}/{name}"] for name in model}
                for slot, (k, model) in enumerate(left.items())
            }
            own_private = {name: now[name] for name in private}
            own_q = rs.pruned(rs.by_client(rs.by_condition(now[PHI]), shares), used)
            hidden = hidden_of(learner, own, own_q, shard.x_train)
        weights = mixture_of(own, own_q, own_private)
        shared = {name: np.zeros_like(array) for name, array in private.items()} | dict(
            broadcast.models.get(GATE, {})
        )
        even = mixture_of(models, rs.pruned(np.zeros(num_experts), tuple(models)), shared)
        peers = {FEDERATED: Peer(MIXTURE, even), "expert": Peer("predict", models[int(q.argmax())])}
        usage = gate_probabilities(hidden, weights).mean(axis=0)
        told = {
            f"{kind}/{k}": float(v)
            for kind, row in (("responsibility", own_q), ("gate", usage))
            for k, v in enumerate(row)
        }
        return Mixture(weights, peers, told | {"specialization": rs.specialization(of_condition)}), state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        assert learner is not None
        phi = broadcast.models[PHI][PHI]
        conditions = conditions_of(shard, options.condition, len(phi))
        models = experts(broadcast.models)
        q = rs.by_client(rs.by_condition(phi), rs.shares_of(conditions, len(phi)))
        used = used_of(models, q, threshold)
        weights = mixture_of(
            {k: models[k] for k in used}, rs.pruned(q, used), private_of(learner, broadcast, state)
        )
        return Peer(MIXTURE, weights)

    return Algorithm("fedmix", init, broadcast, local_update, aggregate, personalize, current=current)


def conditions_of(shard: Shard, condition: str, count: int) -> Labels:
    """Return what the responsibility of each training sample hangs on, int64[n].

    DataError for side information that is not there.
    """
    if condition == "label":
        return shard.y_train
    side = shard.side_train
    if side is None:
        raise DataError(
            'condition = "side" needs side information of each training sample; give the shard side_train, '
            'or take "label"'
        )
    if len(side) != len(shard.y_train) or (len(side) and not 0 <= side.min() <= side.max() < count):
        raise DataError(
            f"side_train has {len(side)} values for {len(shard.y_train)} samples, expected one each from 0 "
            f"to {count - 1}; set num_sides to how many kinds there are"
        )
    return side


def private_of(learner: Learner, broadcast: Broadcast, state: ClientState) -> dict[str, Array]:
    """Return gate and output bias: the federation's gate where it comes down, else what the client kept, else
    zeros.
    """
    found = {}
    for spec in learner.spec.signature(TRAIN).trained:
        if spec.name in (KERNEL, BIAS) or spec.name.startswith(f"{PERSONAL}/"):
            own = broadcast.models.get(GATE, {}).get(spec.name, state.arrays.get(spec.name))
            found[spec.name] = (
                own if own is not None and own.shape == spec.shape else np.zeros(spec.shape, np.float32)
            )
    return found


def mixture_of(models: Mapping[int, Weights], responsibility: rs.Real, private: Weights) -> dict[str, Array]:
    """Return the weights of `predict_mixture`, for the experts that the client has.

    The place of one that it has not is taken by its likeliest, under a gate that is closed: the graph is the
    same for every client.
    """
    count = len(responsibility)
    likeliest = max(models, key=lambda k: responsibility[k])
    closed = np.array([0.0 if k in models else CLOSED for k in range(count)], np.float32)
    added = without_prefix(PERSONAL, private)
    placed = {
        f"expert{k}/{name}": array + added[name] if name in added else array
        for k in range(count)
        for name, array in models.get(k, models[likeliest]).items()
    }
    shares = {f"responsibility/{k}": np.array([value], np.float32) for k, value in enumerate(responsibility)}
    return {**placed, **shares, KERNEL: private[KERNEL], BIAS: private[BIAS] + closed}


def train_name(count: int, num_experts: int) -> str:
    """Return the training signature's name of a client that is left with `count` experts."""
    return TRAIN if count == num_experts else f"{TRAIN}_{count}"


def left_with(options: FedMixOptions) -> range:
    """Return how many experts a client may be left with."""
    return range(1 if options.prune else options.num_experts, options.num_experts + 1)


def gate_specs(width: int, num_experts: int) -> tuple[TensorSpec, ...]:
    """Return A and b of equation 9: float32[width, experts] and float32[experts]."""
    return TensorSpec(KERNEL, (width, num_experts)), TensorSpec(BIAS, (num_experts,))


def fedmix_objectives(network: "Network", options: FedMixOptions) -> tuple["Objective", ...]:
    """Return train_mixture (one for each number of experts left), hidden_logits, train_gate, predict,
    predict_mixture.
    """
    from edgefl.compiler import objective as of

    return (
        *(_train(network, options, count) for count in left_with(options)),
        _hidden_logits(network),
        _train_gate(network, options),
        of.predict(network, of.PREDICT_BATCH),
        _mixture(network, options),
    )


def _conditions(network: "Network", options: FedMixOptions) -> int:
    return int(network.num_classes if options.condition == "label" else options.num_sides)


def _output_bias(network: "Network", options: FedMixOptions) -> tuple[TensorSpec, ...]:
    if not options.bias:
        return ()
    head = network.select(network.head_names)
    found = [spec for spec in head if spec.name.endswith("/bias") and spec.shape == (network.num_classes,)]
    if not found:
        raise ConfigError(
            "[algorithm] bias = true, but the model's last layer has none; give it one, or leave bias out"
        )
    return (TensorSpec(f"{PERSONAL}/{found[-1].name}", found[-1].shape),)


def _train(network: "Network", options: FedMixOptions, count: int) -> "Objective":
    from edgefl.compiler import objective as of
    from edgefl.compiler.mixing import columns, weighted_sum
    from edgefl.compiler.optimizer import sgd

    num_experts = options.num_experts
    batch = options.batch_size
    output_bias = _output_bias(network, options)
    by_label = options.condition == "label"
    conditions = _conditions(network, options)
    direct = options.objective == LIKELIHOOD
    gate = gate_specs(network.hidden_width, num_experts)
    phi = TensorSpec(PHI, (conditions, num_experts))

    def loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        of_condition = tf.nn.softmax(weights[PHI])
        condition = tf.one_hot(data["y"], conditions) if by_label else data[CONDITION]
        for_gate = tf.matmul(condition, of_condition)
        used = for_gate
        marginal = tf.matmul(weights[SHARE], of_condition)
        if count < num_experts:
            used, marginal = (_among(each, weights[CHOSEN]) for each in (used, marginal))
        hidden = []
        losses = []
        assigned: dict[str, Tensor] = {}
        for k in range(count):
            own = without_prefix(f"expert{k}", weights)
            logits, below, updates = network.apply_hidden(
                own, data["x"], training=True, noise=without_prefix(f"expert{k}", noise)
            )
            logits = logits + weights[output_bias[0].name] if output_bias else logits
            losses.append(tf.reshape(of.cross_entropy(logits, data["y"]), (batch, 1)))
            hidden.append(below)
            assigned |= {f"expert{k}/{name}": value for name, value in updates.items()}
        gated = tf.nn.log_softmax(
            tf.matmul(weighted_sum(columns(marginal), hidden), weights[KERNEL]) + weights[BIAS]
        )
        if direct:
            joint = tf.stop_gradient(gated - tf.concat(losses, axis=1))
            used = for_gate = tf.nn.softmax(joint)
            gated = gated - tf.nn.log_softmax(joint)  # its entropy
        gate_bound = tf.reduce_sum(for_gate * gated, axis=1)
        return tf.reshape(weighted_sum(columns(used), losses), (batch,)) - gate_bound, assigned

    fixed = tuple(
        spec for spec in network.specs if spec.name not in (*network.trainable, *network.statistics)
    )
    moving = network.select((*network.trainable, *network.statistics))
    prefixes = [f"expert{k}" for k in range(count)]
    chosen = (TensorSpec(CHOSEN, (num_experts, count)),) * (count < num_experts)
    side = () if by_label else (TensorSpec(CONDITION, (batch, conditions)),)
    federated = gate if options.gate == "federated" else ()
    return of.Objective(
        train_name(count, num_experts),
        "train",
        batch,
        (of.samples(network, batch), *side),
        (
            *(spec for prefix in prefixes for spec in specs_with_prefix(prefix, moving)),
            *(() if direct else (phi,)),
            *gate,
            *output_bias,
        ),
        (
            *(spec for prefix in prefixes for spec in specs_with_prefix(prefix, fixed)),
            *((phi,) if direct else ()),
            TensorSpec(SHARE, (1, conditions)),
            *chosen,
        ),
        tuple(spec for prefix in prefixes for spec in specs_with_prefix(prefix, network.noise(batch))),
        tuple(f"{prefix}/{name}" for prefix in prefixes for name in network.statistics),
        {spec.name: np.zeros(spec.shape, np.float32) for spec in (phi, *federated)},
        sgd(options.learning_rate),
        loss,
    )


def _among(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the columns of the experts that are left, each row scaled to sum to one."""
    import tensorflow as tf

    left = tf.matmul(values, chosen)
    return left / tf.reduce_sum(left, axis=1, keepdims=True)


def _hidden_logits(network: "Network") -> "Objective":
    """Give the input of an expert's last dense layer and its logits, side by side: float32[batch,
    hidden_width + classes].
    """
    from edgefl.compiler import objective as of

    def out(weights: Tensors, data: Tensors) -> Tensor:
        import tensorflow as tf

        logits, hidden, _ = network.apply_hidden(weights, data["x"])
        return tf.concat([hidden, logits], axis=1)

    return of.Objective(
        HIDDEN_LOGITS,
        "predict",
        of.PREDICT_BATCH,
        (of.samples(network, of.PREDICT_BATCH),),
        frozen=network.specs,
        out=out,
    )


def _train_gate(network: "Network", options: FedMixOptions) -> "Objective":
    """Train theta_s alone, on h_s that was computed once: what a client needs that took part in no round."""
    from edgefl.compiler import objective as of
    from edgefl.compiler.optimizer import sgd

    batch = options.batch_size
    width = network.hidden_width
    data = (
        TensorSpec("hidden", (batch, width)),
        TensorSpec("responsibility", (batch, options.num_experts)),
    )

    def loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        gated = tf.matmul(data["hidden"], weights[KERNEL]) + weights[BIAS]
        return -tf.reduce_sum(data["responsibility"] * tf.nn.log_softmax(gated), axis=1), {}

    gate = gate_specs(width, options.num_experts)
    return of.Objective(
        TRAIN_GATE, "train", batch, data, gate, optimizer=sgd(options.learning_rate), loss_per_sample=loss
    )


def _mixture(network: "Network", options: FedMixOptions) -> "Objective":
    """Give log sum_k p(k|x,s) p_k(y|x); exported, the probabilities."""
    from edgefl.compiler import objective as of
    from edgefl.compiler.mixing import columns, log_mixed, mixed, weighted_sum

    num_experts = options.num_experts

    def parts(weights: Tensors, data: Tensors) -> tuple[list[Tensor], list[Tensor]]:
        import tensorflow as tf

        seen = [
            network.apply_hidden(without_prefix(f"expert{k}", weights), data["x"]) for k in range(num_experts)
        ]
        shares = [weights[f"responsibility/{k}"] for k in range(num_experts)]
        gated = tf.matmul(weighted_sum(shares, [each[1] for each in seen]), weights[KERNEL]) + weights[BIAS]
        return columns(tf.nn.softmax(gated)), [each[0] for each in seen]

    def out(weights: Tensors, data: Tensors) -> Tensor:
        return log_mixed(*parts(weights, data))

    def exported(weights: Tensors, data: Tensors) -> Tensor:
        return mixed(*parts(weights, data))

    batch = of.PREDICT_BATCH
    experts = tuple(
        spec for k in range(num_experts) for spec in specs_with_prefix(f"expert{k}", network.specs)
    )
    shares = tuple(TensorSpec(f"responsibility/{k}", (1,)) for k in range(num_experts))
    own = (*shares, *gate_specs(network.hidden_width, num_experts))
    return of.Objective(
        MIXTURE,
        "predict",
        batch,
        (of.samples(network, batch),),
        frozen=(*experts, *own),
        out=out,
        exported=exported,
    )


ENTRIES = {
    "fedmix": Entry(
        FedMixOptions,
        fedmix,
        fedmix_objectives,
        "Reisser et al., arXiv:2107.06724",
        models="num_experts",
        resolve=fitted_rates,
    )
}

"""FedMix: a federation of experts, each for a region of the samples, with a private gate on every client.

Client: it ascends E_q(z|y)[log p_wz(y|x,z) + log p_theta(z|x,s)] by the logits phi of q(z|y), the experts w
and its gate theta. There is no entropy term (MAP). The option client_entropy adds H(q(z|y)). The gate is
p_theta(z|x,s) = softmax(A h_s + b) with h_s = sum_k q(k|s) h_k. h_k is the input of expert k's last layer,
and q(z|s) = sum_y p(y|s) q(z|y).

Server, all by Adam: Delta_k = sum_s p(s|k) (w_k - w_ks), with p(s|k) proportional to q(k|s) N_s. Delta_phi =
sum_s N_s / N (phi - phi_s) - grad H(sum_c p(c) q(z|c)), where all classes c count as equally frequent.

Pruning: a client neither trains nor returns an expert with q(k|s) < eta / K. The server does not send an
expert with q(k|s) < .9 eta / K. Algorithm 2 of the paper resets p(z|s) in each round. Here the server
remembers the q(z|s) that a client reported last.

The plan has a training signature for each number of experts that a client may be left with, so a pruned
expert costs no time. A client chooses its experts once in each round, because the shapes of a program are
fixed. The step computes q(z|s) from phi and the client's p(y|s). The gate's term moves phi through h_s and
the experts through h_k, as do the paper's gradients.

objective = "likelihood" is equation 3 itself. It is the bound with the true posterior p(z|x,y,s), held fixed
in the gradient, instead of q(z|y), and with its entropy. It has the value and the gradients of -log sum_z
p(z|x,s) p(y|x,z). phi stays uniform, for h_s.

Communication cost: down the client's experts and phi, and the gate if it is federated. Up their deltas, a
count and q(z|s), which is K numbers. p(y|s), the gate and the personal bias stay on the device. The delta of
phi reveals which labels a client has, as does the delta of the output layer.

Source: Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, equations 3, 6, 8, 9 and algorithm 2.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError, DataError, StateError
from edgefl.base.types import (
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
from edgefl.learning.algorithms.arithmetic import subtract
from edgefl.learning.algorithms.base import PHASE_FEDERATE, Algorithm, TrainedModels
from edgefl.learning.algorithms.draws import draw_initial_weights
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.mixtures import responsibility as rs
from edgefl.learning.algorithms.mixtures.expert_aggregation import (
    average_experts,
    choose_experts,
    encode_responsibility,
    load_responsibility,
    make_broadcast,
    step_models,
)
from edgefl.learning.algorithms.mixtures.gate import (
    GATE_BIAS,
    GATE_KERNEL,
    HIDDEN_LOGITS,
    TRAIN_GATE,
    apply_gate,
    mix_hidden_features,
)
from edgefl.learning.algorithms.mixtures.marginal_gate import ParticipantGate
from edgefl.learning.algorithms.names import (
    FEDERATED_MODEL,
    PHI_MODEL,
    name_expert,
    name_experts,
    prefix_specs,
    select_experts,
    strip_prefix,
)
from edgefl.learning.algorithms.options import check_choice, check_count, check_range, limit_experts
from edgefl.learning.algorithms.server_optimizer import (
    MAX_WEIGHT_RATE,
    WEIGHT_DISTANCE,
    check_optimizer,
    choose_server_rate,
)
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import PREDICT_MIXTURE, TensorSpec

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

TRAIN_MIXTURE = "train_mixture"
PERSONAL_BIAS_PREFIX = "personal"
"""Prefix of a client's personal bias, before the name of the last layer's bias that it is added to."""
CONDITION_SHARE = "condition_share"
CHOSEN_EXPERTS = "chosen"
CONDITION = "condition"
BOUND = "bound"
LIKELIHOOD = "likelihood"
GATE_MODEL = "gate"
CLOSED_GATE_LOGIT = -16.0
"""Added to the gate's logit of an expert that the client lacks.

It leaves e^-16 of the expert's share, in float and in int8.
"""


PHI_DISTANCE = 4.0
"""How far it must be able to move a logit of phi: e^4 to 1 is a responsibility of .98 to .02."""


@dataclass(frozen=True)
class FedMixOptions:
    """Options of FedMix.

    Adam moves each logit of phi by at most about its rate in a round. Experts specialize within tens of
    rounds only if the rate is higher than the weights tolerate. This is what phi_learning_rate is for.

    Raises:
        ConfigError: an option is out of range, or objective = "likelihood" is combined with prune, condition
            or client_entropy.

    Attributes:
        num_experts: number of experts, K. If it is not set, there is at most one for each client that the
            configuration expects.
        epochs: passes over the client's samples in a round.
        learning_rate: step size of SGD on the client.
        batch_size: samples in a training batch, fixed when the plan is built.
        server_optimizer: adam, none, momentum or yogi.
        server_learning_rate: step size of the server optimizer. 0: for adam and yogi .3 / rounds, at least
            .001 and at most .03, otherwise 1.
        phi_learning_rate: step size of the server optimizer on phi. 0: for adam and yogi 4 / rounds, at most
            1 and at least server_learning_rate, otherwise server_learning_rate.
        objective: bound, or likelihood for equation 3 itself, a mixture of experts without q(z|y). With
            likelihood, p(s|k) uses the client's mean gate, and neither prune nor condition = "side" is
            possible.
        prune: pruning threshold eta, 0 to 1. 0: no pruning.
        condition: label, or side for q(z|side information).
        num_sides: number of kinds of side information.
        entropy: weight of the marginal entropy's gradient.
        client_entropy: whether clients add H(q(z|y)) to their objective (equation 6 with its entropy term).
            All experts then share each label, and the federation is an ensemble.
        gate: local, or federated. The server optimizer steps a federated gate like an expert, along the
            mean delta, while q(k|s) stays personal.
        gate_epochs: epochs of the gate's training on a client that has no gate when it personalizes.
        personal_epochs: epochs of the personal training after the rounds, of experts, gate and bias (appendix
            G). 0: the experts stay unchanged.
        bias: whether each client adds personal output biases to the logits of all experts. A client that took
            part in no round has none if `personal_epochs` is 0.
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
    client_entropy: bool = False
    gate: str = "local"
    gate_epochs: int = 10
    personal_epochs: int = 10
    bias: bool = False

    def __post_init__(self) -> None:
        check_count("num_experts", self.num_experts)
        check_range("prune", self.prune)
        check_count("batch_size", self.batch_size)
        check_choice("condition", self.condition, ["label", "side"])
        check_choice("gate", self.gate, ["local", FEDERATED_MODEL])
        check_choice("objective", self.objective, [BOUND, LIKELIHOOD])
        if self.objective == LIKELIHOOD and (self.prune or self.condition != "label" or self.client_entropy):
            raise ConfigError(
                '[algorithm] objective = "likelihood" has no q(z|y) for prune, condition or client_entropy; '
                'leave them out, or take "bound"'
            )
        check_optimizer(self.server_optimizer, {"learning_rate": self.server_learning_rate})


def resolve_fedmix_options(options: FedMixOptions, config: FederationConfig) -> FedMixOptions:
    """Return the options with values that are derived from the configuration, where they are not set.

    These are the server's learning rates for the configuration's rounds, and at most one expert for each
    expected client.

    Args:
        config: the configuration, which sets the number of rounds and the expected clients.
    """
    name = options.server_optimizer
    rate = options.server_learning_rate or choose_server_rate(
        name, WEIGHT_DISTANCE, config.rounds, MAX_WEIGHT_RATE
    )
    phi_rate = max(rate, choose_server_rate(name, PHI_DISTANCE, config.rounds))
    return replace(
        options,
        num_experts=limit_experts(options.num_experts, config),
        server_learning_rate=rate,
        phi_learning_rate=options.phi_learning_rate or (phi_rate if name in ("adam", "yogi") else rate),
    )


def fedmix(learner: Learner | None, options: FedMixOptions) -> Algorithm:
    """Return FedMix, whose mixture is the client's experts under its gate.

    Expert 0 starts from the initial weights, and the others from further draws. phi starts uniform, the gate
    at zero.

    Args:
        learner: runs the plan. The aggregator passes None.

    Source: Reisser et al., arXiv:2107.06724, algorithm 2.
    """
    num_experts = options.num_experts
    threshold = options.prune / num_experts
    hyper = {"learning_rate": options.learning_rate}

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        separate_names = {PHI_MODEL: (PHI_MODEL,)} | (
            {GATE_MODEL: (GATE_KERNEL, GATE_BIAS)} if options.gate == FEDERATED_MODEL else {}
        )
        separate = {model: {name: weights[name] for name in names} for model, names in separate_names.items()}
        network = {
            name: array
            for name, array in weights.items()
            if not any(name in names for names in separate_names.values())
        }
        drawn = {
            name_expert(k): model for k, model in enumerate(draw_initial_weights(network, num_experts, rng))
        }
        return ServerState(round=1, phase=PHASE_FEDERATE, models={**drawn, **separate})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        return make_broadcast(state, client_id, num_experts, threshold)

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
        conditions = read_conditions(shard, options.condition, len(phi))
        weights = {
            **{
                f"expert{slot}/{name}": array
                for slot, model in enumerate(models.values())
                for name, array in model.items()
            },
            **private,
            PHI_MODEL: phi,
            CONDITION_SHARE: rs.measure_shares(conditions, len(phi))[None].astype(np.float32),
            CHOSEN_EXPERTS: np.eye(num_experts, dtype=np.float32)[:, list(models)],
        }
        data = {"x": shard.x_train} | (
            {}
            if options.condition == "label"
            else {CONDITION: np.eye(len(phi), dtype=np.float32)[conditions]}
        )
        signature = name_train_signature(len(models), num_experts)
        trained, loss = learner.fit(
            signature, weights, data, shard.y_train, epochs=epochs, rng=rng, hyper=hyper
        )
        return {**weights, **trained}, loss

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        phi = broadcast.models[PHI_MODEL][PHI_MODEL]
        shares = rs.measure_shares(read_conditions(shard, options.condition, len(phi)), len(phi))
        models = select_experts(broadcast.models)
        used = choose_experts(
            models, rs.average_responsibilities(rs.normalize_logits(phi), shares), threshold
        )
        private = load_private_weights(learner, broadcast, state)
        now, loss = train({k: models[k] for k in used}, phi, private, shard, options.epochs, rng)
        after = rs.average_responsibilities(rs.normalize_logits(now[PHI_MODEL]), shares)
        if options.objective == LIKELIHOOD:
            trained_experts = {k: {name: now[f"expert{k}/{name}"] for name in models[k]} for k in used}
            after = apply_gate(mix_hidden_features(learner, trained_experts, after, shard.x_train), now).mean(
                axis=0
            )
        min_responsibility = min(threshold, max(after[k] for k in used))
        deltas = {
            name_expert(k): subtract({name: now[f"expert{slot}/{name}"] for name in models[k]}, models[k])
            for slot, k in enumerate(used)
            if after[k] >= min_responsibility
        }
        deltas[PHI_MODEL] = subtract({PHI_MODEL: now[PHI_MODEL]}, broadcast.models[PHI_MODEL])
        private_trained = {name: now[name] for name in private}
        if options.gate == FEDERATED_MODEL:
            deltas[GATE_MODEL] = subtract(
                {name: private_trained.pop(name) for name in (GATE_KERNEL, GATE_BIAS)},
                broadcast.models[GATE_MODEL],
            )
        metrics = {"loss": loss, **encode_responsibility(after)}
        update = Update(
            client_id=client_id,
            round=broadcast.round,
            num_samples=len(shard.y_train),
            deltas=deltas,
            metrics=metrics,
        )
        return update, replace(state, arrays={**state.arrays, **private_trained})

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        means, state = average_experts(state, updates, num_experts, threshold)
        if PHI_MODEL in means:
            phi = state.models[PHI_MODEL][PHI_MODEL]
            entropy_step = options.entropy * rs.differentiate_marginal_entropy(
                phi, np.full(len(phi), 1 / len(phi))
            )
            means[PHI_MODEL] = {PHI_MODEL: np.asarray(means[PHI_MODEL][PHI_MODEL] + entropy_step, np.float32)}
        return step_models(
            state,
            means,
            options.server_learning_rate,
            {PHI_MODEL: options.phi_learning_rate or options.server_learning_rate},
            options.server_optimizer,
        )

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        phi = broadcast.models[PHI_MODEL][PHI_MODEL]
        conditions = read_conditions(shard, options.condition, len(phi))
        condition_responsibility = rs.normalize_logits(phi)
        models = select_experts(broadcast.models)
        shares = rs.measure_shares(conditions, len(phi))
        q = rs.average_responsibilities(condition_responsibility, shares)
        used = choose_experts(models, q, threshold)
        remaining = {k: models[k] for k in used}
        q = rs.prune_experts(q, used)
        hidden = mix_hidden_features(learner, remaining, q, shard.x_train)
        private = load_private_weights(learner, broadcast, state)
        if options.gate == "local" and GATE_KERNEL not in state.arrays:
            data = {
                "hidden": hidden,
                "responsibility": condition_responsibility[conditions].astype(np.float32),
            }
            trained = learner.fit(
                TRAIN_GATE, private, data, shard.y_train, epochs=options.gate_epochs, rng=rng, hyper=hyper
            )[0]
            private = {**private, **trained}
        personal_models, personal_private, personal_q = remaining, private, q
        if options.personal_epochs:
            now, _ = train(remaining, phi, private, shard, options.personal_epochs, rng)
            personal_models = {
                k: {name: now[f"expert{slot}/{name}"] for name in model}
                for slot, (k, model) in enumerate(remaining.items())
            }
            personal_private = {name: now[name] for name in private}
            personal_q = rs.prune_experts(
                rs.average_responsibilities(rs.normalize_logits(now[PHI_MODEL]), shares), used
            )
            hidden = mix_hidden_features(learner, personal_models, personal_q, shard.x_train)
        weights = assemble_mixture(personal_models, personal_q, personal_private)
        shared = {name: np.zeros_like(array) for name, array in private.items()} | dict(
            broadcast.models.get(GATE_MODEL, {})
        )
        even = assemble_mixture(models, rs.prune_experts(np.zeros(num_experts), tuple(models)), shared)
        peers = {
            FEDERATED_MODEL: Peer(PREDICT_MIXTURE, even),
            "expert": Peer("predict", models[int(q.argmax())]),
        }
        usage = apply_gate(hidden, weights).mean(axis=0)
        diagnostics = {
            f"{kind}/{k}": float(v)
            for kind, row in (("responsibility", personal_q), ("gate", usage))
            for k, v in enumerate(row)
        }
        return Mixture(
            weights=weights,
            peers=peers,
            diagnostics=diagnostics | {"specialization": rs.measure_specialization(condition_responsibility)},
        ), state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        assert learner is not None
        phi = broadcast.models[PHI_MODEL][PHI_MODEL]
        conditions = read_conditions(shard, options.condition, len(phi))
        models = select_experts(broadcast.models)
        q = rs.average_responsibilities(rs.normalize_logits(phi), rs.measure_shares(conditions, len(phi)))
        used = choose_experts(models, q, threshold)
        weights = assemble_mixture(
            {k: models[k] for k in used},
            rs.prune_experts(q, used),
            load_private_weights(learner, broadcast, state),
        )
        return Peer(PREDICT_MIXTURE, weights)

    shared = (PHI_MODEL, GATE_MODEL) if options.gate == FEDERATED_MODEL else (PHI_MODEL,)
    return Algorithm(
        name="fedmix",
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        current=current,
        trained=TrainedModels(
            required=shared, choices=name_experts(num_experts), min_choices=1, max_choices=num_experts
        ),
    )


def read_conditions(shard: Shard, condition: str, count: int) -> Labels:
    """Return the condition of each training sample: its label or its side information.

    Args:
        condition: `label` or `side`.

    Returns:
        The conditions, shape (n,), int64.

    Raises:
        DataError: the shard has no side information for each sample, or it is out of range.
    """
    if condition == "label":
        return shard.y_train
    side = shard.side_train
    if side is None:
        raise DataError(
            'condition = "side" needs side information of each training sample, which only partitions of the '
            'simulator have, such as "rotation"; set condition = "label" in [algorithm] for other data'
        )
    if len(side) != len(shard.y_train) or (len(side) and not 0 <= side.min() <= side.max() < count):
        raise DataError(
            f"side_train has {len(side)} values for {len(shard.y_train)} samples, expected one each from 0 "
            f"to {count - 1}; set num_sides to the number of kinds"
        )
    return side


def load_private_weights(learner: Learner, broadcast: Broadcast, state: ClientState) -> dict[str, Array]:
    """Return the gate and the output bias of a client.

    A federated gate comes from the broadcast. All other weights come from the client's state, and are zeros
    without it.

    Args:
        broadcast: the broadcast of the round.
    """
    private = {}
    for spec in learner.spec.find_signature(TRAIN_MIXTURE).trained:
        if spec.name in (GATE_KERNEL, GATE_BIAS) or spec.name.startswith(f"{PERSONAL_BIAS_PREFIX}/"):
            array = broadcast.models.get(GATE_MODEL, {}).get(spec.name, state.arrays.get(spec.name))
            private[spec.name] = (
                array if array is not None and array.shape == spec.shape else np.zeros(spec.shape, np.float32)
            )
    return private


def assemble_mixture(
    models: Mapping[int, Weights], responsibility: rs.Real, private: Weights
) -> dict[str, Array]:
    """Return the weights of `predict_mixture`.

    The graph is the same for every client. So an expert that the client lacks is replaced by its likeliest
    expert, and the gate closes it.

    Args:
        models: the client's experts by index. At least one.
        responsibility: q(z|s), shape (experts,), float64.
        private: the client's gate and output bias.
    """
    count = len(responsibility)
    likeliest = max(models, key=lambda k: responsibility[k])
    added = strip_prefix(PERSONAL_BIAS_PREFIX, private)
    expert_weights = {
        f"expert{k}/{name}": array + added[name] if name in added else array
        for k in range(count)
        for name, array in models.get(k, models[likeliest]).items()
    }
    shares = {f"responsibility/{k}": np.array([value], np.float32) for k, value in enumerate(responsibility)}
    return {
        **expert_weights,
        **shares,
        GATE_KERNEL: private[GATE_KERNEL],
        GATE_BIAS: close_gate(private[GATE_BIAS], models),
    }


def close_gate(bias: Array, experts: Container[int]) -> Array:
    """Return the gate's bias with all other experts closed.

    Args:
        bias: b_s, shape (experts,), float32.
        experts: the experts that stay open.
    """
    closed = np.array([0.0 if k in experts else CLOSED_GATE_LOGIT for k in range(len(bias))], np.float32)
    return bias + closed


def list_gates(
    options: FedMixOptions,
    state: ServerState,
    client_states: Mapping[str, ClientState],
    sample_counts: Mapping[str, float],
) -> list[ParticipantGate]:
    """Return the gates of the participants, each over the experts that the participant has.

    q(z|s) is the one that the participant reported last, from the training that moved its gate last.

    Args:
        state: the last server state.
        client_states: states of the clients by client id. Not needed for a federated gate.
        sample_counts: number of training samples of each participant by client id.

    Raises:
        StateError: the gate of a participant is missing, because it is on the participant's device only, or
            it is damaged.
    """
    num_experts = options.num_experts
    models = select_experts(state.models)
    gates = []
    for client_id in sorted(sample_counts):
        responsibility = load_responsibility(state, client_id, num_experts)
        if responsibility is None:  # the server rejected all its updates
            continue
        if options.objective == LIKELIHOOD:  # the gate saw equal weights, and reported its own mean
            responsibility = np.full(num_experts, 1 / num_experts)
        gate = state.models.get(GATE_MODEL) or client_states.get(client_id, ClientState()).arrays
        if GATE_KERNEL not in gate:
            raise StateError(
                f"the gate of {client_id} is missing, expected the gates of all {len(sample_counts)} "
                "participants: a local gate never leaves its device, so only a simulation without [fleet] "
                'has them; add labels to the samples, or train with gate = "federated" in [algorithm]'
            )
        shapes = [np.shape(gate.get(name, ())) for name in (GATE_KERNEL, GATE_BIAS)]
        is_whole = shapes[0][1:] == shapes[1] == (num_experts,)
        if not is_whole or not all(np.isfinite(gate[name]).all() for name in (GATE_KERNEL, GATE_BIAS)):
            raise StateError(
                f"the gate of {client_id} is damaged, expected finite values for {num_experts} experts; run "
                "the federation again"
            )
        used = choose_experts(models, responsibility, options.prune / num_experts)
        gates.append(
            ParticipantGate(
                kernel=gate[GATE_KERNEL],
                bias=close_gate(gate[GATE_BIAS], used),
                responsibility=rs.prune_experts(responsibility, used),
                num_samples=sample_counts[client_id],
            )
        )
    return gates


def name_train_signature(count: int, num_experts: int) -> str:
    """Return the name of the training signature for a client that is left with `count` experts.

    Args:
        count: number of experts that the client trains, from 1 to `num_experts`.
        num_experts: number of experts, K.
    """
    return TRAIN_MIXTURE if count == num_experts else f"{TRAIN_MIXTURE}_{count}"


def list_expert_counts(options: FedMixOptions) -> range:
    """Return the numbers of experts that a client may be left with."""
    return range(1 if options.prune else options.num_experts, options.num_experts + 1)


def make_gate_specs(width: int, num_experts: int) -> tuple[TensorSpec, ...]:
    """Return the specs of the gate's weights A, shape (width, experts), and b, shape (experts,), float32.

    Args:
        width: input size of an expert's last layer (`Network.hidden_width`).
        num_experts: number of experts, K.

    Source: Reisser et al., arXiv:2107.06724, equation 9.
    """
    return TensorSpec(GATE_KERNEL, (width, num_experts)), TensorSpec(GATE_BIAS, (num_experts,))


def build_fedmix_objectives(network: "Network", options: FedMixOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedMix.

    These are `train_mixture` for each number of experts left, `hidden_logits`, `train_gate`, `predict` and
    `predict_mixture`.

    Args:
        network: the model of an expert.

    Raises:
        ConfigError: the option bias is set, but the output layer has no bias.

    Source: Reisser et al., arXiv:2107.06724, equations 3 and 9 and algorithm 2.
    """
    from edgefl.program.compiler import objective as of

    return (
        *(_build_training(network, options, count) for count in list_expert_counts(options)),
        _build_hidden_logits(network),
        _build_gate_training(network, options),
        of.predict_logits(network, of.PREDICT_BATCH),
        _build_mixture_prediction(network, options),
    )


def _count_conditions(network: "Network", options: FedMixOptions) -> int:
    return int(network.num_classes if options.condition == "label" else options.num_sides)


def _find_output_bias(network: "Network", options: FedMixOptions) -> tuple[TensorSpec, ...]:
    if not options.bias:
        return ()
    head = network.select(network.head_names)
    biases = [spec for spec in head if spec.name.endswith("/bias") and spec.shape == (network.num_classes,)]
    if not biases:
        raise ConfigError(
            "[algorithm] bias = true, but the model's last layer has no bias; add one, or leave bias out"
        )
    return (TensorSpec(f"{PERSONAL_BIAS_PREFIX}/{biases[-1].name}", biases[-1].shape),)


def _build_training(network: "Network", options: FedMixOptions, count: int) -> "Objective":
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.mixing import split_columns, weighted_sum
    from edgefl.program.compiler.optimizer import sgd

    num_experts = options.num_experts
    batch = options.batch_size
    output_bias = _find_output_bias(network, options)
    by_label = options.condition == "label"
    conditions = _count_conditions(network, options)
    direct = options.objective == LIKELIHOOD
    gate = make_gate_specs(network.hidden_width, num_experts)
    phi = TensorSpec(PHI_MODEL, (conditions, num_experts))

    def compute_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        num_samples = data["x"].shape[0]  # the batch, or a part of it
        condition_responsibility = tf.nn.softmax(weights[PHI_MODEL])
        condition = tf.one_hot(data["y"], conditions) if by_label else data[CONDITION]
        for_gate = tf.matmul(condition, condition_responsibility)
        used = for_gate
        marginal = tf.matmul(weights[CONDITION_SHARE], condition_responsibility)
        if count < num_experts:
            used, marginal = (_select_chosen(values, weights[CHOSEN_EXPERTS]) for values in (used, marginal))
        hidden = []
        losses = []
        assigned: dict[str, Tensor] = {}
        for k in range(count):
            expert_weights = strip_prefix(f"expert{k}", weights)
            logits, below, updates = network.apply_hidden(
                expert_weights, data["x"], training=True, noise=strip_prefix(f"expert{k}", noise)
            )
            logits = logits + weights[output_bias[0].name] if output_bias else logits
            losses.append(tf.reshape(of.cross_entropy(logits, data["y"]), (num_samples, 1)))
            hidden.append(below)
            assigned |= {f"expert{k}/{name}": value for name, value in updates.items()}
        gated = tf.nn.log_softmax(
            tf.matmul(weighted_sum(split_columns(marginal), hidden), weights[GATE_KERNEL])
            + weights[GATE_BIAS]
        )
        if direct:
            joint = tf.stop_gradient(gated - tf.concat(losses, axis=1))
            used = for_gate = tf.nn.softmax(joint)
            gated = gated - tf.nn.log_softmax(joint)  # adds the entropy of the posterior
        if options.client_entropy:
            gated = gated - tf.matmul(condition, tf.nn.log_softmax(weights[PHI_MODEL]))
        gate_bound = tf.reduce_sum(for_gate * gated, axis=1)
        return tf.reshape(weighted_sum(split_columns(used), losses), (num_samples,)) - gate_bound, assigned

    fixed = tuple(
        spec for spec in network.specs if spec.name not in (*network.trainable, *network.statistics)
    )
    moving = network.select((*network.trainable, *network.statistics))
    prefixes = [f"expert{k}" for k in range(count)]
    chosen = (TensorSpec(CHOSEN_EXPERTS, (num_experts, count)),) * (count < num_experts)
    side = () if by_label else (TensorSpec(CONDITION, (batch, conditions)),)
    federated = gate if options.gate == "federated" else ()
    return of.Objective(
        name=name_train_signature(count, num_experts),
        kind="train",
        batch_size=batch,
        data=(of.make_input_spec(network, batch), *side),
        trained=(
            *(spec for prefix in prefixes for spec in prefix_specs(prefix, moving)),
            *(() if direct else (phi,)),
            *gate,
            *output_bias,
        ),
        frozen=(
            *(spec for prefix in prefixes for spec in prefix_specs(prefix, fixed)),
            *((phi,) if direct else ()),
            TensorSpec(CONDITION_SHARE, (1, conditions)),
            *chosen,
        ),
        noise=tuple(spec for prefix in prefixes for spec in prefix_specs(prefix, network.list_noise(batch))),
        assigned=tuple(f"{prefix}/{name}" for prefix in prefixes for name in network.statistics),
        initial={spec.name: np.zeros(spec.shape, np.float32) for spec in (phi, *federated)},
        optimizer=sgd(options.learning_rate),
        loss_per_sample=compute_loss,
    )


def _select_chosen(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the columns of the remaining experts, each row scaled to sum to 1."""
    import tensorflow as tf

    remaining = tf.matmul(values, chosen)
    return remaining / tf.reduce_sum(remaining, axis=1, keepdims=True)


def _build_hidden_logits(network: "Network") -> "Objective":
    """Return the objective that predicts the input of an expert's last dense layer and its logits.

    The output has the shape (batch, hidden_width + classes), float32.
    """
    from edgefl.program.compiler import objective as of

    def predict_hidden_logits(weights: Tensors, data: Tensors) -> Tensor:
        import tensorflow as tf

        logits, hidden, _ = network.apply_hidden(weights, data["x"])
        return tf.concat([hidden, logits], axis=1)

    return of.Objective(
        name=HIDDEN_LOGITS,
        kind="predict",
        batch_size=of.PREDICT_BATCH,
        data=(of.make_input_spec(network, of.PREDICT_BATCH),),
        frozen=network.specs,
        out=predict_hidden_logits,
    )


def _build_gate_training(network: "Network", options: FedMixOptions) -> "Objective":
    """Return the objective that trains only theta_s, on an h_s that is computed once.

    A client that took part in no round needs it.
    """
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.optimizer import sgd

    batch = options.batch_size
    width = network.hidden_width
    data = (
        TensorSpec("hidden", (batch, width)),
        TensorSpec("responsibility", (batch, options.num_experts)),
    )

    def compute_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        gated = tf.matmul(data["hidden"], weights[GATE_KERNEL]) + weights[GATE_BIAS]
        return -tf.reduce_sum(data["responsibility"] * tf.nn.log_softmax(gated), axis=1), {}

    gate = make_gate_specs(width, options.num_experts)
    return of.Objective(
        name=TRAIN_GATE,
        kind="train",
        batch_size=batch,
        data=data,
        trained=gate,
        optimizer=sgd(options.learning_rate),
        loss_per_sample=compute_loss,
    )


def _build_mixture_prediction(network: "Network", options: FedMixOptions) -> "Objective":
    """Return `predict_mixture`, log sum_k p(k|x,s) p_k(y|x). The export contains the probabilities."""
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.mixing import (
        mix_log_probabilities,
        mix_probabilities,
        split_columns,
        weighted_sum,
    )

    num_experts = options.num_experts

    def apply_experts(weights: Tensors, data: Tensors) -> tuple[list[Tensor], list[Tensor]]:
        import tensorflow as tf

        outputs = [
            network.apply_hidden(strip_prefix(f"expert{k}", weights), data["x"]) for k in range(num_experts)
        ]
        shares = [weights[f"responsibility/{k}"] for k in range(num_experts)]
        gated = (
            tf.matmul(weighted_sum(shares, [output[1] for output in outputs]), weights[GATE_KERNEL])
            + weights[GATE_BIAS]
        )
        return split_columns(tf.nn.softmax(gated)), [output[0] for output in outputs]

    def predict_log_probabilities(weights: Tensors, data: Tensors) -> Tensor:
        return mix_log_probabilities(*apply_experts(weights, data))

    def predict_probabilities(weights: Tensors, data: Tensors) -> Tensor:
        return mix_probabilities(*apply_experts(weights, data))

    batch = of.PREDICT_BATCH
    experts = tuple(spec for k in range(num_experts) for spec in prefix_specs(f"expert{k}", network.specs))
    shares = tuple(TensorSpec(f"responsibility/{k}", (1,)) for k in range(num_experts))
    mixing_specs = (*shares, *make_gate_specs(network.hidden_width, num_experts))
    return of.Objective(
        name=PREDICT_MIXTURE,
        kind="predict",
        batch_size=batch,
        data=(of.make_input_spec(network, batch),),
        frozen=(*experts, *mixing_specs),
        out=predict_log_probabilities,
        export_out=predict_probabilities,
    )


ENTRIES = {
    "fedmix": Entry(
        options=FedMixOptions,
        factory=fedmix,
        objectives=build_fedmix_objectives,
        source="Reisser et al., arXiv:2107.06724",
        models="num_experts",
        resolve=resolve_fedmix_options,
        needs_classes="its responsibilities q(z|y) are a table over classes",
        list_gates=list_gates,
        trains_one_model=False,
    )
}

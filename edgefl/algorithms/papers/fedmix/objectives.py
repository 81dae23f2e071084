"""What a plan holds for FedMix: the experts, phi and the gate trained in one step, the gate alone, and the
mixture.

Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, equations 6 and 9 without the entropy term,
and algorithm 2.
A signature for each number of experts that a client may be left with: what is pruned costs no time either.
Which are left is settled once a round, not before each batch, for a program's shapes are fixed. q(z|s) is
computed in the step, from phi and the client's p(y|s): so the gate's term moves phi by way of h_s too, and
the experts by way of h_k, as the paper's gradients do.

objective = "likelihood" is equation 3 itself: the bound with the true posterior p(z|x,y,s) for q(z|y), held
fixed in the gradient, and with its entropy, has the value and the gradients of -log sum_z p(z|x,s) p(y|x,z).
phi stays uniform, for h_s.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.errors import ConfigError
from edgefl.plan.spec import TensorSpec

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

TRAIN = "train_mixture"
HIDDEN_LOGITS = "hidden_logits"
TRAIN_GATE = "train_gate"
MIXTURE = "predict_mixture"
PHI = "phi"
KERNEL = "gate/kernel"
BIAS = "gate/bias"
PERSONAL = "personal"
"""Before the name of the weight that a client adds its own to: the bias of the last layer."""
SHARE = "condition_share"
CHOSEN = "chosen"
CONDITION = "condition"
BOUND = "bound"
LIKELIHOOD = "likelihood"


def train_name(count: int, num_experts: int) -> str:
    """Return the training signature's name of a client that is left with `count` experts."""
    return TRAIN if count == num_experts else f"{TRAIN}_{count}"


def left_with(options: Mapping[str, Any]) -> range:
    """Return how many experts a client may be left with."""
    return range(1 if options["prune"] else options["num_experts"], options["num_experts"] + 1)


def gate_specs(width: int, num_experts: int) -> tuple[TensorSpec, ...]:
    """Return A and b of equation 9: float32[width, experts] and float32[experts]."""
    return TensorSpec(KERNEL, (width, num_experts)), TensorSpec(BIAS, (num_experts,))


def fedmix_objectives(network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
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


def _conditions(network: "Network", options: Mapping[str, Any]) -> int:
    return int(network.num_classes if options["condition"] == "label" else options["num_sides"])


def _output_bias(network: "Network", options: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    if not options["bias"]:
        return ()
    head = network.select(network.head_names)
    found = [spec for spec in head if spec.name.endswith("/bias") and spec.shape == (network.num_classes,)]
    if not found:
        raise ConfigError(
            "[algorithm] bias = true, but the model's last layer has none; give it one, or leave bias out"
        )
    return (TensorSpec(f"{PERSONAL}/{found[-1].name}", found[-1].shape),)


def _train(network: "Network", options: Mapping[str, Any], count: int) -> "Objective":
    from edgefl.compiler import objective as of
    from edgefl.compiler.mixing import columns, weighted_sum
    from edgefl.compiler.optimizer import sgd

    num_experts = options["num_experts"]
    batch = of.batch_of(options, "batch_size")
    output_bias = _output_bias(network, options)
    by_label = options["condition"] == "label"
    conditions = _conditions(network, options)
    direct = options["objective"] == LIKELIHOOD
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
            own = of.under(f"expert{k}", weights)
            logits, below, updates = network.apply_hidden(
                own, data["x"], training=True, noise=of.under(f"expert{k}", noise)
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
    federated = gate if options["gate"] == "federated" else ()
    return of.Objective(
        train_name(count, num_experts),
        "train",
        batch,
        (of.samples(network, batch), *side),
        (
            *(spec for prefix in prefixes for spec in of.prefixed(prefix, moving)),
            *(() if direct else (phi,)),
            *gate,
            *output_bias,
        ),
        (
            *(spec for prefix in prefixes for spec in of.prefixed(prefix, fixed)),
            *((phi,) if direct else ()),
            TensorSpec(SHARE, (1, conditions)),
            *chosen,
        ),
        tuple(spec for prefix in prefixes for spec in of.prefixed(prefix, network.noise(batch))),
        tuple(f"{prefix}/{name}" for prefix in prefixes for name in network.statistics),
        {spec.name: np.zeros(spec.shape, np.float32) for spec in (phi, *federated)},
        sgd(options["learning_rate"]),
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


def _train_gate(network: "Network", options: Mapping[str, Any]) -> "Objective":
    """Train theta_s alone, on h_s that was computed once: what a client needs that took part in no round."""
    from edgefl.compiler import objective as of
    from edgefl.compiler.optimizer import sgd

    batch = of.batch_of(options, "batch_size")
    width = network.hidden_width
    data = (
        TensorSpec("hidden", (batch, width)),
        TensorSpec("responsibility", (batch, options["num_experts"])),
    )

    def loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        gated = tf.matmul(data["hidden"], weights[KERNEL]) + weights[BIAS]
        return -tf.reduce_sum(data["responsibility"] * tf.nn.log_softmax(gated), axis=1), {}

    gate = gate_specs(width, options["num_experts"])
    return of.Objective(
        TRAIN_GATE, "train", batch, data, gate, optimizer=sgd(options["learning_rate"]), loss_per_sample=loss
    )


def _mixture(network: "Network", options: Mapping[str, Any]) -> "Objective":
    """Give log sum_k p(k|x,s) p_k(y|x); exported, the probabilities."""
    from edgefl.compiler import objective as of
    from edgefl.compiler.mixing import columns, log_mixed, mixed, weighted_sum

    num_experts = options["num_experts"]

    def parts(weights: Tensors, data: Tensors) -> tuple[list[Tensor], list[Tensor]]:
        import tensorflow as tf

        seen = [network.apply_hidden(of.under(f"expert{k}", weights), data["x"]) for k in range(num_experts)]
        shares = [weights[f"responsibility/{k}"] for k in range(num_experts)]
        gated = tf.matmul(weighted_sum(shares, [each[1] for each in seen]), weights[KERNEL]) + weights[BIAS]
        return columns(tf.nn.softmax(gated)), [each[0] for each in seen]

    def out(weights: Tensors, data: Tensors) -> Tensor:
        return log_mixed(*parts(weights, data))

    def exported(weights: Tensors, data: Tensors) -> Tensor:
        return mixed(*parts(weights, data))

    batch = of.PREDICT_BATCH
    experts = tuple(spec for k in range(num_experts) for spec in of.prefixed(f"expert{k}", network.specs))
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

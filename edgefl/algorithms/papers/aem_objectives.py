"""What the plan of Adaptive Expert Models holds beside IFCA's: local model, gate and mixture. Citation and
equations: `aem`.

The gate never sees an expert's weights: each expert's probability of the right label is data of `train_gate`,
`likelihood`: float32[batch, J + 1], computed once a client. The loss of a sample is then -log sum_j g_j(x)
likelihood_j.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.algorithms.papers.ifca import ifca_objectives, name_of
from edgefl.errors import ConfigError
from edgefl.plan.spec import TensorSpec
from edgefl.types import Array, Weights

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

LOCAL = "local"
GATE = "gate"
TINY = 1e-7
_MODELS = {"cnn": "gate-cnn"}


@dataclass(frozen=True)
class Gate:
    """Which weights a gate has, and its logits float32[batch, experts] of what it sees.

    sees: the name of its data tensor, with its shape a sample. logits(weights, data, training, noise) gives
    also what a training pass assigns.
    """

    sees: str
    shape: tuple[int, ...]
    specs: tuple[TensorSpec, ...]
    logits: Callable[[Tensors, Tensor, bool, Tensors | None], tuple[Tensor, dict[str, Tensor]]]
    noise: Callable[[int], tuple[TensorSpec, ...]] = lambda batch_size: ()
    statistics: tuple[str, ...] = ()
    initial: Mapping[str, Any] = field(default_factory=dict)


def aem_objectives(network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    """Return IFCA's; the local model's; the gate's training and its weights; the mixture.

    Raises ConfigError for a gate or a local model that does not exist, or when the network has a layer of
    such a name.
    """
    from edgefl.compiler import objective as of
    from edgefl.compiler.optimizer import adamw

    taken = sorted({spec.name.split("/")[0] for spec in network.specs} & {LOCAL, GATE})
    if taken:
        raise ConfigError(
            f"a layer of the model is named {taken[0]!r}, which is the name of a part of the mixture; give "
            "it another"
        )
    train, predict, _ = ifca_objectives(network, options)
    batch = of.batch_of(options, "batch_size")
    optimizer = adamw(options["local_learning_rate"], weight_decay=options["local_weight_decay"])
    other = (
        _network(network, options["local_model"], network.num_classes, options["local_options"])
        if options["local_model"]
        else None
    )
    local = other or network
    gate = make_gate(network, options)
    found = [train, predict, of.classify(local, batch, optimizer, "train_local")]
    if other is not None:
        start = {f"{LOCAL}/{name}": array for name, array in other.initial_weights().items()}
        found[-1:] = [_starting(found[-1], start), of.predict(other, of.PREDICT_BATCH, "predict_local")]
        if options["baselines"]:
            found.append(of.classify(network, batch, optimizer, "train_tuned"))
    if gate.sees == "features":
        found.append(of.features(network, of.PREDICT_BATCH))
    return (
        *found,
        _train_gate(gate, batch, options),
        _predict_gate(gate),
        _mixture(network, local, gate, options["num_experts"]),
    )


def make_gate(network: "Network", options: Mapping[str, Any]) -> Gate:
    """Return the gate that the options name, over num_experts cluster models and the local one."""
    kind = options["gate"]
    count = options["num_experts"] + 1
    if kind not in ("pixels", "features"):
        return _network_gate(_network(network, _MODELS.get(kind, kind), count, options["gate_options"]))
    if options["gate_options"]:
        raise ConfigError(
            f"[algorithm] the gate {kind!r} has no options, received {', '.join(options['gate_options'])}; "
            "remove them"
        )
    shape = network.input_shape if kind == "pixels" else network.features_shape
    kernel = TensorSpec(f"{GATE}/kernel", (math.prod(shape), count))
    bias = TensorSpec(f"{GATE}/bias", (count,))

    def logits(
        weights: Tensors, seen: Tensor, training: bool, noise: Tensors | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        flat = tf.reshape(seen, (seen.shape[0], math.prod(shape)))
        return tf.matmul(flat, weights[kernel.name]) + weights[bias.name], {}

    return Gate("x" if kind == "pixels" else "features", shape, (kernel, bias), logits)


def for_sum(gate: Weights, num_experts: int) -> dict[str, Array]:
    """Return a gate on the sum of the experts' features that does what this one does on their mean.

    The mixture only adds up: the converter would fold a division into the kernel, where a device cannot fill
    it in.
    """
    kernel = f"{GATE}/kernel"
    return {**gate, kernel: np.asarray(gate[kernel] / np.float32(num_experts), np.float32)}


def _network(network: "Network", name: str, num_classes: int, options: Mapping[str, Any]) -> "Network":
    from edgefl.compiler.network import Network
    from edgefl.config import ModelConfig
    from edgefl.models import build_model

    return Network(build_model(ModelConfig(name, network.input_shape, num_classes, options)))


def _network_gate(own: "Network") -> Gate:
    from edgefl.compiler import objective as of

    def logits(
        weights: Tensors, seen: Tensor, training: bool, noise: Tensors | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        found, updates = own.apply(of.under(GATE, weights), seen, training=training, noise=noise)
        return found, {f"{GATE}/{name}": value for name, value in updates.items()}

    initial = {f"{GATE}/{name}": array for name, array in own.initial_weights().items()}
    statistics = tuple(f"{GATE}/{name}" for name in own.statistics)
    return Gate("x", own.input_shape, of.prefixed(GATE, own.specs), logits, own.noise, statistics, initial)


def _starting(objective: "Objective", initial: Mapping[str, Any]) -> "Objective":
    from dataclasses import replace

    return replace(objective, initial=initial)


def _train_gate(gate: Gate, batch: int, options: Mapping[str, Any]) -> "Objective":
    from edgefl.compiler import objective as of
    from edgefl.compiler.optimizer import adamw

    def loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        logits, updates = gate.logits(weights, data[gate.sees], True, noise)
        mixed = tf.reduce_sum(tf.nn.softmax(logits) * data["likelihood"], axis=-1)
        return -tf.math.log(mixed + TINY), updates

    data = (
        TensorSpec(gate.sees, (batch, *gate.shape)),
        TensorSpec("likelihood", (batch, options["num_experts"] + 1)),
    )
    optimizer = adamw(options["gate_learning_rate"], weight_decay=options["gate_weight_decay"])
    return of.Objective(
        "train_gate",
        "train",
        batch,
        data,
        gate.specs,
        noise=gate.noise(batch),
        assigned=gate.statistics,
        initial=gate.initial,
        optimizer=optimizer,
        loss_per_sample=loss,
    )


def _predict_gate(gate: Gate) -> "Objective":
    from edgefl.compiler import objective as of

    def out(weights: Tensors, data: Tensors) -> Tensor:
        import tensorflow as tf

        return tf.nn.softmax(gate.logits(weights, data[gate.sees], False, None)[0])

    data = (TensorSpec(gate.sees, (of.PREDICT_BATCH, *gate.shape)),)
    return of.Objective("predict_gate", "predict", of.PREDICT_BATCH, data, frozen=gate.specs, out=out)


def _mixture(network: "Network", local: "Network", gate: Gate, num_experts: int) -> "Objective":
    """Return predict_mixture: the log of the mixed probability. Exported is the probability itself, for a LOG
    has no int8 form.
    """
    import tensorflow as tf

    from edgefl.compiler import objective as of

    names = [name_of(index) for index in range(num_experts)]

    def mixed(weights: Tensors, data: Tensors) -> Tensor:
        x = data["x"]
        trunks = [network.trunk(of.under(name, weights), x) for name in names]
        logits = [network.head(of.under(name, weights), h) for name, h in zip(names, trunks, strict=True)]
        logits.append(local.apply(of.under(LOCAL, weights), x)[0])
        seen = (
            x if gate.sees == "x" else sum(trunks[1:], trunks[0])
        )  # the gate's kernel holds the mean's division: see `for_sum`
        g = tf.nn.softmax(gate.logits(weights, seen, False, None)[0])
        parts = [g[:, i : i + 1] * tf.nn.softmax(each) for i, each in enumerate(logits)]
        return sum(parts[1:], parts[0])

    experts = tuple(spec for name in names for spec in of.prefixed(name, network.specs))
    frozen = (*experts, *of.prefixed(LOCAL, local.specs), *gate.specs)
    return of.Objective(
        "predict_mixture",
        "predict",
        of.PREDICT_BATCH,
        (of.samples(network, of.PREDICT_BATCH),),
        frozen=frozen,
        out=lambda weights, data: tf.math.log(mixed(weights, data) + TINY),
        exported=mixed,
    )

"""What the plan holds for FedAvg and the PFL family: the algorithms' losses as signatures. Imports TensorFlow; no device loads it."""

import math
from collections.abc import Mapping
from typing import Any

from edgefl.errors import ConfigError
from edgefl.plan import objective as of
from edgefl.plan.network import Network
from edgefl.plan.optimizer import adam, sgd
from edgefl.plan.spec import TensorSpec

PREDICT_BATCH = 16  # of LeNet-5 at 64 the tensors alone take 7 MB more
GATE_BATCH = 64


def fedavg_objectives(network: Network, options: Mapping[str, Any]) -> tuple[of.Objective, ...]:
    """Return train, predict and, the same graph, predict_mixture."""
    optimizer = sgd(options["learning_rate"], momentum=options["momentum"], weight_decay=options["weight_decay"])
    return (
        of.classify(network, _batch(options, "batch_size"), optimizer),
        of.predict(network, PREDICT_BATCH),
        of.predict(network, PREDICT_BATCH, "predict_mixture"),
    )


def pfl_moe_objectives(kind: str, network: Network, options: Mapping[str, Any]) -> tuple[of.Objective, ...]:
    """Return FedAvg's, the split at the classifier, the gate's training (MF, MFE) and the mixture."""
    train, predict, _ = fedavg_objectives(network, options)
    adapt = sgd(options["adapt_learning_rate"], momentum=options["adapt_momentum"], weight_decay=options["adapt_weight_decay"])
    shared = (
        train,
        predict,
        of.features(network, PREDICT_BATCH),
        of.train_head(network, _batch(options, "adapt_batch_size"), adapt),
        of.predict_head(network, PREDICT_BATCH),
    )
    if kind == "fb":
        return (*shared, _mixture(network, None))
    shape = network.features_shape if kind == "mfe" else network.input_shape
    width = math.prod(shape)
    gate = (TensorSpec("gate/kernel", (width, 1)), TensorSpec("gate/bias", (1,)))
    data = (TensorSpec("gate_input", (GATE_BATCH, width)), TensorSpec("logits", (GATE_BATCH, 2, network.num_classes)))

    def loss(weights: of.Tensors, data: of.Tensors, noise: of.Tensors) -> tuple[of.Tensor, dict[str, of.Tensor]]:
        logits = data["logits"]
        mixed = _mix(_gate(weights, data["gate_input"]), logits[:, 0], logits[:, 1])
        return of.cross_entropy(mixed, data["y"]), {}

    optimizer = adam(options["gate_learning_rate"])
    train_gate = of.Objective("train_gate", "train", GATE_BATCH, data, gate, optimizer=optimizer, loss_per_sample=loss)
    return (*shared, train_gate, _mixture(network, kind, gate))


def _batch(options: Mapping[str, Any], key: str) -> int:
    if options[key] < 1:
        raise ConfigError(f"[algorithm] {key} is {options[key]}, expected 1 or more")
    return int(options[key])


def _gate(weights: of.Tensors, inputs: of.Tensor) -> of.Tensor:
    import tensorflow as tf

    return tf.sigmoid(tf.matmul(inputs, weights["gate/kernel"]) + weights["gate/bias"])


def _mix(g: of.Tensor, first: of.Tensor, second: of.Tensor) -> of.Tensor:
    return g * first + (1.0 - g) * second


def _mixture(network: Network, kind: str | None, gate: tuple[TensorSpec, ...] = ()) -> of.Objective:
    """Return predict_mixture: one trunk, the local head (FB), or both heads under the gate."""
    trunk, head = network.select(network.trunk_names), network.select(network.head_names)
    prefixes = ("local",) if kind is None else ("global", "local")
    heads = tuple(spec for prefix in prefixes for spec in of.prefixed(prefix, head))

    def out(weights: of.Tensors, data: of.Tensors) -> of.Tensor:
        import tensorflow as tf

        features = network.trunk(weights, data["x"])
        logits = [network.head(of.under(prefix, weights), features) for prefix in prefixes]
        if kind is None:
            return logits[0]
        seen = features if kind == "mfe" else tf.reshape(data["x"], (data["x"].shape[0], -1))
        return _mix(_gate(weights, seen), *logits)

    data = (of.samples(network, PREDICT_BATCH),)
    return of.Objective("predict_mixture", "predict", PREDICT_BATCH, data, frozen=(*trunk, *heads, *gate), out=out)

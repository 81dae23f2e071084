"""PFL-MoE: a personal classifier, mixed with the global classifier by a gate.

After FedAvg, each client copies the classifier (FC1-3), freezes the convolutions and trains the copy on
D_per. Then it trains g = sigmoid(gate(z)) on D_gate. The gate's input z is the image (MF) or the features
(MFE). The mixture is logits = g * global(x) + (1 - g) * local(x). FB uses only the copy and trains it on all
of D.

Algorithm 2, line 7 of the paper updates theta, but means theta_Ci, the client's copy.

Communication cost: as in FedAvg. Personal weights do not leave the device.

Source: Guo et al., PFL-MoE: Personalized Federated Learning Based on Mixture of Experts, 2020, algorithms 1
and 2.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.entry import Entry
from edgefl.algorithms.mixtures.gate import split_gate_samples
from edgefl.algorithms.names import FEDERATED_MODEL, GLOBAL, prefix_specs, strip_prefix, with_prefix
from edgefl.algorithms.options import extend_epochs
from edgefl.algorithms.papers.fedavg import build_fedavg_objectives, fedavg
from edgefl.algorithms.papers.pfl_ft import PflFtOptions
from edgefl.learner.base import Learner
from edgefl.plan.spec import TensorSpec
from edgefl.types import Broadcast, ClientState, Mixture, Peer, Shard, Weights

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

PflMoeKind = Literal["fb", "mf", "mfe"]
ADAPTED = "adapted"
"""The peer of a mixture that is its local expert without the gate, called PFL-FB in the paper's tables."""


@dataclass(frozen=True)
class PflMoeOptions(PflFtOptions):
    """Options of PFL-FT, whose personal training trains only the classifier here, and of the gate.

    Attributes:
        gate_epochs: epochs of the gate's training.
        gate_learning_rate: step size of the gate's Adam.
        gate_share: share of the client's samples that train the gate instead of the classifier.
    """

    gate_epochs: int = 10
    gate_learning_rate: float = 0.001
    gate_share: float = 0.25


def pfl_moe(kind: PflMoeKind, learner: Learner | None, options: PflMoeOptions) -> Algorithm:
    """Return FedAvg whose clients end with a personal classifier, and with a gate for MF and MFE.

    Args:
        kind: `fb`, `mf` or `mfe`.
        learner: runs the plan. The aggregator passes None.
        options: the options of the algorithm.

    Raises:
        ConfigError: as in `fedavg`.

    Source: Guo et al., 2020, algorithms 1 and 2.
    """

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        model = broadcast.models[GLOBAL]
        peers = {FEDERATED_MODEL: Peer("predict", model)}
        trunk = {spec.name: model[spec.name] for spec in learner.spec.find_signature("features").frozen}
        head = {spec.name: model[spec.name] for spec in learner.spec.find_signature("predict_head").frozen}
        features = learner.predict("features", trunk, {"x": shard.x_train})

        def train_head(index: np.ndarray) -> Weights:
            data = {"features": features[index]}
            trained, _ = learner.fit(
                "train_head",
                head,
                data,
                shard.y_train[index],
                epochs=options.count_epochs(len(index)),
                rng=rng,
                hyper=options.adapt_hyper,
            )
            return {**head, **trained}

        if kind == "fb":
            return Mixture(
                {**trunk, **with_prefix("local", train_head(np.arange(len(features))))}, peers
            ), state

        local_rows, gate_rows = split_gate_samples(shard.y_train, options.gate_share, rng, shard.group_train)
        local = train_head(local_rows)
        gate_features = {"features": features[gate_rows]}
        logits = np.stack(
            [learner.predict("predict_head", classifier, gate_features) for classifier in (head, local)],
            axis=1,
        )
        inputs = (
            features[gate_rows] if kind == "mfe" else shard.x_train[gate_rows].reshape(len(gate_rows), -1)
        )
        zeros = {
            spec.name: np.zeros(spec.shape, np.float32)
            for spec in learner.spec.find_signature("train_gate").trained
        }
        data = {"gate_input": inputs, "logits": logits}
        hyper = {"learning_rate": options.gate_learning_rate}
        batch = learner.spec.find_signature("train_gate").batch_size
        epochs = extend_epochs(options.gate_epochs, options.least_steps, len(gate_rows), batch)
        gate = learner.fit(
            "train_gate", zeros, data, shard.y_train[gate_rows], epochs=epochs, rng=rng, hyper=hyper
        )[0]
        peers[ADAPTED] = Peer("predict", {**model, **local})
        all_inputs = features if kind == "mfe" else shard.x_train.reshape(len(features), -1)
        # The local share is 1 - sigmoid(gate).
        local_share = float(
            np.mean(0.5 - 0.5 * np.tanh(0.5 * (all_inputs @ gate["gate/kernel"] + gate["gate/bias"])))
        )
        usage = {"gate/global": 1 - local_share, "gate/local": local_share}
        return Mixture(
            {**trunk, **with_prefix("global", head), **with_prefix("local", local), **gate}, peers, usage
        ), state

    return replace(fedavg(learner, options), name=f"pfl-{kind}", personalize=personalize)


def build_pfl_moe_objectives(
    kind: PflMoeKind, network: "Network", options: PflMoeOptions
) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, the split classifier, the gate (MF, MFE) and the mixture.

    Args:
        kind: `fb` without a gate, `mf` with a gate on the image, or `mfe` with a gate on the features.
        network: the model. Its trunk is frozen in the personal training, and its head is the classifier.
        options: the options of the algorithm.

    Source: Guo et al., 2020, algorithms 1 and 2.
    """
    from edgefl.compiler import objective as of
    from edgefl.compiler.optimizer import adam

    train, predict, _ = build_fedavg_objectives(network, options)
    shared = (
        train,
        predict,
        of.extract_features(network, of.PREDICT_BATCH),
        of.train_head(network, options.adapt_batch_size, options.make_adapt_optimizer()),
        of.predict_head(network, of.PREDICT_BATCH),
    )
    if kind == "fb":
        return (*shared, _build_mixture_prediction(network, None))
    shape = network.features_shape if kind == "mfe" else network.input_shape
    width = math.prod(shape)
    gate = (TensorSpec("gate/kernel", (width, 1)), TensorSpec("gate/bias", (1,)))
    data = (
        TensorSpec("gate_input", (of.GATE_BATCH, width)),
        TensorSpec("logits", (of.GATE_BATCH, 2, network.num_classes)),
    )

    def compute_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        logits = data["logits"]
        mixed = _mix_logits(_apply_gate(weights, data["gate_input"]), logits[:, 0], logits[:, 1])
        return of.measure_loss_per_sample(network, mixed, data["y"]), {}

    optimizer = adam(options.gate_learning_rate)
    train_gate = of.Objective(
        "train_gate",
        "train",
        of.GATE_BATCH,
        data,
        gate,
        optimizer=optimizer,
        loss_per_sample=compute_loss,
        label=of.make_label_spec(network, of.GATE_BATCH),
    )
    return (*shared, train_gate, _build_mixture_prediction(network, kind, gate))


def _apply_gate(weights: Tensors, inputs: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.sigmoid(tf.matmul(inputs, weights["gate/kernel"]) + weights["gate/bias"])


def _mix_logits(g: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return g * first + (1.0 - g) * second


def _build_mixture_prediction(
    network: "Network", kind: PflMoeKind | None, gate: tuple[TensorSpec, ...] = ()
) -> "Objective":
    """Return `predict_mixture`: one trunk with the local head (FB), or with both heads and the gate."""
    from edgefl.compiler import objective as of

    trunk = network.select(network.trunk_names)
    head = network.select(network.head_names)
    prefixes = ("local",) if kind is None else ("global", "local")
    heads = tuple(spec for prefix in prefixes for spec in prefix_specs(prefix, head))

    def predict_logits(weights: Tensors, data: Tensors) -> Tensor:
        import tensorflow as tf

        features = network.apply_trunk(weights, data["x"])
        logits = [network.apply_head(strip_prefix(prefix, weights), features) for prefix in prefixes]
        if kind is None:
            return logits[0]
        seen = features if kind == "mfe" else tf.reshape(data["x"], (data["x"].shape[0], -1))
        return _mix_logits(_apply_gate(weights, seen), *logits)

    data = (of.make_input_spec(network, of.PREDICT_BATCH),)
    return of.Objective(
        "predict_mixture",
        "predict",
        of.PREDICT_BATCH,
        data,
        frozen=(*trunk, *heads, *gate),
        out=predict_logits,
    )


_SOURCE = "Guo et al., PFL-MoE, arXiv:2012.15589"
ENTRIES = {
    f"pfl-{kind}": Entry(
        PflMoeOptions, partial(pfl_moe, kind), partial(build_pfl_moe_objectives, kind), _SOURCE
    )
    for kind in ("fb", "mf", "mfe")
}

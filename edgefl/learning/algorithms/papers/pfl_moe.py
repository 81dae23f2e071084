"""PFL-MoE: a personal classifier, mixed with the global classifier by a gate.

After FedAvg, each client copies the classifier (FC1-3), freezes the convolutions and trains the copy on
D_per. Then it trains g = sigmoid(gate(z)) on D_gate. With `alternate`, it trains the gate for one epoch after
each epoch of the copy. The gate's input z is the image (MF) or the features (MFE). The mixture is
logits = g * global(x) + (1 - g) * local(x). FB uses only the copy and trains it on all of D.

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

from edgefl.base.types import Array, Broadcast, ClientState, Mixture, Peer, Shard, Weights
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.fine_tuning import FineTuningOptions
from edgefl.learning.algorithms.mixtures.gate import split_gate_samples
from edgefl.learning.algorithms.mixtures.gate_utilization import compute_global_share
from edgefl.learning.algorithms.model_choice import MAX_HELD_OUT_SHARE
from edgefl.learning.algorithms.names import FEDERATED_MODEL, GLOBAL, prefix_specs, strip_prefix, with_prefix
from edgefl.learning.algorithms.options import check_choice, check_range, extend_epochs
from edgefl.learning.algorithms.papers.fedavg import build_fedavg_objectives, fedavg
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import TensorSpec

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective
    from edgefl.program.compiler.optimizer import Optimizer

Tensor = Any
Tensors = Mapping[str, Tensor]

PflMoeKind = Literal["fb", "mf", "mfe"]
_PREFIXES: Mapping[PflMoeKind, tuple[str, ...]] = {
    "fb": ("local",),
    "mf": ("global", "local"),
    "mfe": ("global", "local"),
}
"""The heads of the experts."""
ADAPTED = "adapted"
"""The peer of a mixture that is its local expert without the gate, called PFL-FB in the paper's tables."""


@dataclass(frozen=True)
class PflMoeOptions(FineTuningOptions):
    """Options of PFL-FT, whose personal training trains only the classifier here, and of the gate.

    Raises:
        ConfigError: gate_optimizer is unknown, or as in `FineTuningOptions`.

    Attributes:
        gate_epochs: epochs of the gate's training. With alternate, the gate trains as many epochs as the
            classifier.
        gate_learning_rate: step size of the gate's optimizer.
        gate_share: share of the client's samples that train the gate instead of the classifier, up to .9.
        gate_optimizer: adam or sgd, fixed when the plan is built.
        gate_momentum: momentum of the gate's SGD.
        alternate: train the gate for one epoch after each epoch of the classifier, as in the paper's
            algorithms. false trains the gate after the last epoch of the classifier, as in the authors' code.
    """

    gate_epochs: int = 10
    gate_learning_rate: float = 0.001
    gate_share: float = 0.25
    gate_optimizer: str = "adam"
    gate_momentum: float = 0.0
    alternate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("gate_optimizer", self.gate_optimizer, ("adam", "sgd"))
        check_range("gate_share", self.gate_share, MAX_HELD_OUT_SHARE)

    @property
    def gate_hyper(self) -> dict[str, float]:
        """The hyperparameters of the gate's training."""
        return {"learning_rate": self.gate_learning_rate, "momentum": self.gate_momentum}

    def make_gate_optimizer(self) -> "Optimizer":
        """Return the optimizer of the gate for the plan. Imports TensorFlow."""
        from edgefl.program.compiler.optimizer import adam, sgd

        if self.gate_optimizer == "sgd":
            return sgd(self.gate_learning_rate, momentum=self.gate_momentum)
        return adam(self.gate_learning_rate)


def pfl_moe(kind: PflMoeKind, learner: Learner | None, options: PflMoeOptions) -> Algorithm:
    """Return FedAvg whose clients end with a personal classifier, and with a gate for MF and MFE.

    Args:
        kind: `fb`, `mf` or `mfe`.
        learner: runs the plan. The aggregator passes None.

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
        x, y = shard.x_train, shard.y_train
        features = learner.predict("features", trunk, {"x": x})

        def train_head(
            start: Weights, rows: np.ndarray, epochs: int, slots: dict[str, Array] | None = None
        ) -> Weights:
            data = select_data(learner, "train_head", {"x": x, "features": features}, rows)
            trained, _ = learner.fit(
                "train_head",
                {**trunk, **start},
                data,
                y[rows],
                epochs=epochs,
                rng=rng,
                hyper=options.adapt_hyper,
                slots=slots,
            )
            return {**start, **trained}

        if kind == "fb":
            local = train_head(head, np.arange(len(y)), options.count_epochs(len(y)))
            return Mixture(weights={**trunk, **with_prefix("local", local)}, peers=peers), state

        local_rows, gate_rows = split_gate_samples(y, options.gate_share, rng, shard.group_train)
        gate_inputs = features if kind == "mfe" else x.reshape(len(y), -1)

        def train_gate(
            start: Weights, local: Weights, epochs: int, slots: dict[str, Array] | None = None
        ) -> Weights:
            experts = {**trunk, **with_prefix("global", head), **with_prefix("local", local)}
            tensors = {"x": x, "gate_input": gate_inputs}
            data = select_data(learner, "train_gate", tensors, gate_rows)
            if "x" not in data:
                data["logits"] = np.stack(
                    [
                        learner.predict("predict_head", part, {"features": features[gate_rows]})
                        for part in (head, local)
                    ],
                    axis=1,
                )
            return learner.fit(
                "train_gate",
                {**experts, **start},
                data,
                y[gate_rows],
                epochs=epochs,
                rng=rng,
                hyper=options.gate_hyper,
                slots=slots,
            )[0]

        signature = learner.spec.find_signature("train_gate")
        local = head
        gate: Weights = {spec.name: np.zeros(spec.shape, np.float32) for spec in signature.trained}
        head_epochs = options.count_epochs(len(local_rows))
        if options.alternate:
            head_slots: dict[str, Array] = {}
            gate_slots: dict[str, Array] = {}
            for _ in range(head_epochs):
                local = train_head(local, local_rows, 1, head_slots)
                gate = train_gate(gate, local, 1, gate_slots)
        else:
            local = train_head(local, local_rows, head_epochs)
            gate_epochs = extend_epochs(
                options.gate_epochs, options.least_steps, len(gate_rows), signature.batch_size
            )
            gate = train_gate(gate, local, gate_epochs)
        peers[ADAPTED] = Peer("predict", {**model, **local})
        seen = features if kind == "mfe" else learner.spec.normalize_input(x).reshape(len(y), -1)
        global_share = float(np.mean(compute_global_share(seen, gate)))
        usage = {"gate/global": global_share, "gate/local": 1 - global_share}
        return Mixture(
            weights={**trunk, **with_prefix("global", head), **with_prefix("local", local), **gate},
            peers=peers,
            diagnostics=usage,
        ), state

    return replace(fedavg(learner, options), name=f"pfl-{kind}", personalize=personalize)


def select_data(
    learner: Learner, signature: str, tensors: Mapping[str, Array], rows: np.ndarray
) -> dict[str, Array]:
    """Return these samples of the data tensors that a signature takes, as far as they exist.

    Args:
        learner: runs the plan. Its plan trains on `x` if there is an augmentation, and on features if not.
        signature: name of the signature.
        tensors: data tensors of all samples by name, shape (n, ...), float32.
        rows: numbers of the selected samples.
    """
    names = [spec.name for spec in learner.spec.find_signature(signature).data]
    return {name: tensors[name][rows] for name in names if name in tensors}


def build_pfl_moe_objectives(
    kind: PflMoeKind, network: "Network", options: PflMoeOptions
) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, the split classifier, the gate (MF, MFE) and the mixture.

    The classifier and the gate train on features and logits that the client computed once. With an
    augmentation they train on samples, and each step computes the features and logits of its samples.

    Args:
        kind: `fb` without a gate, `mf` with a gate on the image, or `mfe` with a gate on the features.
        network: the model. Its trunk is frozen in the personal training, and its head is the classifier.

    Source: Guo et al., 2020, algorithms 1 and 2.
    """
    import tensorflow as tf

    from edgefl.program.compiler import objective as of

    make_head = of.train_head_on_samples if network.is_augmented else of.train_head
    train, predict, _ = build_fedavg_objectives(network, options)
    shared = (
        train,
        predict,
        of.extract_features(network, of.PREDICT_BATCH),
        make_head(network, options.adapt_batch_size, options.make_adapt_optimizer()),
        of.predict_head(network, of.PREDICT_BATCH),
    )
    if kind == "fb":
        return (*shared, _build_mixture_prediction(network, kind))
    shape = network.features_shape if kind == "mfe" else network.input_shape
    width = math.prod(shape)
    gate = (TensorSpec("gate/kernel", (width, 1)), TensorSpec("gate/bias", (1,)))
    gate_input = TensorSpec("gate_input", (of.GATE_BATCH, width))
    logits = TensorSpec("logits", (of.GATE_BATCH, 2, network.num_classes))

    def mix_stored_logits(weights: Tensors, data: Tensors) -> Tensor:
        seen = data["gate_input"]
        if kind == "mf":
            samples = tf.reshape(seen, (seen.shape[0], *network.input_shape))
            seen = tf.reshape(network.normalize_input(samples), seen.shape)
        return _mix_logits(_apply_gate(weights, seen), data["logits"][:, 0], data["logits"][:, 1])

    def mix_experts(weights: Tensors, data: Tensors) -> Tensor:
        return _mix_experts(network, kind, weights, data["x"])

    mix = mix_experts if network.is_augmented else mix_stored_logits

    def compute_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        return of.measure_loss_per_sample(network, mix(weights, data), data["y"]), {}

    train_gate = of.Objective(
        name="train_gate",
        kind="train",
        batch_size=of.GATE_BATCH,
        data=(of.make_input_spec(network, of.GATE_BATCH),) if network.is_augmented else (gate_input, logits),
        trained=gate,
        frozen=_list_experts(network, kind) if network.is_augmented else (),
        optimizer=options.make_gate_optimizer(),
        loss_per_sample=compute_loss,
        label=of.make_label_spec(network, of.GATE_BATCH),
    )
    return (*shared, train_gate, _build_mixture_prediction(network, kind, gate))


def _apply_gate(weights: Tensors, inputs: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.sigmoid(tf.matmul(inputs, weights["gate/kernel"]) + weights["gate/bias"])


def _mix_logits(g: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return g * first + (1.0 - g) * second


def _list_experts(network: "Network", kind: PflMoeKind) -> tuple[TensorSpec, ...]:
    """Return the specs of the trunk and of the local head, for MF and MFE also of the global head."""
    head = network.select(network.head_names)
    heads = (spec for prefix in _PREFIXES[kind] for spec in prefix_specs(prefix, head))
    return (*network.select(network.trunk_names), *heads)


def _mix_experts(network: "Network", kind: PflMoeKind, weights: Tensors, x: Tensor) -> Tensor:
    """Return the logits of samples: of the local head (FB), or of both heads mixed by the gate."""
    import tensorflow as tf

    features = network.apply_trunk(weights, x)
    logits = [network.apply_head(strip_prefix(prefix, weights), features) for prefix in _PREFIXES[kind]]
    if kind == "fb":
        return logits[0]
    seen = features if kind == "mfe" else tf.reshape(network.normalize_input(x), (x.shape[0], -1))
    return _mix_logits(_apply_gate(weights, seen), *logits)


def _build_mixture_prediction(
    network: "Network", kind: PflMoeKind, gate: tuple[TensorSpec, ...] = ()
) -> "Objective":
    """Return `predict_mixture`: one trunk with the local head (FB), or with both heads and the gate."""
    from edgefl.program.compiler import objective as of

    return of.Objective(
        name="predict_mixture",
        kind="predict",
        batch_size=of.PREDICT_BATCH,
        data=(of.make_input_spec(network, of.PREDICT_BATCH),),
        frozen=(*_list_experts(network, kind), *gate),
        out=lambda weights, data: _mix_experts(network, kind, weights, data["x"]),
    )


_SOURCE = "Guo et al., PFL-MoE, arXiv:2012.15589"
ENTRIES = {
    f"pfl-{kind}": Entry(
        options=PflMoeOptions,
        factory=partial(pfl_moe, kind),
        objectives=partial(build_pfl_moe_objectives, kind),
        source=_SOURCE,
    )
    for kind in ("fb", "mf", "mfe")
}

"""FedRoD: a generic head trained with a balanced loss, and a personal head that adds what the client needs.

With the features z of the last dense layer, the generic logits are g = G z and the personal logits are g + P
z. On each batch a client takes one step of SGD on the sum of two losses:

    -log (n_y^gamma exp g_y / sum_c n_c^gamma exp g_c)    in the trunk and G, with n_c samples of class c
    -log softmax(stop(g) + P stop(z))_y                   in P alone

The first loss is the balanced softmax. It removes the client's class frequencies from the generic head, so
clients with different classes train the same predictor. The trunk and G are averaged as in FedAvg. P and the
class counts stay on the device.

Both heads are linear in z, so the mixture is the network with the output layer G + P. It is as large as the
global model.

Differences: P starts at zero, so that a client without P predicts as the global model. The steps of both
losses are taken together, with one learning rate. A class without samples has a tiny count instead of 0. The
variant whose personal head comes from a hypernetwork is not included.

Communication cost: as in FedAvg.

Source: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR
2022, arXiv:2107.00778, section 4. The balanced softmax: Ren et al., Balanced Meta-Softmax for Long-Tailed
Visual Recognition, NeurIPS 2020, equation 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.types import Array, Broadcast, ClientState, Labels, Mixture, Peer, Shard, Weights
from edgefl.learning.algorithms.arithmetic import add
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.global_copy import make_local_update
from edgefl.learning.algorithms.names import (
    FEDERATED_MODEL,
    GLOBAL,
    extract_layer,
    prefix_specs,
    strip_prefix,
)
from edgefl.learning.algorithms.options import as_sgd_hyper
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives, fedavg
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import TensorSpec

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

PERSONAL_HEAD_PREFIX = "personal"
LOG_PRIOR_NAME = "log_prior"
EMPTY_CLASS_PRIOR = 1e-9
"""The prior of a class without samples. Its logarithm is finite, and its probability is almost zero."""


@dataclass(frozen=True)
class FedRodOptions(FedAvgOptions):
    """Options of FedAvg, whose SGD also trains the personal head, and of the balanced softmax.

    Attributes:
        prior_exponent: exponent of the class counts in the balanced softmax, gamma. 0: plain cross-entropy.
    """

    prior_exponent: float = 1.0


def compute_log_prior(labels: Labels, num_classes: int, exponent: float) -> Array:
    """Return the logarithm of the number of samples of each class to the power of the exponent.

    Args:
        labels: labels of the client's training samples, shape (n,), int64.
        exponent: gamma of the balanced softmax.

    Returns:
        Numbers to add to the logits, shape (num_classes,), float32. A class without samples has the logarithm
            of `EMPTY_CLASS_PRIOR`, unless the exponent is 0.
    """
    counts = np.bincount(labels, minlength=num_classes)
    return np.asarray(
        np.log(np.maximum(counts.astype(np.float64) ** exponent, EMPTY_CLASS_PRIOR)), np.float32
    )


def fedrod(learner: Learner | None, options: FedRodOptions) -> Algorithm:
    """Return FedAvg of trunk and generic head, whose mixture adds the client's personal head.

    When a client personalizes, it trains once more, from the last global model and its personal head.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: as in `fedavg`.

    Source: Chen and Chao, arXiv:2107.00778, section 4.
    """
    base = fedavg(learner, options)
    hyper = as_sgd_hyper(options)

    def train_both(
        received: Weights, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[dict[str, Array], ClientState, float]:
        """Return the trained copy of the global model, the new state, and the mean of both losses."""
        assert learner is not None
        signature = learner.spec.find_signature("train")
        personal = {
            spec.name: state.arrays.get(spec.name, np.zeros(spec.shape, np.float32))
            for spec in signature.trained
            if spec.name.startswith(f"{PERSONAL_HEAD_PREFIX}/")
        }
        log_prior = compute_log_prior(shard.y_train, learner.spec.num_classes, options.prior_exponent)
        trained, loss = learner.fit(
            "train",
            {**received, **personal, LOG_PRIOR_NAME: log_prior},
            {"x": shard.x_train},
            shard.y_train,
            epochs=options.epochs,
            rng=rng,
            hyper=hyper,
        )
        model = {name: trained.get(name, array) for name, array in received.items()}
        return model, replace(state, arrays={name: trained[name] for name in personal}), loss / 2

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        received = broadcast.models[GLOBAL]
        model, new_state, _ = train_both(received, state, shard, rng)
        return Mixture(
            weights=add_personal_head(model, new_state.arrays),
            peers={FEDERATED_MODEL: Peer("predict", received)},
        ), new_state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        return Peer("predict", add_personal_head(broadcast.models[GLOBAL], state.arrays))

    local_update = make_local_update(learner, train_both, options.sanitizer)
    return replace(base, name="fedrod", local_update=local_update, personalize=personalize, current=current)


def add_personal_head(model: Weights, state: Weights) -> dict[str, Array]:
    """Return the model with the personal head added to its output layer.

    Args:
        model: weights of the network, with the generic head.
        state: arrays of the client's state. The personal head is named `personal/NAME`. Without it, the
            weights of the model are returned.
    """
    return {**model, **add(strip_prefix(PERSONAL_HEAD_PREFIX, state), model)}


def find_output_layer(network: "Network") -> tuple[TensorSpec, ...]:
    """Return the specs of the kernel and, if there is one, the bias of the network's last dense layer.

    Raises:
        ConfigError: the layer is frozen.
    """
    head = network.select([name for name in network.trainable if name in network.head_names])
    kernels = [spec for spec in head if spec.name.endswith("/kernel")]
    if not kernels or kernels[-1].shape[0] != network.hidden_width:
        raise ConfigError(
            "fedrod trains the output layer, but the model's last dense layer is frozen; make it trainable"
        )
    layer = extract_layer(kernels[-1].name)
    return tuple(spec for spec in head if extract_layer(spec.name) == layer)


def build_fedrod_objectives(network: "Network", options: FedRodOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, of which `train` has both losses and the personal head.

    Raises:
        ConfigError: the output layer is frozen.

    Source: Chen and Chao, arXiv:2107.00778, section 4.
    """
    train, *others = build_fedavg_objectives(network, options)
    personal_specs = prefix_specs(PERSONAL_HEAD_PREFIX, find_output_layer(network))

    def compute_losses(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        from edgefl.program.compiler.objective import cross_entropy

        logits, hidden, assigned = network.apply_hidden(weights, data["x"], training=True, noise=noise)
        generic_losses = cross_entropy(logits + weights[LOG_PRIOR_NAME], data["y"])
        kernel, *bias = personal_specs
        residual = tf.matmul(tf.stop_gradient(hidden), weights[kernel.name])
        for spec in bias:
            residual += weights[spec.name]
        fixed_zeros = network.num_classes - kernel.shape[1]
        if fixed_zeros:  # a model with one output for two classes, whose first logit is 0
            residual = tf.pad(residual, [[0, 0], [fixed_zeros, 0]])
        personal_losses = cross_entropy(tf.stop_gradient(logits) + residual, data["y"])
        return generic_losses + personal_losses, assigned

    both = replace(
        train,
        trained=(*train.trained, *personal_specs),
        frozen=(*train.frozen, TensorSpec(LOG_PRIOR_NAME, (network.num_classes,))),
        loss_per_sample=compute_losses,
    )
    return (both, *others)


ENTRIES = {
    "fedrod": Entry(
        options=FedRodOptions,
        factory=fedrod,
        objectives=build_fedrod_objectives,
        source="Chen and Chao, arXiv:2107.00778",
        needs_classes="its balanced softmax weighs each class by the client's number of samples of it",
        trains_one_model=False,
    )
}

"""A mixture of experts whose shares are the same for all samples of a client: sum_k pi_k p_k."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.base.types import Weights
from edgefl.learning.algorithms.mixtures.responsibility import Real, normalize_logits
from edgefl.learning.algorithms.names import name_expert, prefix_specs, strip_prefix
from edgefl.program.plan.spec import PREDICT_MIXTURE, TensorSpec

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

MIN_PI = 1e-6
"""Minimum mixture weight in the E step."""
PI_NAME = "pi"
"""The array of the client state with the shares of the experts, shape (experts,), float32."""


def infer_responsibilities(pi: Real, log_p: Real) -> Real:
    """Return q(m | x_i, y_i), proportional to pi_m p_m(y_i | x_i).

    Args:
        pi: mixture weights, shape (components,), float64.
        log_p: log p_m(y_i | x_i), shape (n, components), float64.

    Returns:
        The responsibilities, shape (n, components), float64.

    Source: Marfoq et al., arXiv:2108.10252, the E step of algorithm 1.
    """
    return normalize_logits(np.log(np.maximum(pi, MIN_PI)) + log_p)


def assemble_constant_mixture(models: Mapping[int, Weights], shares: Real, substitute: Weights) -> Weights:
    """Return the weights of sum_k pi_k p_k.

    Args:
        models: the client's experts by index.
        shares: pi, shape (experts,), float64.
        substitute: takes the place of an expert that the client lacks. Its share should be 0.
    """
    parts = {
        f"{name_expert(k)}/{name}": array
        for k in range(len(shares))
        for name, array in models.get(k, substitute).items()
    }
    return {
        **parts,
        **{f"responsibility/{k}": np.array([value], np.float32) for k, value in enumerate(shares)},
    }


def build_constant_mixture_objective(network: "Network", num_experts: int) -> "Objective":
    """Return `predict_mixture`, which is log sum_k pi_k p_k.

    Args:
        network: the model of an expert, a classification.
    """
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.mixing import mix_log_probabilities, mix_probabilities

    names = [name_expert(k) for k in range(num_experts)]
    parts = tuple(spec for name in names for spec in prefix_specs(name, network.specs))
    shares = tuple(TensorSpec(f"responsibility/{k}", (1,)) for k in range(num_experts))

    def apply_experts(weights: Tensors, data: Tensors) -> tuple[list[Tensor], list[Tensor]]:
        return [weights[spec.name] for spec in shares], [
            network.apply(strip_prefix(name, weights), data["x"])[0] for name in names
        ]

    def predict_log_probabilities(weights: Tensors, data: Tensors) -> Tensor:
        return mix_log_probabilities(*apply_experts(weights, data))

    def predict_probabilities(weights: Tensors, data: Tensors) -> Tensor:
        return mix_probabilities(*apply_experts(weights, data))

    return of.Objective(
        name=PREDICT_MIXTURE,
        kind="predict",
        batch_size=of.PREDICT_BATCH,
        data=(of.make_input_spec(network, of.PREDICT_BATCH),),
        frozen=(*parts, *shares),
        out=predict_log_probabilities,
        export_out=predict_probabilities,
    )

"""Fills the weights of a mixture into the template of a plan, which gives a float `.tflite`.

The template is a flatbuffer with a fixed layout, so each weight overwrites its placeholder in place. A folded
batch norm (`derived`) changes the preceding layer. With s = gamma / sqrt(variance + epsilon), kernel k
becomes k * s, and bias b becomes (b - mean) * s + beta. A slice copies successive elements of a transposed
weight. The converter splits the bias of a GRU into such slices.

Source: S. Ioffe and C. Szegedy, Batch Normalization, 2015.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgefl.base.errors import PlanError
from edgefl.base.types import Array, Weights
from edgefl.program.plan.spec import Binding
from edgefl.program.plan.tflite import read_subgraph

MAX_WEIGHT = 1e20
"""Maximum absolute value of a weight. Training never exceeds it, but a flipped bit of an exponent does.

Larger values can overflow float32 in products, which can end the process of a runtime.
"""
KERNEL_RULE = "batch_norm_kernel"
BIAS_RULE = "batch_norm_bias"
SLICE_RULE = "slice"


def list_weight_names(bindings: Sequence[Binding]) -> set[str]:
    """Return the names of all weights that the bindings read."""
    names = {binding.weight for binding in bindings}
    return names | {
        str(b.derived[key])
        for b in bindings
        for key in ("gamma", "beta", "mean", "variance", "bias")
        if b.derived.get(key)
    }


def _compute_scale(derived: Mapping[str, Any], weights: Weights) -> Array:
    gamma = weights[derived["gamma"]] if derived["gamma"] else np.float32(1)
    root = np.sqrt(weights[derived["variance"]] + np.float32(derived["epsilon"]))
    return np.asarray(gamma / root, np.float32)


def resolve_binding(binding: Binding, weights: Weights) -> Array:
    """Return the values that a binding writes to its tensor.

    Args:
        weights: the weights of the mixture by name, float32.

    Returns:
        The values, shape `binding.shape`, float32.

    Raises:
        PlanError: a weight is missing or has another shape, or the rule of the binding is unknown.
    """
    missing = list_weight_names((binding,)) - weights.keys()
    if missing:
        raise PlanError(
            f"the mixture lacks {', '.join(sorted(missing))}; it was made with another plan, personalize "
            "again"
        )
    derived = binding.derived
    rule = derived.get("rule")
    if rule == BIAS_RULE:
        bias = weights[derived["bias"]] if derived["bias"] else np.float32(0)
        beta = weights[derived["beta"]] if derived["beta"] else np.float32(0)
        return np.asarray(
            (bias - weights[derived["mean"]]) * _compute_scale(derived, weights) + beta, np.float32
        ).reshape(binding.shape)
    source = weights[binding.weight]
    if rule == SLICE_RULE:
        return _slice_weight(binding, source)
    fits = source.ndim == len(binding.permutation) and source.size == np.prod(binding.shape, dtype=int)
    value = np.transpose(source, binding.permutation) if fits else source
    received, expected = ([n for n in shape if n != 1] for shape in (value.shape, binding.shape))
    if not fits or (len(received) == len(expected) and received != expected):
        raise PlanError(
            f"{binding.weight} is {source.shape}, which does not fit its tensor {binding.shape} of the "
            "template; the mixture was made with another plan, personalize again"
        )
    value = value.reshape(binding.shape)
    if rule == KERNEL_RULE:
        spread = [1] * value.ndim
        spread[derived["axis"]] = -1
        return np.asarray(value * _compute_scale(derived, weights).reshape(spread), np.float32)
    if rule:
        raise PlanError(
            f"the binding of {binding.weight} has the rule {rule!r}, expected {KERNEL_RULE}, "
            f"{BIAS_RULE} or {SLICE_RULE}; update edgefl on this device"
        )
    return np.asarray(value, np.float32)


def _slice_weight(binding: Binding, source: Array) -> Array:
    start = int(binding.derived["start"])
    end = start + int(np.prod(binding.shape, dtype=int))
    if source.ndim != len(binding.permutation) or not 0 <= start <= end <= source.size:
        raise PlanError(
            f"{binding.weight} is {source.shape}, which lacks the elements {start} to {end} that its "
            "tensor needs; the mixture was made with another plan, personalize again"
        )
    elements = np.transpose(source, binding.permutation).ravel()[start:end]
    return np.asarray(elements.reshape(binding.shape), np.float32)


def fill_template(template: bytes, bindings: Sequence[Binding], weights: Weights) -> bytes:
    """Return the template with the weights filled in, a float `.tflite`.

    Args:
        template: the bytes of the template.
        bindings: the position of each weight in the template.
        weights: the weights of the mixture by name, float32.

    Raises:
        PlanError: a weight is missing, unknown, not finite, too large or has another shape, or the bindings
            do not fit the template.
        ModelFileError: the template is damaged.
    """
    unknown = set(weights) - list_weight_names(bindings)
    if unknown:
        raise PlanError(
            f"the template has no tensor for {', '.join(sorted(unknown))}; the mixture was made with another "
            "plan, personalize again"
        )
    if not template:
        raise PlanError(
            "the plan has no template of the mixture; build the plan again with `edgefl plan build`"
        )
    content = bytearray(template)
    tensors = read_subgraph(content, "the plan's template.tflite").tensors
    for binding in bindings:
        value = resolve_binding(binding, weights)
        if not np.isfinite(value).all():
            raise PlanError(f"{binding.weight} holds NaN or infinite values; personalize again")
        if value.size and np.abs(value).max() > MAX_WEIGHT:
            raise PlanError(
                f"{binding.weight} holds {np.abs(value).max():.3g}, expected at most {MAX_WEIGHT:g}: the "
                "mixture is damaged, or training diverged; copy it again, or personalize again"
            )
        if not 0 <= binding.tensor < len(tensors):
            raise PlanError(
                f"the template has no tensor {binding.tensor} for {binding.weight}; template and plan.json "
                "differ"
            )
        try:
            tensors[binding.tensor].overwrite(value)
        except ValueError as error:
            raise PlanError(
                f"tensor {binding.tensor} of the template does not fit {binding.weight} {value.shape}: "
                f"{error}; build the plan again"
            ) from error
    return bytes(content)

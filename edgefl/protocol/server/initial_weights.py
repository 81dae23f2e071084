"""Reads the file of a plan's initial weights."""

from edgefl.base.types import Array
from edgefl.learning.algorithms.draws import format_draw_prefix, has_draws
from edgefl.learning.algorithms.registry import count_further_draws
from edgefl.program.plan.spec import PlanSpec, TensorSpec
from edgefl.protocol.wire.tensors import decode_weights, read_header


def decode_initial_weights(blob: bytes, spec: PlanSpec, origin: str) -> dict[str, Array]:
    """Decode a plan's initial weights, and the further draws if the file has them.

    Args:
        blob: the file.
        origin: the file's name, for errors.

    Returns:
        The weights by name, with the shapes and dtypes of the plan.

    Raises:
        WireError: a tensor is missing, unknown, or of another shape than in the plan, see `decode_weights`.
    """
    names, _ = read_header(blob, origin)
    return decode_weights(
        blob, (*spec.weights, *(_list_draw_specs(spec) if has_draws(names) else ())), origin
    )


def _list_draw_specs(spec: PlanSpec) -> list[TensorSpec]:
    network = spec.find_signature("predict").frozen
    count = count_further_draws(spec.algorithm, spec.options)
    return [
        TensorSpec(f"{format_draw_prefix(k)}/{tensor.name}", tensor.shape, tensor.dtype)
        for k in range(1, count + 1)
        for tensor in network
    ]

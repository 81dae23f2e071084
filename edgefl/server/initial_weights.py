"""The initial weights of a plan, as a file beside it."""

from edgefl.algorithms.draws import format_draw_prefix, has_draws
from edgefl.algorithms.registry import count_further_draws
from edgefl.plan.spec import PlanSpec, TensorSpec
from edgefl.types import Array
from edgefl.wire.tensors import decode_weights, read_header


def decode_initial_weights(blob: bytes, spec: PlanSpec, origin: str) -> dict[str, Array]:
    """Read a plan's initial weights, with further draws where the file has any.

    Raises:
        WireError: a tensor is missing, unknown or of another shape than the plan says; see `decode_weights`.
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

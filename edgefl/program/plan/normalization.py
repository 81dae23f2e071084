"""Sets the mean and the standard deviation of a compiled plan, without another compilation.

A plan is compiled with placeholders. The converter turns (x - mean) / std into x * scale + offset, with one
value for each channel, and stores both arrays as constants of each graph. This module finds the constants by
the values of the placeholders and replaces them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgefl.base.errors import PlanError
from edgefl.base.types import Array
from edgefl.program.plan.spec import Plan, PlanSpec
from edgefl.program.plan.tflite import read_model

NORMALIZATION_KEYS = ("mean", "std")
"""Their names in the options of a plan's model."""
FIRST_MEAN = 2.718
FIRST_STD = 1.414
"""The placeholders of the first channel. No other constant of a program is near them."""
UNMEASURED = "measured before round 1"
"""Shown in place of the placeholders."""
SPACING = 1e-4
"""Difference of the placeholders of two channels."""


def make_placeholders(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std of a plan whose normalization is not set yet.

    Args:
        channels: number of channels of a sample.
    """
    steps = [SPACING * i for i in range(channels)]
    return tuple(FIRST_MEAN + step for step in steps), tuple(FIRST_STD + step for step in steps)


def has_placeholders(spec: PlanSpec) -> bool:
    """Return whether the normalization of a plan is not set yet.

    The options of a plan from a stranger may have any type.
    """
    options = spec.model_options
    if not isinstance(options, Mapping) or not spec.input_shape:
        return False
    current = [options.get(key) for key in NORMALIZATION_KEYS]
    channels = spec.input_shape[-1]
    return all(isinstance(values, list) and len(values) == channels for values in current) and current == [
        list(values) for values in make_placeholders(channels)
    ]


def check_normalization(spec: PlanSpec) -> None:
    """Check that a plan has no placeholders, so that its model can be trained.

    Raises:
        PlanError: mean and std are not measured yet.
    """
    if has_placeholders(spec):
        raise PlanError(
            "mean and std of this plan are not set: the aggregator and `edgefl simulate` measure them before "
            "round 1; set both in [model], or use the plan of a finished run"
        )


def compute_constants(mean: Sequence[float], std: Sequence[float]) -> tuple[Array, Array]:
    """Return scale and offset, so that x * scale + offset is (x - mean) / std.

    They have the bits that the compiler computes, see `edgefl.program.compiler.layers.normalize`.

    Args:
        mean: the mean of each channel.
        std: the standard deviation of each channel, at least 1e-7.

    Returns:
        Two arrays of shape (channels,), float32.
    """
    variance = np.square(np.asarray(std, np.float64)).astype(np.float32)
    spread = np.sqrt(variance.astype(np.float64))
    offset = -np.asarray(mean, np.float32).astype(np.float64) / spread
    return (1 / spread).astype(np.float32), offset.astype(np.float32)


def format_normalization(normalization: Mapping[str, Sequence[float]]) -> str:
    """Return mean and std as text.

    Args:
        normalization: values by name, as `read_normalization` returns them.
    """
    return ", ".join(
        f"{name} {' '.join(f'{value:.4g}' for value in values)}" for name, values in normalization.items()
    )


def read_normalization(spec: PlanSpec) -> dict[str, list[float]]:
    """Return mean and std of a plan by these names, or nothing if its model has no normalization."""
    return {
        key: [float(value) for value in spec.model_options[key]]
        for key in NORMALIZATION_KEYS
        if key in spec.model_options
    }


def set_normalization(plan: Plan, mean: Sequence[float], std: Sequence[float]) -> Plan:
    """Return a plan whose model begins with (x - mean) / std.

    Args:
        plan: a plan with placeholders.
        mean: one value, or one for each channel.
        std: standard deviations above 0, as many as in `mean`.

    Raises:
        PlanError: the plan has no placeholders, or a graph of it has no such constants.
    """
    if not has_placeholders(plan.spec):
        raise PlanError(
            "the mean and std of this plan are set already; build it again with `edgefl plan build`"
        )
    channels = plan.spec.input_shape[-1]
    means, stds = (list(values) * (channels if len(values) == 1 else 1) for values in (mean, std))
    before = compute_constants(*make_placeholders(channels))
    after = compute_constants(means, stds)
    readers = [item.name for item in plan.spec.signatures if "x" in {data.name for data in item.data}]
    return replace(
        plan,
        spec=replace(
            plan.spec, model_options={**plan.spec.model_options, "mean": list(mean), "std": list(std)}
        ),
        program=_replace_constants(plan.program, before, after, "program", readers),
        template=_replace_constants(plan.template, before, after, "template"),
        single=_replace_constants(plan.single, before, after, "template of one model"),
    )


def _replace_constants(
    model: bytes, before: Sequence[Array], after: Sequence[Array], name: str, signatures: Sequence[str] = ()
) -> bytes:
    """Return a model with other constants. Each graph that reads the samples must have the constants.

    Args:
        model: the model, or nothing.
        before: the constants to find.
        after: the new values.
        name: the name of the model, for an error.
        signatures: the signatures that read the samples. Without any, the first graph does.
    """
    if not model:
        return model
    content = bytearray(model)
    parsed = read_model(content, f"the plan's {name}")
    readers = {parsed.signatures[signature] for signature in signatures} or {0}
    changes = []
    for index, graph in enumerate(parsed.subgraphs):
        for old, new in zip(before, after, strict=True):
            matching = [
                tensor
                for tensor in graph.tensors
                if tensor.dtype == "FLOAT32"
                and tensor.data is not None
                and tensor.size == old.size
                and np.array_equal(tensor.data.ravel(), old)
            ]
            if not matching and index in readers:
                raise PlanError(
                    f"the {name} of this plan has no constants of its input normalization, because the "
                    "converter merged them into the arithmetic of the first layers; write it as a Rescaling "
                    "layer, or set normalize = false in [model]"
                )
            changes += [(tensor, new) for tensor in matching]
    for tensor, new in changes:  # graphs share constants, so all of them are found before
        tensor.overwrite(new)
    return bytes(content)

"""Makes the float `.tflite` of a device's personal model, which may be a blend of several models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgefl.base.types import Mixture
from edgefl.learning.client.blend import BlendMember, split_members
from edgefl.program.plan.fill import fill_template
from edgefl.program.plan.spec import PREDICT_BLEND, PREDICT_SINGLE, Plan
from firmware_export.tflite.interpreter import load_tflite, run_samples
from firmware_export.tflite.joined import JoinedModel, join_models

PROBED_SAMPLES = 8
"""Number of random samples that show whether a model gives probabilities."""
SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class FloatModel:
    """A personal model to quantize.

    Attributes:
        model: the float `.tflite`.
        shares: share of each member of a blend, by name. Their sum is 1. Empty if the model is no blend.
    """

    model: bytes
    shares: Mapping[str, float] = field(default_factory=dict)


def make_float_model(plan: Plan, mixture: Mixture, max_members: int = 0) -> FloatModel:
    """Return a personal model as a float `.tflite`.

    Args:
        max_members: maximum number of a blend's members, see `choose_exported_members`. 0 takes all.

    Raises:
        PlanError: the mixture belongs to another plan.
    """
    if mixture.signature != PREDICT_BLEND:
        return FloatModel(fill_template(*plan.find_template(mixture.signature), mixture.weights))
    members = split_members(plan.spec, mixture.weights)
    members = choose_exported_members(members, mixture.single, max_members or len(members))
    total = sum(member.share for member in members)
    parts = []
    for member in members:
        peer = member.peer
        model = fill_template(*plan.find_template(peer.signature), peer.weights)
        parts.append(
            JoinedModel(
                model=model,
                share=member.share / total,
                gives_logits=plan.spec.is_classification
                and (peer.signature == PREDICT_SINGLE or not _gives_probabilities(model)),
            )
        )
    shares = {member.name: part.share for member, part in zip(members, parts, strict=True)}
    return FloatModel(parts[0].model if len(parts) == 1 else join_models(parts), shares)


def _gives_probabilities(model: bytes) -> bool:
    loaded = load_tflite(model)
    x = np.random.default_rng(0).random((PROBED_SAMPLES, *loaded.shape[1:]), np.float32)
    outputs, _ = run_samples(loaded, x)
    return bool((outputs >= 0).all() and (np.abs(outputs.sum(axis=1) - 1) < SUM_TOLERANCE).all())


def list_exported_members(plan: Plan, mixture: Mixture) -> tuple[tuple[str, ...], ...]:
    """Return the names of the members of an export with one member, with two, and so on.

    Args:
        plan: the plan of the model.

    Returns:
        One entry for each number of members. Empty if the model is no blend.

    Raises:
        PlanError: the mixture belongs to another plan.
    """
    if mixture.signature != PREDICT_BLEND:
        return ()
    members = split_members(plan.spec, mixture.weights)
    return tuple(
        tuple(member.name for member in choose_exported_members(members, mixture.single, count))
        for count in range(1, len(members) + 1)
    )


def choose_exported_members(
    members: Sequence[BlendMember], single: str, count: int
) -> tuple[BlendMember, ...]:
    """Return the members of a blend to export.

    Args:
        members: all members, the one with the largest share first.
        single: name of the member to export alone. If the blend lacks it, the first member is exported.
        count: maximum number of members, at least 1. For more than one, those with the largest shares are
            exported.
    """
    if count == 1:
        return tuple(member for member in members if member.name == single)[:1] or tuple(members[:1])
    return tuple(members[:count])

"""What the devices measured before round 1, as `result.json` and `summary.json` have it."""

from typing import Any

from edgefl.plan.normalization import read_normalization
from edgefl.plan.spec import PlanSpec


def list_measured_values(spec: PlanSpec, range_test: bool) -> dict[str, Any]:
    """Return the values of a plan that were measured, or that stand for measured ones.

    Args:
        spec: the spec of the plan that the devices trained.
        range_test: whether the learning rate was found, as `range_test` of `[federation]` says.

    Returns:
        `normalization` with mean and std, if the model has them, and `learning_rate`, if it was found.
    """
    values: dict[str, Any] = {}
    if normalization := read_normalization(spec):
        values["normalization"] = normalization
    if range_test and "learning_rate" in spec.options:
        values["learning_rate"] = spec.options["learning_rate"]
    return values

"""What the devices measured before round 1, as `result.json`, `summary.json` and watchers have it."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgefl.base.errors import StateError
from edgefl.program.plan.normalization import (
    NORMALIZATION_KEYS,
    has_placeholders,
    read_normalization,
    set_normalization,
)
from edgefl.program.plan.spec import Plan, PlanSpec

MAX_CHANNELS = 16
"""Watchers see mean and std of this many channels."""


def list_measured_values(spec: PlanSpec, range_test: bool) -> dict[str, Any]:
    """Return the values of a plan that were measured, or that stand for measured ones.

    Args:
        spec: the spec of the plan that the devices trained.
        range_test: whether the learning rate was found, as `range_test` of `[federation]` says.

    Returns:
        `normalization` with mean and std, if the model has them, and `learning_rate`, if it was found.
    """
    values: dict[str, Any] = {}
    if has_placeholders(spec):
        return values
    if normalization := read_normalization(spec):
        values["normalization"] = normalization
    if range_test and "learning_rate" in spec.options:
        values["learning_rate"] = spec.options["learning_rate"]
    return values


def with_learning_rate(plan: Plan, rate: float) -> Plan:
    """Return the plan with another rate of its algorithm."""
    return replace(plan, spec=replace(plan.spec, options={**plan.spec.options, "learning_rate": rate}))


def restore_measured_values(plan: Plan, result: Mapping[str, Any], range_test: bool) -> Plan:
    """Return the plan with the values of a finished federation.

    Args:
        plan: the plan that the aggregator started with.
        result: the content of its `result.json`.
        range_test: as in `list_measured_values`.

    Raises:
        StateError: the result lacks a value.
    """
    if has_placeholders(plan.spec):
        measured = result.get("normalization")
        if not isinstance(measured, dict) or measured.keys() != set(NORMALIZATION_KEYS):
            raise StateError("result.json has no normalization; finish the federation")
        plan = set_normalization(plan, measured["mean"], measured["std"])
    if range_test and "learning_rate" in plan.spec.options:
        rate = result.get("learning_rate")
        if not isinstance(rate, float):
            raise StateError("result.json has no learning_rate; finish the federation")
        plan = with_learning_rate(plan, rate)
    return plan


def encode_measured_values(spec: PlanSpec, range_test: bool) -> dict[str, float]:
    """Return the values as numbers for the `settings` of a `State`.

    Args:
        spec: as in `list_measured_values`.
        range_test: as in `list_measured_values`.

    Returns:
        `learning_rate`, and `mean_0`, `std_0` and so on for up to `MAX_CHANNELS` channels.
    """
    values = list_measured_values(spec, range_test)
    channels = {
        f"{name}_{index}": value
        for name, numbers in values.get("normalization", {}).items()
        for index, value in enumerate(numbers[:MAX_CHANNELS])
    }
    return channels | ({"learning_rate": values["learning_rate"]} if "learning_rate" in values else {})


def describe_measured_values(settings: Mapping[str, float]) -> str:
    """Return the values in the `settings` of a `State` as text, empty if there are none.

    Args:
        settings: numbers as `encode_measured_values` makes them, among others. They come from the network, so
            any value is accepted.
    """

    def list_numbers(name: str) -> list[float]:
        numbers = (settings.get(f"{name}_{index}", math.nan) for index in range(MAX_CHANNELS))
        return [number for number in numbers if math.isfinite(number)]

    rate = settings.get("learning_rate", math.nan)
    parts = [f"learning_rate {rate:.4g}"] if math.isfinite(rate) else []
    parts += [
        f"{name} {' '.join(f'{number:.4g}' for number in numbers)}"
        for name in NORMALIZATION_KEYS
        if (numbers := list_numbers(name))
    ]
    return ", ".join(parts)

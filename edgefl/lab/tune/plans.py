"""Compiles the plans of many configurations in one other process.

Configurations share a compiled plan if they differ only in numbers that the program takes as inputs.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing import get_context

from edgefl.base.config import FederationConfig, with_simulated_clients
from edgefl.base.errors import EdgeflError
from edgefl.base.system.signals import ignore_ctrl_c, terminate_children
from edgefl.base.system.stderr import suppress_stderr
from edgefl.base.types import Weights
from edgefl.learning.algorithms.registry import resolve_algorithm_options
from edgefl.program.plan.spec import Plan

_RATE_OPTIONS = (
    "learning_rate",
    "weight_decay",
    "local_learning_rate",
    "local_weight_decay",
    "gate_learning_rate",
    "gate_weight_decay",
)
_COUNT_OPTIONS = (
    "epochs",
    "epsilon",
    "local_epochs",
    "gate_epochs",
    "gate_share",
    "patience",
    "validation_share",
    "selection_samples",
)
BuiltPlan = tuple[Plan, Weights]


def describe_structure(config: FederationConfig) -> str:
    """Return the part of a configuration that determines its compiled program, as JSON text.

    Counts of AEM and IFCA, such as epochs, are left out. A rate counts only as zero or not zero.

    Raises:
        ConfigError: an option of the algorithm is unknown, or has the wrong type.
    """
    options = resolve_algorithm_options(with_simulated_clients(config))
    options = {
        name: bool(value) if name in _RATE_OPTIONS else value
        for name, value in options.items()
        if name not in _COUNT_OPTIONS
    }
    return json.dumps([config.algorithm, options, asdict(config.model), config.seed], sort_keys=True)


def _build(config: FederationConfig) -> BuiltPlan:
    with suppress_stderr():
        from edgefl.learning.algorithms.plans import build_plan

        return build_plan(with_simulated_clients(config))


@contextmanager
def open_plan_builder() -> Iterator[Callable[[FederationConfig], BuiltPlan]]:
    """Yield a function that returns a plan with the structure of a configuration, and its initial weights.

    Configurations with the same structure get the same plan, see `describe_structure`. `apply_options` then
    sets the options.

    Raises:
        ConfigError: raised by the function if the model or an option does not exist.
        PlanError: raised by the function if a layer cannot be compiled.
        EdgeflError: raised by the function if the other process was killed.
    """
    built: dict[str, BuiltPlan] = {}
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, terminate_children():

        def build(config: FederationConfig) -> BuiltPlan:
            key = describe_structure(config)
            if key not in built:
                try:
                    with ignore_ctrl_c():
                        building = pool.submit(_build, config)
                    built[key] = building.result()
                except BrokenProcessPool as error:
                    raise EdgeflError(
                        "the process that compiles plans was killed, probably because memory ran out; free "
                        "memory"
                    ) from error
            return built[key]

        yield build


def apply_options(built: BuiltPlan, config: FederationConfig) -> BuiltPlan:
    """Return the plan with the options of a configuration, and the initial weights.

    Clients with this plan always ship their mixture. A search measures the algorithm, not a choice between
    models.

    Args:
        built: a plan with the structure of the configuration, and its initial weights.
    """
    plan, initial = built
    options = resolve_algorithm_options(with_simulated_clients(config))
    return replace(plan, spec=replace(plan.spec, options=options, personalization={})), initial

"""Plans of many configurations, compiled in one process of their own, one for all that differ in what a
program takes as input.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing import get_context

from edgefl.algorithms.registry import resolve_algorithm_options
from edgefl.config import FederationConfig, with_simulated_clients
from edgefl.errors import EdgeflError
from edgefl.plan.spec import Plan
from edgefl.system.signals import ignore_ctrl_c, terminate_children
from edgefl.system.stderr import suppress_stderr
from edgefl.types import Weights

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
    """Return the inputs of a compiled program as text.

    Counts of AEM and IFCA are no inputs. A rate is an input only by whether it is zero.
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
        from edgefl.algorithms.plans import build_plan

        return build_plan(with_simulated_clients(config))


@contextmanager
def open_plan_builder() -> Iterator[Callable[[FederationConfig], BuiltPlan]]:
    """Give a function from a configuration to a plan of its structure, the same one for all of it.

    See `apply_options`.

    It raises what `build_plan` raises, and EdgeflError when its process is killed.
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
                        "the process that compiles plans was killed, most often for want of memory; free some"
                    ) from error
            return built[key]

        yield build


def apply_options(built: BuiltPlan, config: FederationConfig) -> BuiltPlan:
    """Return a plan of the configuration's structure with the configuration's options.

    Its clients ship their mixtures: a search measures the algorithm and not a choice between models.
    """
    plan, initial = built
    options = resolve_algorithm_options(with_simulated_clients(config))
    return replace(plan, spec=replace(plan.spec, options=options, personalization={})), initial

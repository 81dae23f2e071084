"""Plans of configurations: a model, compiled with the objectives of an algorithm.

The functions import TensorFlow. The module does not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgefl.base.config import FederationConfig
from edgefl.base.types import Weights
from edgefl.learning.algorithms.draws import with_draws
from edgefl.learning.algorithms.registry import (
    build_objectives,
    check_algorithm_task,
    count_further_draws,
    resolve_algorithm_options,
)
from edgefl.program.plan.spec import TRAIN_SINGLE, Plan, PlanSpec

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective
    from edgefl.program.learner.keras import KerasLearner


def build_plan(config: FederationConfig) -> tuple[Plan, Weights]:
    """Return the plan of a federation and its initial weights.

    The same configuration and library versions give the same plan. The plan's options are resolved: an option
    that is derived from the configuration, such as a number of rounds, has its value. For an algorithm with
    several models, the initial weights include further draws (`edgefl.learning.algorithms.draws`).

    Raises:
        ConfigError: the model or an option does not exist, or the model cannot use `micro_batch`.
        PlanError: a layer cannot be compiled.
    """
    from edgefl.program.compiler.build import compile_plan

    check_algorithm_task(config)
    options = resolve_algorithm_options(config)
    plan, initial, draws = compile_plan(
        config,
        options,
        lambda network: _split_batches(
            _build_all_objectives(config.algorithm, network, options, asdict(config.personalization)),
            config.training.micro_batch,
            network.num_classes,
        ),
        count_further_draws(config.algorithm, options),
    )
    return plan, with_draws(initial, draws)


def make_keras_learner(spec: PlanSpec) -> "KerasLearner":
    """Return the Keras learner of a plan, whose model is rebuilt from its name and options in the spec.

    Raises:
        PlanError: the model on this machine has other weights than the plan.
        ConfigError: the model does not exist on this machine.
    """
    from edgefl.program.compiler.build import rebuild_network
    from edgefl.program.compiler.objective import split_batch
    from edgefl.program.learner.keras import KerasLearner

    objectives = _build_all_objectives(
        spec.algorithm, rebuild_network(spec), spec.options, spec.personalization
    )
    sizes = {signature.name: signature.call_size for signature in spec.signatures}
    return KerasLearner(
        spec, [split_batch(objective, sizes.get(objective.name, 0)) for objective in objectives]
    )


def _build_all_objectives(
    name: str, network: "Network", options: Mapping[str, Any], personalization: Mapping[str, Any]
) -> tuple["Objective", ...]:
    """Return the algorithm's objectives, and training of one model on a client's samples where needed."""
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.optimizer import adam

    algorithm_objectives = build_objectives(name, network, options)
    if not (personalization.get("select") or personalization.get("baseline")):
        return algorithm_objectives
    optimizer = adam(personalization["learning_rate"])
    return (
        *algorithm_objectives,
        of.classify(network, personalization["batch_size"], optimizer, TRAIN_SINGLE),
    )


def _split_batches(
    objectives: Iterable["Objective"], micro_batch: int, num_classes: int
) -> tuple["Objective", ...]:
    """Return the objectives with their batches in parts, see `split_batch`."""
    from edgefl.program.compiler.objective import split_batch
    from edgefl.program.learner.part_check import check_parts

    split_objectives = []
    for whole in objectives:
        objective = split_batch(whole, micro_batch)
        if objective.is_split:
            check_parts(whole, objective, num_classes)
        split_objectives.append(objective)
    return tuple(split_objectives)

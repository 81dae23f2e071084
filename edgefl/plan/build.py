"""A configuration -> plan and initial weights. Imports TensorFlow; the aggregator runs it in a process of its own."""

from dataclasses import replace
from typing import Any

import keras

from edgefl.algorithms.draws import with_draws
from edgefl.algorithms.registry import full_options, further_draws, objectives
from edgefl.config import FederationConfig, ModelConfig
from edgefl.errors import PlanError
from edgefl.learner.keras import KerasLearner
from edgefl.models import build_model
from edgefl.plan.compile import compile_program
from edgefl.plan.further import further_weights
from edgefl.plan.network import Network, check_exportable
from edgefl.plan.spec import Plan, PlanSpec, TensorSpec
from edgefl.types import Weights

MIXTURE = "predict_mixture"


def build_plan(config: FederationConfig) -> tuple[Plan, Weights]:
    """Return the plan of this federation and its initial weights: the same for the same configuration and library versions.

    The initial weights hold further draws for an algorithm with several models, see `edgefl.algorithms.draws`.
    Raises ConfigError for a model or an option that does not exist, PlanError for a layer that cannot compile.
    """
    from edgefl.plan.template import build_template

    options = full_options(config.algorithm, config.options)
    network = make_network(config)
    found = objectives(config.algorithm, network, options)
    initial = network.initial_weights() | {name: value for each in found for name, value in each.initial.items()}
    own = {spec.name for spec in network.specs}
    weights = (*network.specs, *(TensorSpec(name, value.shape) for name, value in initial.items() if name not in own))
    mixture = next((replace(each, out=each.exported or each.out) for each in found if each.name == MIXTURE), None)
    if mixture is not None:
        check_exportable(network)
    program, signatures = compile_program(found)
    template, bindings = (b"", ()) if mixture is None else build_template(mixture, network.epsilons)
    spec = PlanSpec(
        config.model.name, config.algorithm, options, tuple(config.model.input_shape), config.model.num_classes,
        weights, signatures, tuple(bindings), dict(config.model.options),
    )  # fmt: skip
    draws = further_weights(
        {name: initial[name] for name in own}, further_draws(config.algorithm, options), config.seed,
        lambda seed: make_network(replace(config, seed=seed)),
    )  # fmt: skip
    return Plan(spec, program, template), with_draws(initial, draws)


def make_network(config: FederationConfig) -> Network:
    """Return the configuration's model with weights drawn from its seed (those of a `.keras` file are kept)."""
    keras.utils.set_random_seed(config.seed)
    model: Any = build_model(config.model)
    return Network(model)


def keras_learner(spec: PlanSpec) -> KerasLearner:
    """Return the Keras learner of a plan, its model built anew from the name and options in the spec.

    Raises PlanError when that gives other weights than the plan's, ConfigError when the model is not on this machine.
    """
    network = Network(build_model(ModelConfig(spec.model, spec.input_shape, spec.num_classes, spec.model_options)))
    if network.specs != spec.weights[: len(network.specs)]:
        raise PlanError(f"the model {spec.model!r} of this machine has other weights than the plan; install the aggregator's version")
    return KerasLearner(spec, objectives(spec.algorithm, network, spec.options))

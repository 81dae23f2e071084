"""Compiles a configuration and the objectives of its algorithm into a plan and initial weights.

This module imports TensorFlow. The aggregator runs it in a separate process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import keras

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.errors import PlanError
from edgefl.base.types import Array, Weights
from edgefl.program.compiler.compare import check_program, find_wrong_export_layer
from edgefl.program.compiler.compile import compile_program
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.objective import Objective
from edgefl.program.compiler.template import build_template
from edgefl.program.compiler.weight_draws import draw_weights
from edgefl.program.models import build_model
from edgefl.program.models.input_scaling import choose_samples, find_scaling
from edgefl.program.plan.memory import estimate_process_mb
from edgefl.program.plan.normalization import (
    NORMALIZATION_KEYS,
    has_placeholders,
    make_placeholders,
    set_normalization,
)
from edgefl.program.plan.spec import (
    PREDICT_MIXTURE,
    PREDICT_SINGLE,
    Binding,
    Plan,
    PlanSpec,
    TensorSpec,
    choose_plan_format,
    read_task,
)
from edgefl.program.plan.tflite import read_model


def compile_plan(
    config: FederationConfig,
    options: Mapping[str, Any],
    make_objectives: Callable[[Network], Sequence[Objective]],
    num_draws: int = 0,
) -> tuple[Plan, Weights, Mapping[int, Mapping[str, Array]]]:
    """Compile the model of a configuration for one algorithm.

    Args:
        config: names the model, the seed and the algorithm.
        options: all options of the algorithm. The plan contains them.
        make_objectives: returns the objectives of the algorithm for a network.
        num_draws: number of further draws of the model's initial weights.

    Returns:
        The plan, its initial weights by name, and the further draws by index from 1.

    Raises:
        ConfigError: the model or one of its options does not exist.
        PlanError: a layer or an objective cannot be compiled.
    """
    unmeasured = _with_placeholders(config)
    network = make_network(unmeasured)
    objectives = make_objectives(network)
    initial = network.read_weights()
    for objective in objectives:
        initial = initial | dict(objective.initial)
    network_names = {spec.name for spec in network.specs}
    weights = (
        *network.specs,
        *(TensorSpec(name, value.shape) for name, value in initial.items() if name not in network_names),
    )
    program, signatures = compile_program(objectives)
    check_program(network, objectives, signatures, program)
    template, bindings, single, single_bindings = _build_templates(network, objectives)
    task = config.task.as_plan_entry()
    augmentation = config.augmentation.as_plan_entry()
    scaling = network.input_scaling if unmeasured is config else None
    samples = choose_samples(config.samples, scaling, config.model.input_shape).as_plan_entry()
    spec = PlanSpec(
        model=config.model.name,
        algorithm=config.algorithm,
        options=dict(options),
        input_shape=tuple(config.model.input_shape),
        num_classes=config.model.num_classes,
        weights=weights,
        signatures=signatures,
        bindings=tuple(bindings),
        model_options=_list_model_options(unmeasured.model),
        single_bindings=single_bindings,
        personalization=asdict(config.personalization),
        format=choose_plan_format(task, augmentation, samples, signatures),
        task=task,
        augmentation=augmentation,
        samples=samples,
    )
    draws = draw_weights(
        {name: initial[name] for name in network_names},
        num_draws,
        config.seed,
        lambda seed: make_network(replace(unmeasured, seed=seed)),
    )
    spec = replace(spec, process_mb=round(estimate_process_mb(spec, read_model(program))))
    plan = Plan(spec=spec, program=program, template=template, single=single)
    if has_placeholders(spec):  # an error after the devices have measured would be too late
        set_normalization(plan, (0.0,), (1.0,))
    return plan, initial, draws


def _build_templates(
    network: Network, objectives: Sequence[Objective]
) -> tuple[bytes, tuple[Binding, ...], bytes, tuple[Binding, ...]]:
    """Return the templates of the mixture and of one model, each with its bindings.

    The second template is empty if the mixture is one model, and both are empty if the algorithm has no
    mixture.
    """
    named = {objective.name: objective for objective in objectives}
    if PREDICT_MIXTURE not in named:
        return b"", (), b"", ()
    mixture = named[PREDICT_MIXTURE]

    def build(objective: Objective) -> tuple[bytes, tuple[Binding, ...]]:
        return build_template(objective, network.epsilons, lambda: find_wrong_export_layer(network))

    template, bindings = build(replace(mixture, out=mixture.export_out or mixture.out))
    if PREDICT_SINGLE not in named or named[PREDICT_SINGLE].frozen == mixture.frozen:
        return template, bindings, b"", ()
    return template, bindings, *build(named[PREDICT_SINGLE])


def make_network(config: FederationConfig) -> Network:
    """Return the model of a configuration.

    Its weights are drawn from the seed of the configuration. A `.keras` file contains its weights.

    Args:
        config: names the model and the seed.

    Raises:
        ConfigError: the model or one of its options does not exist.
        PlanError: a layer of the model cannot be compiled.
    """
    keras.utils.set_random_seed(config.seed)
    return Network(build_model(config.model, config.task), config.task, config.augmentation.is_on)


def _with_placeholders(config: FederationConfig) -> FederationConfig:
    """Return the configuration with placeholders as mean and std, if the devices measure them.

    They do not for a model that scales its own input.
    """
    model = config.model
    if model.mean or not model.normalize or find_scaling(config) is not None:
        return config
    mean, std = make_placeholders(model.input_shape[-1])
    return replace(config, model=replace(model, mean=mean, std=std))


def _list_model_options(model: ModelConfig) -> dict[str, Any]:
    constants = {key: list(getattr(model, key)) for key in NORMALIZATION_KEYS}
    return {**model.options, **{key: values for key, values in constants.items() if values}}


def rebuild_network(spec: PlanSpec) -> Network:
    """Return the model of a plan, built from the name and options in its spec.

    Raises:
        PlanError: the model has other weights than the plan.
        ConfigError: the model is not on this machine.
    """
    task = read_task(spec)
    options = dict(spec.model_options)
    mean, std = (tuple(options.pop(key, ())) for key in NORMALIZATION_KEYS)
    config = ModelConfig(
        name=spec.model,
        input_shape=spec.input_shape,
        num_classes=spec.num_classes,
        options=options,
        mean=mean,
        std=std,
    )
    network = Network(build_model(config, task), task, bool(spec.augmentation))
    if network.specs != spec.weights[: len(network.specs)]:
        raise PlanError(
            f"the model {spec.model!r} on this machine has other weights than the plan; install the version "
            "of the aggregator"
        )
    return network

"""Reads the aggregator's plan from a directory, or builds it in a child process.

The child process keeps TensorFlow out of the aggregator's memory.
"""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.errors import PlanError
from edgefl.base.types import Weights
from edgefl.learning.algorithms import resolve_algorithm_options
from edgefl.learning.algorithms.range_test import RATE
from edgefl.learning.algorithms.registry import check_plan_options, find_entry
from edgefl.learning.client.validation import read_personalization
from edgefl.program.learner.augmentation import read_augmentation
from edgefl.program.plan.normalization import has_placeholders, set_normalization
from edgefl.program.plan.spec import (
    INITIAL_FILE,
    Plan,
    PlanSpec,
    divide_batch,
    load_plan,
    read_samples_config,
    read_task,
)
from edgefl.protocol.server.initial_weights import decode_initial_weights


def build_plan_in_child(config_path: Path, directory: Path) -> None:
    """Run `edgefl plan build` in a child process.

    Args:
        directory: directory of the new plan.

    Raises:
        PlanError: the command failed. The error contains the command's last line.
    """
    command = [
        sys.executable,
        "-m",
        "edgefl",
        "plan",
        "build",
        "--config",
        str(config_path),
        "-o",
        str(directory),
    ]
    process = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if process.returncode:
        error_lines = [line for line in process.stderr.splitlines() if line.strip()]
        reason = (
            error_lines[-1].removeprefix("edgefl: ")
            if error_lines
            else f"exit code {process.returncode} without an error message; free some memory"
        )
        raise PlanError(f"the plan could not be built: {reason}")


def list_differing_options(spec: PlanSpec, config: FederationConfig) -> list[str]:
    """Return a warning for each option with different values in the plan and the configuration.

    The comparison covers the algorithm's options that the configuration sets or implies, `[augmentation]`,
    `[training]`, `[task]`, the keys of `[model]` and `[samples]` that the configuration sets, and all of
    `[personalization]` except `deadline_s`. The aggregator reads `deadline_s` from the configuration.

    Raises:
        ConfigError: the configuration has an unknown algorithm or an option that cannot be used.
        PlanError: this version of edgefl does not know a setting of the plan.
    """
    defaults = find_entry(config.algorithm).defaults
    options = [
        (key, spec.options[key], value)
        for key, value in resolve_algorithm_options(config).items()
        if key in spec.options
        and spec.options[key] != value
        and (key in config.options or value != defaults[key] or (key == RATE and config.range_test))
    ]
    planned = asdict(read_personalization(spec))
    settings = [
        (f"[personalization] {key}", planned[key], value)
        for key, value in asdict(config.personalization).items()
        if key != "deadline_s" and planned[key] != value
    ]
    augmented = asdict(read_augmentation(spec))
    changes = [
        (f"[augmentation] {key}", augmented[key], value)
        for key, value in asdict(config.augmentation).items()
        if augmented[key] != value
    ]
    planned_samples = asdict(read_samples_config(spec))
    stated = [
        (f"[samples] {key}", planned_samples[key], value)
        for key, value in asdict(config.samples).items()
        if value and planned_samples[key] != value
    ]
    return [
        f"the plan has {key} = {planned_value!r}, the configuration {value!r}; the plan's value is used. "
        "To use the configuration's, build the plan with `edgefl plan build --config`"
        for key, planned_value, value in options
        + settings
        + changes
        + stated
        + _list_micro_batch_changes(spec, config)
        + _list_model_changes(spec, config)
    ]


def _list_micro_batch_changes(spec: PlanSpec, config: FederationConfig) -> list[tuple[str, Any, Any]]:
    """Return the key `micro_batch`, the size of the plan's largest part and the configuration's value.

    Returns:
        One entry, or none if the configuration divides batches as the plan does.
    """
    micro_batch = config.training.micro_batch
    signatures = [signature for signature in spec.signatures if signature.kind == "train"]
    if all(item.call_size == divide_batch(item.batch_size, micro_batch) for item in signatures):
        return []
    planned = max((item.call_size for item in signatures if item.gradients), default=0)
    return [("[training] micro_batch", planned, micro_batch)]


def describe_scaling_model(spec: PlanSpec, config: FederationConfig) -> str:
    """Return a sentence for a plan whose model scales its own input, else "".

    Raises:
        PlanError: this version of edgefl does not know a setting of the plan.
    """
    if read_samples_config(spec).scale != 1 or config.samples.scale:
        return ""
    return (
        "the model scales its own input, so devices do not divide their samples: the plan has scale = 1 in "
        "[samples]"
    )


def _list_model_changes(spec: PlanSpec, config: FederationConfig) -> list[tuple[str, Any, Any]]:
    """Return the keys of `[model]` and `[task]` with other values than the plan's, and both values.

    A key of `[model]` with its default value counts as not set.
    """
    model, default = config.model, ModelConfig()
    planned = {
        "name": spec.model,
        "input_shape": tuple(spec.input_shape),
        "num_classes": spec.num_classes,
        **{key: tuple(spec.model_options.get(key, ())) for key in ("mean", "std")},
        # A model that scales its own input needs no other normalization
        "normalize": "mean" in spec.model_options or read_samples_config(spec).scale == 1,
    }
    planned_task = asdict(read_task(spec))
    task = asdict(read_task(replace(spec, task=config.task.as_plan_entry())))  # with derived values
    return [
        *(
            (f"[model] {key}", value, getattr(model, key))
            for key, value in planned.items()
            if getattr(model, key) not in (value, getattr(default, key))
        ),
        *(
            (f"[model] {key}", spec.model_options[key], value)
            for key, value in model.options.items()
            if spec.model_options.get(key, value) != value
        ),
        *(
            (f"[task] {key}", planned_task[key], value)
            for key, value in task.items()
            if planned_task[key] != value
        ),
    ]


def open_built_plan(directory: Path, config: FederationConfig) -> tuple[Plan, Weights]:
    """Return the plan in a directory and its initial weights.

    Args:
        directory: directory of `edgefl plan build`.

    Raises:
        PlanError: the plan or its weights are missing, or the plan is for another algorithm than the
            configuration's, or a version of edgefl with other options built it.
    """
    plan = load_plan(directory)
    if config.model.mean and has_placeholders(plan.spec):
        plan = set_normalization(plan, config.model.mean, config.model.std)
    if plan.spec.algorithm != config.algorithm:
        raise PlanError(
            f"the plan in {directory} is for {plan.spec.algorithm}, the configuration says "
            f"{config.algorithm}; build it again with `edgefl plan build --config`, or leave --plan out"
        )
    check_plan_options(
        plan.spec,
        "continue with the version that started this federation (`edgefl report` reads a finished one), "
        "or start a new one with --fresh and without --plan",
    )
    try:
        blob = (directory / INITIAL_FILE).read_bytes()
    except OSError as error:
        raise PlanError(
            f"no initial weights: {error}; build the plan again with `edgefl plan build -o {directory}`"
        ) from error
    return plan, decode_initial_weights(blob, plan.spec, str(directory / INITIAL_FILE))

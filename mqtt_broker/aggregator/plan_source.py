"""Where the aggregator's plan comes from: a directory, or a child process that builds it, so that this one
never holds TensorFlow.
"""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from edgefl.algorithms import resolve_algorithm_options
from edgefl.algorithms.registry import check_plan_options, find_entry
from edgefl.client.validation import read_personalization
from edgefl.config import FederationConfig
from edgefl.errors import PlanError
from edgefl.plan.spec import INITIAL_FILE, Plan, PlanSpec, load_plan
from edgefl.server.initial_weights import decode_initial_weights
from edgefl.types import Weights


def build_plan_in_child(config_path: Path, directory: Path) -> None:
    """Run `edgefl plan build`.

    Raises:
        PlanError: the command failed. The error has its last line.
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
            else f"exit code {process.returncode}, no word why; free some memory"
        )
        raise PlanError(f"the plan could not be built: {reason}")


def list_differing_options(spec: PlanSpec, config: FederationConfig) -> list[str]:
    """Return a line for each option that has another value in the plan than in the configuration.

    It compares the options of the algorithm that the configuration sets or that follow from it, and all of
    `[personalization]` except `deadline_s`, which the aggregator reads from the configuration.
    """
    defaults = find_entry(config.algorithm).defaults
    options = [
        (key, spec.options[key], value)
        for key, value in resolve_algorithm_options(config).items()
        if key in spec.options
        and spec.options[key] != value
        and (key in config.options or value != defaults[key])
    ]
    planned = asdict(read_personalization(spec))
    settings = [
        (f"[personalization] {key}", planned[key], value)
        for key, value in asdict(config.personalization).items()
        if key != "deadline_s" and planned[key] != value
    ]
    return [
        f"the plan has {key} = {planned_value!r}, the configuration {value!r}; the plan counts. To use the "
        "configuration's, build the plan with `edgefl plan build --config`"
        for key, planned_value, value in options + settings
    ]


def open_built_plan(directory: Path, config: FederationConfig) -> tuple[Plan, Weights]:
    """Read plan and initial weights.

    PlanError when they are missing, or were built for another algorithm than the configuration's or by a
    version of edgefl with other options.
    """
    plan = load_plan(directory)
    if plan.spec.algorithm != config.algorithm:
        raise PlanError(
            f"the plan in {directory} is for {plan.spec.algorithm}, the configuration says "
            f"{config.algorithm}; build it again with `edgefl plan build --config`, or leave --plan out"
        )
    check_plan_options(
        plan.spec,
        "continue with the version that started this federation (`edgefl report` reads a finished one), "
        "or start "
        "anew with --fresh and without --plan",
    )
    try:
        blob = (directory / INITIAL_FILE).read_bytes()
    except OSError as error:
        raise PlanError(
            f"no initial weights: {error}; build the plan again with `edgefl plan build -o {directory}`"
        ) from error
    return plan, decode_initial_weights(blob, plan.spec, str(directory / INITIAL_FILE))

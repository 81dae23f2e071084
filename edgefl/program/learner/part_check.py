"""Checks before a plan is compiled that a batch may be trained in parts.

This module imports TensorFlow, and only the builder of plans imports it.
"""

import contextlib
import itertools

import numpy as np

from edgefl.base.errors import ConfigError, DivergedError
from edgefl.program.compiler.compare import (
    BOTH_SIGNS,
    FIRST_SEED,
    POSITIVE,
    REPEATED_SEEDS,
    TOLERANCES,
    Draw,
    draw_arguments,
    find_floor,
    measure_differences,
)
from edgefl.program.compiler.objective import Objective, make_signature
from edgefl.program.learner.keras import KerasLearner
from edgefl.program.plan.spec import PlanSpec, SignatureSpec


def check_parts(whole: Objective, parts: Objective, num_classes: int) -> None:
    """Check that a training step on parts of a batch is the step on the whole batch.

    Rounding can make a difference, and a loss may be undefined for some samples. So each of several draws may
    decide that the steps are equal.

    Args:
        whole: an objective of kind train.
        parts: the same objective after `split_batch`.
        num_classes: number of classes of the labels.

    Raises:
        ConfigError: the loss of a sample depends on the other samples of its batch.
    """
    learners = [
        KerasLearner(_make_single_spec(make_signature(objective)), [objective])
        for objective in (whole, parts)
    ]
    signature = learners[0].spec.signatures[0]

    def measure_draw(draw: Draw, seed: int) -> float:
        args = draw_arguments(signature, num_classes, draw, seed)
        start = {spec.name: args[f"t_{i}"] for i, spec in enumerate(signature.trained)}
        weights = start | {spec.name: args[f"f_{i}"] for i, spec in enumerate(signature.frozen)}
        expected, received = (
            learner.fit(
                signature.name,
                weights,
                {spec.name: args[f"d_{spec.name}"] for spec in signature.data},
                args["d_y"],
                epochs=1,
                rng=np.random.default_rng(seed),
                hyper={name: args[f"h_{name}"] for name in signature.hyper},
                augment=False,
            )[0]
            for learner in learners
        )
        steps, part_steps = (
            {name: array - start[name] for name, array in trained.items()} for trained in (expected, received)
        )
        floor = find_floor(steps.values())
        return max(measure_differences(part_steps, steps, dict.fromkeys(steps, floor)).values())

    smallest = np.inf
    for draw, seed in itertools.product((BOTH_SIGNS, POSITIVE), (FIRST_SEED, *REPEATED_SEEDS)):
        with contextlib.suppress(DivergedError):
            smallest = min(smallest, measure_draw(draw, seed))
        if smallest <= TOLERANCES["train"]:
            return
    raise ConfigError(
        f"[training] micro_batch divides batches of {signature.batch_size} samples, but in {whole.name} the "
        f"loss of a sample depends on the others: the steps differ by {smallest:.1e}, expected at most "
        f"{TOLERANCES['train']}; change the model so that it computes each sample alone, or leave "
        "micro_batch out"
    )


def _make_single_spec(signature: SignatureSpec) -> PlanSpec:
    return PlanSpec(
        model="",
        algorithm="",
        options={},
        input_shape=(),
        num_classes=0,
        weights=(),
        signatures=(signature,),
    )

"""The learners by the name that `edgefl device start --learner` takes."""

from collections.abc import Callable

from edgefl.learner.base import Learner
from edgefl.plan.spec import Plan


def _litert(plan: Plan, threads: int) -> Learner:
    """Return a learner that runs the plan's compiled program in a TFLite runtime."""
    from edgefl.learner.litert import LiteRTLearner

    return LiteRTLearner(plan, threads)


def _keras(plan: Plan, threads: int) -> Learner:
    """Return a learner for boards with a GPU. It needs TensorFlow, which chooses its own threads."""
    from edgefl.algorithms.plans import keras_learner

    return keras_learner(plan.spec)


LEARNERS: dict[str, Callable[[Plan, int], Learner]] = {"litert": _litert, "keras": _keras}
"""Name of a learner -> the function that makes it from a plan and a number of threads."""

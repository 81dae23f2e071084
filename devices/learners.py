"""The learners of `edgefl device start --learner`."""

from collections.abc import Callable

from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import Plan


def _make_litert_learner(plan: Plan, threads: int) -> Learner:
    """Return a learner that runs the plan's compiled program in a TFLite runtime."""
    from edgefl.program.learner.litert import LiteRTLearner

    return LiteRTLearner(plan, threads)


def _make_keras_learner(plan: Plan, threads: int) -> Learner:
    """Return a learner for boards with a GPU. It needs TensorFlow, which ignores the number of threads."""
    from edgefl.learning.algorithms.plans import make_keras_learner

    return make_keras_learner(plan.spec)


LEARNERS: dict[str, Callable[[Plan, int], Learner]] = {
    "litert": _make_litert_learner,
    "keras": _make_keras_learner,
}
"""Functions that make a learner from a plan and a number of threads, by name."""

"""The learner of a plan without a program, such as the plan of a measurement before round 1."""

from typing import Any, NoReturn

from edgefl.base.errors import PlanError
from edgefl.program.plan.spec import Plan


class NoLearner:
    """Trains and predicts nothing.

    Args:
        plan: a plan without a program.

    Attributes:
        name: name of the learner.
        spec: the spec of the plan.
    """

    name = "none"

    def __init__(self, plan: Plan) -> None:
        self.spec = plan.spec

    def fit(self, signature: str, *rest: Any, **more: Any) -> NoReturn:
        """Raise PlanError, because the plan has no program."""
        raise PlanError(
            f"the plan for {self.spec.algorithm} has no program, expected the signature {signature!r}; build "
            "the plan again with `edgefl plan build`"
        )

    predict = fit

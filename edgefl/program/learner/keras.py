"""The TensorFlow learner, which is the reference for every plan and the learner of devices with a GPU.

It runs the same functions that the plan was compiled from, with TensorFlow's ops and gradients.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.base.errors import PlanError
from edgefl.program.learner.loop import StepLearner
from edgefl.program.plan.spec import PlanSpec

if TYPE_CHECKING:
    from edgefl.program.compiler.objective import Objective


class KerasLearner(StepLearner):
    """A learner with one `tf.function` for each signature, see `Learner`.

    Args:
        objectives: the objectives that the plan was built from.

    Raises:
        PlanError: a signature of the plan has no objective.
    """

    name = "keras"

    def __init__(self, spec: PlanSpec, objectives: Sequence["Objective"]) -> None:
        self.spec = spec
        self._objectives = {objective.name: objective for objective in objectives}
        missing = [s.name for s in spec.signatures if s.name not in self._objectives]
        if missing:
            raise PlanError(
                f"the plan's signatures {', '.join(missing)} have no objective; pass the objectives that the "
                "plan was built from"
            )
        self.traced: Callable[[str], Any] = cache(self._trace)
        """Maps a signature's name to its concrete function. Tensors are named as in `SignatureSpec`."""

    def _trace(self, signature: str) -> Any:
        from edgefl.program.compiler.objective import compile_signature, run_signature

        spec = self.spec.find_signature(signature)

        def run(**args: Any) -> dict[str, Any]:
            return run_signature(self._objectives[signature], spec, args)

        return compile_signature(run, spec)

    def step(self, signature: str, arguments: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the signature once, see `StepLearner.step`."""
        import tensorflow as tf

        results = self.traced(signature)(**{name: tf.constant(array) for name, array in arguments.items()})
        return {name: tensor.numpy() for name, tensor in results.items()}

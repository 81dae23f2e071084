"""The device's learner: runs a plan in a TFLite runtime. Needs no TensorFlow."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgefl.errors import PlanError
from edgefl.learner.loop import StepLearner
from edgefl.learner.runtime import load_interpreter
from edgefl.plan.spec import Plan
from edgefl.quiet import quiet_stderr


class LiteRTLearner(StepLearner):
    """One interpreter over one plan; see `Learner`. Raises PlanError when the runtime refuses the program.

    Only the signature in use is held: each keeps its own tensors, and all of a PFL-MFE plan together take 20 MB more than one.
    """

    name = "litert"

    def __init__(self, plan: Plan, threads: int = 1) -> None:
        self.spec = plan.spec
        self._program, self._threads = plan.program, threads
        self._open: tuple[str, Any] | None = None
        program = set(load_interpreter(plan.program).get_signature_list())
        missing = {s.name for s in self.spec.signatures} - program
        if missing:
            raise PlanError(f"the program lacks the signatures {', '.join(sorted(missing))} of its spec; build the plan again")

    def step(self, signature: str, arguments: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the signature once; see `StepLearner.step`."""
        if self._open is not None and self._open[0] == signature:
            return dict(self._open[1](**arguments))
        self._open = None  # first give the other one's memory back
        runner = load_interpreter(self._program, self._threads).get_signature_runner(signature)
        with quiet_stderr():  # at its first step the runtime tells of its delegate
            results = dict(runner(**arguments))
        self._open = (signature, runner)
        return results

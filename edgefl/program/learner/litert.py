"""The learner of devices, which runs a plan in a TFLite runtime and needs no TensorFlow."""

from collections.abc import Mapping

import numpy as np

from edgefl.base.errors import PlanError
from edgefl.base.system.stderr import suppress_stderr
from edgefl.program.learner.loop import StepLearner
from edgefl.program.learner.signature import RunnableSignature, open_signature
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.spec import Plan


class LiteRTLearner(StepLearner):
    """A learner that interprets the program of one plan, see `Learner`.

    Only one signature is open at a time, because each signature has its own tensors. All signatures of a
    PFL-MFE plan together take 20 MB more than one.

    Args:
        plan: the plan to run.
        threads: number of threads of the runtime.

    Raises:
        PlanError: the runtime rejects the program, or the program lacks a signature of its spec.
    """

    name = "litert"

    def __init__(self, plan: Plan, threads: int = 1) -> None:
        self.spec = plan.spec
        self._program = plan.program
        self._threads = threads
        self._open: tuple[str, RunnableSignature] | None = None
        program = set(load_interpreter(plan.program).get_signature_list())
        missing = {s.name for s in self.spec.signatures} - program
        if missing:
            raise PlanError(
                f"the program lacks the signatures {', '.join(sorted(missing))} of its spec; build the plan "
                "again"
            )

    def step(self, signature: str, arguments: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the signature once, see `StepLearner.step`."""
        if self._open is None or self._open[0] != signature:
            self._open = None  # releases the memory of the other signature first
            with suppress_stderr():  # the runtime prints a line about its delegate
                self._open = (
                    signature,
                    open_signature(load_interpreter(self._program, self._threads), signature),
                )
        return self._open[1](arguments)

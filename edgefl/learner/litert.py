"""The device's learner: runs a plan in a TFLite runtime. Needs no TensorFlow."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgefl.errors import PlanError
from edgefl.learner.loop import StepLearner
from edgefl.plan.runtime import load_interpreter
from edgefl.plan.spec import Plan
from edgefl.system.stderr import quiet_stderr


class _Opened:
    """A signature whose tensors are allocated once.

    The runtime's own `SignatureRunner` sizes every input anew at each call and copies every output: a tenth
    of a small network's step. Shapes are fixed in a plan, and what a step gives goes into the next one, so
    neither is needed.
    """

    def __init__(self, interpreter: Any, signature: str) -> None:
        runner = interpreter.get_signature_runner(signature)
        self._calls = runner._interpreter_wrapper
        self._graph = runner._subgraph_index
        self._inputs = dict(runner._inputs)
        self._outputs = dict(runner._outputs)
        self._calls.AllocateTensors(self._graph)

    def __call__(self, arguments: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once; the results are the runtime's own memory, which the next run writes over."""
        if arguments.keys() != self._inputs.keys():
            raise PlanError(
                f"the program takes {', '.join(self._inputs)}, received {', '.join(arguments)}; build the "
                "plan again"
            )
        for name, array in arguments.items():
            self._calls.SetTensor(self._inputs[name], array, self._graph)
        self._calls.Invoke(self._graph)
        return {
            name: self._calls.tensor(self._calls, index, self._graph) for name, index in self._outputs.items()
        }


class LiteRTLearner(StepLearner):
    """One interpreter over one plan; see `Learner`. Raises PlanError when the runtime refuses the program.

    Only the signature in use is held: each keeps its own tensors, and all of a PFL-MFE plan together take 20
    MB more than one.
    """

    name = "litert"

    def __init__(self, plan: Plan, threads: int = 1) -> None:
        self.spec = plan.spec
        self._program = plan.program
        self._threads = threads
        self._open: tuple[str, _Opened] | None = None
        program = set(load_interpreter(plan.program).get_signature_list())
        missing = {s.name for s in self.spec.signatures} - program
        if missing:
            raise PlanError(
                f"the program lacks the signatures {', '.join(sorted(missing))} of its spec; build the plan "
                "again"
            )

    def step(self, signature: str, arguments: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the signature once; see `StepLearner.step`."""
        if self._open is None or self._open[0] != signature:
            self._open = None  # first give the other one's memory back
            with quiet_stderr():  # the runtime tells of its delegate
                self._open = (signature, _Opened(load_interpreter(self._program, self._threads), signature))
        return self._open[1](arguments)

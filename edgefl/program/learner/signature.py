"""Runs one signature of a TFLite program. Only this module uses private names of the runtime.

The runtime's public `SignatureRunner` resizes every input at each call and copies every output. This takes a
tenth of a small network's step. Neither is needed, because shapes are fixed in a plan and the results of a
step are arguments of the next. `PreparedSignature` avoids both, with private names of the runner.
`PublicSignature` uses public names only, for runtimes that lack the private ones.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from edgefl.base.errors import PlanError

PRIVATE_RUNNER_NAMES = ("_interpreter_wrapper", "_subgraph_index", "_inputs", "_outputs")
"""Names that `PreparedSignature` needs. ai-edge-litert 2.1 to 2.3 and tflite-runtime 2.14 have them."""


class RunnableSignature(Protocol):
    """A signature that is ready to run."""

    def __call__(self, arguments: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the signature once.

        Args:
            arguments: the inputs by name, with the shapes of the plan.

        Returns:
            The outputs by name. The next call may overwrite them.

        Raises:
            PlanError: the signature has other inputs.
        """


def open_signature(interpreter: Any, name: str) -> RunnableSignature:
    """Return a signature of the interpreter's program, in the fastest way that the runtime supports.

    Args:
        interpreter: a TFLite interpreter.
    """
    runner = interpreter.get_signature_runner(name)
    if all(hasattr(runner, attribute) for attribute in PRIVATE_RUNNER_NAMES):
        return PreparedSignature(runner)
    return PublicSignature(runner)


class PreparedSignature:
    """A signature whose tensors are allocated once, see `RunnableSignature`."""

    def __init__(self, runner: Any) -> None:
        self._calls = runner._interpreter_wrapper
        self._graph = runner._subgraph_index
        self._inputs = dict(runner._inputs)
        self._outputs = dict(runner._outputs)
        self._calls.AllocateTensors(self._graph)

    def __call__(self, arguments: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        _check_names(self._inputs, arguments)
        for name, array in arguments.items():
            self._calls.SetTensor(self._inputs[name], array, self._graph)
        self._calls.Invoke(self._graph)
        return {
            name: self._calls.tensor(self._calls, index, self._graph) for name, index in self._outputs.items()
        }


class PublicSignature:
    """A signature that runs through the runtime's public interface, see `RunnableSignature`."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._inputs = runner.get_input_details()

    def __call__(self, arguments: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        _check_names(self._inputs, arguments)
        return dict(self._runner(**arguments))


def _check_names(inputs: Mapping[str, object], arguments: Mapping[str, np.ndarray]) -> None:
    if arguments.keys() != inputs.keys():
        raise PlanError(
            f"the program takes {', '.join(inputs)}, received {', '.join(arguments)}; build the plan again"
        )

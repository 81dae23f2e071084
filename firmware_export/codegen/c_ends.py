"""Models with several inputs or outputs in the generated C.

The C has one buffer for all inputs, one after another in the order of the model, and one for all outputs.
"""

from dataclasses import dataclass, replace

import numpy as np

from edgefl.program.plan.tflite import Operator, TfliteTensor
from firmware_export.codegen.c_movement import JOINED_OUTPUTS, SPLIT_INPUTS
from firmware_export.tflite.quantized_model import QuantizedModel


@dataclass(frozen=True)
class ModelEnd:
    """One input or output of a model.

    Attributes:
        suffix: what follows INPUT or OUTPUT in its macros: its number, or nothing if it is the only one.
        tensor: its tensor.
        start: index of its first value in the buffer of all inputs or outputs.
    """

    suffix: str
    tensor: TfliteTensor
    start: int

    @property
    def ctype(self) -> str:
        """C type of its values."""
        return f"{self.tensor.dtype.lower()}_t"


def list_ends(network: QuantizedModel, indices: tuple[int, ...]) -> tuple[ModelEnd, ...]:
    """Return the inputs or outputs of a model with their places in the buffer.

    Args:
        indices: indices of their tensors, in the order of the model.
    """
    starts = np.cumsum([0, *(network.get_tensor(index).size for index in indices)])
    return tuple(
        ModelEnd(str(number) if len(indices) > 1 else "", network.get_tensor(index), int(start))
        for number, (index, start) in enumerate(zip(indices, starts, strict=False))
    )


def join_ends(network: QuantizedModel) -> QuantizedModel:
    """Return the model with one input and one output.

    Several inputs become views of one, and several outputs are copied into one.
    """
    tensors = list(network.tensors)
    operators = list(network.operators)
    inputs, outputs = network.inputs, network.outputs
    if len(inputs) > 1:
        entry = _add_joined(tensors, inputs, "inputs")
        operators.insert(0, _make_operator(SPLIT_INPUTS, (entry,), inputs))
        inputs = (entry,)
    if len(outputs) > 1:
        result = _add_joined(tensors, outputs, "outputs")
        operators.append(_make_operator(JOINED_OUTPUTS, outputs, (result,)))
        outputs = (result,)
    return replace(
        network, tensors=tuple(tensors), operators=tuple(operators), inputs=inputs, outputs=outputs
    )


def _add_joined(tensors: list[TfliteTensor], indices: tuple[int, ...], name: str) -> int:
    """Add a tensor with room for the tensors of these indices, and return its index."""
    size = sum(tensors[index].size for index in indices)
    tensors.append(replace(tensors[indices[0]], index=len(tensors), name=name, shape=(1, size), data=None))
    return len(tensors) - 1


def _make_operator(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Operator:
    return Operator(name=name, custom="", version=1, inputs=inputs, outputs=outputs, options={})

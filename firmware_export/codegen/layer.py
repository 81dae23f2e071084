"""One layer of the generated C: the call of its kernel, the constants in its part, and its cost."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import Operator, TfliteTensor
from firmware_export.tflite.quantized_model import QuantizedModel

MAX_IDENTIFIER_LENGTH = 48
"""C99 distinguishes identifiers by their first 63 characters. A field adds a suffix to a name."""
STRUCTS = {
    "struct model_range": ("input_zero", "output_zero", "low", "high"),
    "struct model_add": (
        "zero_a",
        "left_a",
        "multiplier_a",
        "shift_a",
        "zero_b",
        "left_b",
        "multiplier_b",
        "shift_b",
        "sign_b",
        "multiplier",
        "shift",
        "zero",
        "low",
        "high",
    ),
    "struct model_mul": ("zero_a", "zero_b", "multiplier", "shift", "zero", "low", "high"),
    "struct model_softmax": ("multiplier", "shift", "least"),
    "struct model_rescale": (
        "input_zero",
        "multiplier",
        "shift",
        "negative_multiplier",
        "negative_shift",
        "output_zero",
        "low",
        "high",
    ),
    "struct model_lstm": (
        "forget_multiplier",
        "forget_shift",
        "input_multiplier",
        "input_shift",
        "output_multiplier",
        "output_shift",
        "output_zero",
        "most",
        "tanh_multiplier",
        "tanh_shift",
    ),
    "struct model_svdf": (
        "feature_multiplier",
        "feature_shift",
        "state_zero",
        "multiplier",
        "shift",
        "zero",
    ),
}
"""Members of each struct of quantization constants. All members are int32_t."""
VALUE_RANGES = {
    "INT8": (-(1 << 7), (1 << 7) - 1),
    "INT16": (-(1 << 15), (1 << 15) - 1),
    "INT32": (-(1 << 31), (1 << 31) - 1),
}
"""Lowest and highest value of each type of activation."""
WIDE_TYPE = "INT16"
"""Type of activations whose kernels have names that end with WIDE_SUFFIX."""
WIDE_SUFFIX = "_16"
ELEMENT_BYTES = {"int8_t": 1, "int16_t": 2}
"""Size of an element of a field, for types of less than four bytes."""
FRAMEWORK_SUFFIXES = {
    "relu",
    "relu6",
    "biasadd",
    "matmul",
    "convolution",
    "conv2d",
    "conv1d",
    "depthwise",
    "maxpool2d",
    "avgpool2d",
    "add",
    "add_1",
    "squeeze",
    "maxpool",
    "avgpool",
    "maxpool1d",
    "expanddims",
}

GENERATED_NAME_PATTERN = re.compile(r"(stateful)?partitionedcall(_\d+)?|(arith|std|tfl)_\w*const\w*")
"""Names that a converter gives to the output of the whole model, and to unnamed constants."""


@dataclass(frozen=True)
class Field:
    """A member of a part's struct.

    Attributes:
        name: name of the member.
        ctype: "int8_t", "int16_t" or "int32_t" for an array, or one of STRUCTS.
        values: the elements of the array or struct.
    """

    name: str
    ctype: str
    values: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size of the field on the target, in bytes."""
        return len(self.values) * ELEMENT_BYTES.get(self.ctype, 4)


@dataclass(frozen=True)
class Layer:
    """A kernel's call.

    Attributes:
        name: C identifier of the layer.
        op: name of its operator.
        inputs: indices of the activations that it reads.
        output: index of the activation that it makes.
        kernels: names of the C templates that it needs.
        call: the C of the call, with {a}, {b} and {c} for the inputs, {out} for the output, {p} for the part
            and {scratch} for the scratch memory.
        fields: constants in the part's struct.
        shape_type: C type of the constant {name}_shape.
        shape: members and values of that constant.
        note: text for the comment in the generated C.
        macs: multiply-accumulates of one inference.
        scratch_bytes: size of the scratch memory in bytes.
        overwritable: inputs that the output may overwrite.
        lead_bytes: bytes by which the output must begin before the input, so that both may share memory. It
            is negative if the output may begin later. None if they may not share memory.
        smaller: the same layer with less scratch memory and more instructions. None if there is none.
    """

    name: str
    op: str
    inputs: tuple[int, ...]
    output: int
    kernels: tuple[str, ...]
    call: str
    fields: tuple[Field, ...] = ()
    shape_type: str = ""
    shape: tuple[tuple[str, tuple[int, ...]], ...] = ()
    note: str = ""
    macs: int = 0
    scratch_bytes: int = 0
    overwritable: tuple[int, ...] = field(default=())
    lead_bytes: int | None = None
    smaller: "Layer | None" = None


def make_identifier(network: QuantizedModel, operator: Operator) -> str:
    """Return a C identifier for an operator's layer.

    It is the name of the output without the framework's suffixes. The converter names the output of the whole
    model `PartitionedCall:0`. That layer is named after its weights, or after its operator.

    Returns:
        At most MAX_IDENTIFIER_LENGTH characters, plus the prefix `layer_` if the name starts with a digit.
    """
    constants = [
        network.get_tensor(i) for i in operator.inputs if i >= 0 and network.get_tensor(i).data is not None
    ]
    tensors = [network.get_tensor(operator.outputs[0]), *constants]
    names = (_clean_tensor_name(tensor) for tensor in tensors)
    name = next(filter(None, names), "") or operator.name.lower()
    return name if name[0].isalpha() else f"layer_{name}"


def _clean_tensor_name(tensor: TfliteTensor) -> str:
    """Return a tensor's name without the framework's suffixes. Empty for a generated name."""
    first = tensor.name.split(";")[0].split(":")[0]
    pieces = [re.sub(r"\W+", "_", piece, flags=re.ASCII).strip("_").lower() for piece in first.split("/")]
    names = [piece for piece in pieces if piece and not GENERATED_NAME_PATTERN.fullmatch(piece)]
    while len(names) > 1 and names[-1] in FRAMEWORK_SUFFIXES:
        names.pop()
    return "_".join(names[-3:])[:MAX_IDENTIFIER_LENGTH].strip("_")


def name_layer(network: QuantizedModel, operator: Operator) -> str:
    """Return the name of an operator's layer for errors.

    Returns:
        The name of the first output. "?" if the operator has no output.
    """
    return network.get_tensor(operator.outputs[0]).name if operator.outputs else "?"


def refuse(network: QuantizedModel, operator: Operator, why: str, remedy: str) -> ExportError:
    """Return the error for an operator that the generated C cannot compute.

    Args:
        why: the problem, as a predicate such as "has groups".
        remedy: what to do about it.
    """
    return ExportError(f"operator {operator.name} ({name_layer(network, operator)}) {why}; {remedy}")


def check_output_shape(
    network: QuantizedModel, operator: Operator, expected: Sequence[int], which: int = 0
) -> None:
    """Check that the stored shape of an output follows from the operator, except for axes of size 1.

    The C would read and write outside its buffers otherwise.

    Args:
        expected: shape that follows from the inputs and the options.
        which: number of the output, from 0.

    Raises:
        ExportError: the stored shape is another one.
    """
    stored = network.get_tensor(operator.outputs[which]).shape
    if [n for n in stored if n != 1] != [n for n in expected if n != 1]:
        raise refuse(
            network,
            operator,
            f"has an output of shape {stored}, expected {tuple(int(n) for n in expected)}",
            "the model is damaged; export it again",
        )


def make_unary_layer(
    operator: Operator, name: str, kernels: tuple[str, ...], call: str, fields: tuple[Field, ...]
) -> Layer:
    """Return the layer of an operator with one activation, which its output may overwrite.

    The other parameters are the attributes of `Layer`.
    """
    source = operator.inputs[0]
    return Layer(
        name=name,
        op=operator.name,
        inputs=(source,),
        output=operator.outputs[0],
        kernels=kernels,
        call=call,
        fields=fields,
        overwritable=(source,),
    )


def loop_over_batch(layer: Layer, source: TfliteTensor, output: TfliteTensor) -> Layer:
    """Return a layer whose kernel runs once for each element of the batch.

    Args:
        layer: layer whose kernel computes one element.
        source: its input.

    Raises:
        ValueError: the input and the output have different batches.
    """
    batch = source.shape[0]
    if batch != output.shape[0]:
        raise ValueError(f"a batch of {batch} gives a batch of {output.shape[0]}")
    if batch == 1:
        return layer
    call = layer.call.replace("{a}", f"{{a}} + i * {source.bytes // batch}")
    call = call.replace("{out}", f"{{out}} + i * {output.bytes // batch}")
    smaller = layer.smaller and loop_over_batch(layer.smaller, source, output)
    call = f"for (int32_t i = 0; i < {batch}; i++) {call}"
    return replace(layer, call=call, smaller=smaller, lead_bytes=None)


def round_half_away(value: float) -> int:
    """Round to an integer, a half away from zero, like C's round()."""
    return int(np.sign(value) * np.floor(abs(value) + 0.5))


def compute_activation_range(output: TfliteTensor, activation: int) -> tuple[int, int]:
    """Return the lowest and highest value of a fused activation in the output's quantization.

    Args:
        output: the output of the layer.
        activation: 0 for none, 1 for ReLU, 2 for ReLU-1, 3 for ReLU6.

    Raises:
        ExportError: another activation.
    """

    def quantize(real: float) -> int:
        return output.zero_point + round_half_away(float(np.float32(real) / output.scale[0]))

    least, most = VALUE_RANGES[output.dtype]
    if activation == 1:
        return max(least, quantize(0)), most
    if activation == 2:
        return max(least, quantize(-1)), min(most, quantize(1))
    if activation == 3:
        return max(least, quantize(0)), min(most, quantize(6))
    if activation == 0:
        return least, most
    raise ExportError(
        f"the fused activation {activation} of {output.name} has no integer form; use ReLU or ReLU6"
    )


def flatten_ints(values: object) -> tuple[int, ...]:
    """Return an array's elements as Python integers."""
    return tuple(int(v) for v in np.asarray(values).ravel())

"""Turns a network's operators into layers of the generated C, in the order of their run."""

from collections.abc import Callable, Mapping

from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import Operator
from firmware_export.codegen import (
    c_convolution,
    c_dense,
    c_elementwise,
    c_movement,
    c_recurrent,
    c_sixteen_bits,
)
from firmware_export.codegen.c_movement import RESHAPE_OPERATORS, TensorView
from firmware_export.codegen.c_padding import PAD_OPERATORS, PADDED_OPERATORS, find_padded_inputs
from firmware_export.codegen.layer import WIDE_TYPE, Layer, make_identifier
from firmware_export.codegen.lookup_tables import LOOKUP_OPERATORS
from firmware_export.codegen.mixture_structure import MixtureStructure
from firmware_export.tflite.quantized_model import QuantizedModel

Builder = Callable[[QuantizedModel, Operator, str], list[Layer]]
BUILDERS: Mapping[str, Builder] = {
    **dict.fromkeys(PADDED_OPERATORS, c_convolution.build_convolution),
    "FULLY_CONNECTED": c_dense.build_fully_connected,
    "MAX_POOL_2D": c_elementwise.build_pool,
    "AVERAGE_POOL_2D": c_elementwise.build_pool,
    "SOFTMAX": c_elementwise.build_softmax,
    **dict.fromkeys(LOOKUP_OPERATORS, c_elementwise.build_lookup),
    **dict.fromkeys(("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM"), c_elementwise.build_binary),
    "MEAN": c_elementwise.build_mean,
    **dict.fromkeys(c_movement.SLICE_OPERATORS, c_movement.build_slices),
    "TRANSPOSE": c_movement.build_transpose,
    c_movement.JOINED_OUTPUTS: c_movement.build_joined_outputs,
    **dict.fromkeys(("READ_VARIABLE", "ASSIGN_VARIABLE"), c_movement.build_variable_copy),
    **dict.fromkeys(("CONCATENATION", "PACK"), c_movement.build_concatenation),
    **dict.fromkeys(PAD_OPERATORS, c_movement.build_pad),
    "TRANSPOSE_CONV": c_convolution.build_transpose_conv,
    "PRELU": c_elementwise.build_prelu,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": c_recurrent.build_lstm,
    "SVDF": c_recurrent.build_svdf,
    "REDUCE_MAX": c_elementwise.build_reduce_max,
    "RESIZE_BILINEAR": c_elementwise.build_resize_bilinear,
    "RESIZE_NEAREST_NEIGHBOR": c_movement.build_resize_nearest,
    "BROADCAST_TO": c_movement.build_broadcast,
    **dict.fromkeys(("SPACE_TO_DEPTH", "DEPTH_TO_SPACE"), c_movement.build_space_to_depth),
    **dict.fromkeys(("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"), c_movement.build_space_to_batch),
}
SUPPORTED_OPERATORS = frozenset(BUILDERS) - {c_movement.JOINED_OUTPUTS} | frozenset(RESHAPE_OPERATORS)
MOVING_BUILDERS: Mapping[str, Builder] = {
    name: BUILDERS[name]
    for name in (
        *c_movement.SLICE_OPERATORS,
        *PAD_OPERATORS,
        "TRANSPOSE",
        "CONCATENATION",
        "PACK",
        "RESIZE_NEAREST_NEIGHBOR",
        "READ_VARIABLE",
        "ASSIGN_VARIABLE",
        c_movement.JOINED_OUTPUTS,
    )
}
"""Operators that move values of any size."""
WIDE_BUILDERS: Mapping[str, Builder] = {
    **MOVING_BUILDERS,
    **{
        name: BUILDERS[name]
        for name in (
            *PADDED_OPERATORS,
            "FULLY_CONNECTED",
            "MAX_POOL_2D",
            "AVERAGE_POOL_2D",
            "ADD",
            "SUB",
            "MUL",
            "MEAN",
        )
    },
    "SOFTMAX": c_sixteen_bits.build_softmax_16,
    **dict.fromkeys(("LOGISTIC", "TANH"), c_sixteen_bits.build_sigmoid),
    **dict.fromkeys(("RELU", "RELU6", "LEAKY_RELU", "QUANTIZE"), c_sixteen_bits.build_rescale),
}
"""Operators of 16-bit activations. TensorFlow Lite Micro has some more."""
MOVEMENT_OPERATORS = frozenset(MOVING_BUILDERS) - {c_movement.JOINED_OUTPUTS} | frozenset(RESHAPE_OPERATORS)
WIDE_OPERATORS = frozenset(WIDE_BUILDERS) - {c_movement.JOINED_OUTPUTS} | frozenset(RESHAPE_OPERATORS)


def _choose_builder(network: QuantizedModel, operator: Operator) -> Builder:
    """Return the function that builds the layers of an operator, by the types of its activations."""
    source, output = (network.get_tensor(i) for i in (operator.inputs[0], operator.outputs[0]))
    if operator.name == "QUANTIZE" and source.dtype != output.dtype:
        return c_sixteen_bits.build_rescale
    if output.dtype == WIDE_TYPE and source.dtype != "INT8":
        return WIDE_BUILDERS[operator.name]
    return BUILDERS[operator.name]


def build_layers(
    network: QuantizedModel, structure: MixtureStructure, views: Mapping[int, TensorView]
) -> list[tuple[str, Layer]]:
    """Return the part and the layer for each kernel call, in the order of their run.

    A MAX_POOL_2D is fused with the convolution before it if possible, and a PAD with the convolutions after
    it.

    Args:
        structure: the parts of the model.
        views: tensors that need no copy.

    Raises:
        ExportError: an operator lacks data that its kernel needs, or has options without a kernel.
    """
    pools = _find_fused_pools(network, structure)
    padded = find_padded_inputs(network)
    fused = {*pools.values(), *(value.pad for value in padded.values())}
    used_names: set[tuple[str, str]] = set()
    layers: list[tuple[str, Layer]] = []
    for i in structure.order:
        operator = network.operators[i]
        if i in fused or all(output in views for output in operator.outputs):
            continue
        part = structure.part_of[i]
        name = base = make_identifier(network, operator)
        number = 1
        while (part, name) in used_names:
            number += 1
            name = f"{base}_v{number}"
        used_names.add((part, name))
        try:
            if operator.name in PADDED_OPERATORS:
                pool = network.operators[pools[i]] if i in pools else None
                made = c_convolution.build_convolution(network, operator, name, pool, padded.get(i))
            else:
                made = _choose_builder(network, operator)(network, operator, name)
        except (ArithmeticError, LookupError, AttributeError, TypeError, ValueError) as error:
            raise ExportError(
                f"operator {operator.name} ({name}) lacks what its kernel needs: {error!r}; export the model "
                "again"
            ) from error
        layers += [(part, layer) for layer in made]
    return layers


def _find_fused_pools(network: QuantizedModel, structure: MixtureStructure) -> dict[int, int]:
    """Return the MAX_POOL_2D that can be fused with each full convolution.

    It must be the only reader of the convolution. Its windows must not overlap and must lie inside the input.
    """
    readers: dict[int, list[int]] = {}
    for i, operator in enumerate(network.operators):
        for index in operator.inputs:
            readers.setdefault(index, []).append(i)
    fused = {}
    for i, operator in enumerate(network.operators):
        output = operator.outputs[0]
        if (
            not c_convolution.is_full_convolution(network, operator)
            or output in network.outputs
            or len(readers.get(output, ())) != 1
        ):
            continue
        reader = readers[output][0]
        pool = network.operators[reader]
        if pool.name != "MAX_POOL_2D" or structure.part_of[i] != structure.part_of[reader]:
            continue
        options = pool.options
        size = network.get_tensor(output).shape
        out = network.get_tensor(pool.outputs[0]).shape
        window = (options["filterHeight"], options["filterWidth"])
        stride = (options["strideH"], options["strideW"])
        inside = all(out[axis + 1] * window[axis] <= size[axis + 1] for axis in (0, 1))
        if window == stride and inside and window[0] * window[1] in c_convolution.POOLED_PIXELS:
            fused[i] = reader
    return fused

"""A network's operators as layers of the generated C, in the order of their run."""

from collections.abc import Callable, Mapping

from edgefl.errors import ExportError
from edgefl.plan.tflite import Operator
from firmware_export.codegen import c_convolution, c_dense, c_elementwise, c_movement
from firmware_export.codegen.c_movement import SAME_ELEMENTS, View
from firmware_export.codegen.layer import Layer, name_of
from firmware_export.codegen.mixture_structure import Structure
from firmware_export.tflite.quantized_model import QuantizedModel

Builder = Callable[[QuantizedModel, Operator, str], list[Layer]]
BUILDERS: Mapping[str, Builder] = {
    "CONV_2D": c_convolution.conv_2d,
    "DEPTHWISE_CONV_2D": c_convolution.depthwise_conv_2d,
    "FULLY_CONNECTED": c_dense.fully_connected,
    "MAX_POOL_2D": c_elementwise.pool,
    "AVERAGE_POOL_2D": c_elementwise.pool,
    "SOFTMAX": c_elementwise.softmax,
    **dict.fromkeys(
        ("LOGISTIC", "TANH", "RSQRT", "LEAKY_RELU", "RELU", "RELU6", "QUANTIZE"), c_elementwise.lookup
    ),
    **dict.fromkeys(("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM"), c_elementwise.binary),
    "MEAN": c_elementwise.mean,
    **dict.fromkeys(c_movement.SLICES, c_movement.slices),
    "TRANSPOSE": c_movement.transpose,
    "CONCATENATION": c_movement.concatenation,
    **dict.fromkeys(("PAD", "PADV2"), c_movement.pad),
}
SUPPORTED = frozenset(BUILDERS) | frozenset(SAME_ELEMENTS)


def layers_of(
    network: QuantizedModel, structure: Structure, views: Mapping[int, View]
) -> list[tuple[str, Layer]]:
    """Return (part, layer) in order; a MAX_POOL_2D that can is made one with the CONV_2D before it."""
    pools = _fused(network, structure)
    taken: set[tuple[str, str]] = set()
    layers: list[tuple[str, Layer]] = []
    for i in structure.order:
        operator = network.operators[i]
        if i in pools.values() or all(output in views for output in operator.outputs):
            continue
        part = structure.part_of[i]
        name = base = name_of(network, operator)
        number = 1
        while (part, name) in taken:
            number += 1
            name = f"{base}_v{number}"
        taken.add((part, name))
        try:
            if i in pools:
                made = c_convolution.conv_2d(network, operator, name, network.operators[pools[i]])
            else:
                made = BUILDERS[operator.name](network, operator, name)
        except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
            raise ExportError(
                f"operator {operator.name} ({name}) lacks what its kernel needs: {error!r}; export the model "
                "again"
            ) from error
        layers += [(part, layer) for layer in made]
    return layers


def _fused(network: QuantizedModel, structure: Structure) -> dict[int, int]:
    """Return the MAX_POOL_2D of each CONV_2D that it alone reads, where its windows lie side by side and
    inside.
    """
    readers: dict[int, list[int]] = {}
    for i, operator in enumerate(network.operators):
        for index in operator.inputs:
            readers.setdefault(index, []).append(i)
    found = {}
    for i, operator in enumerate(network.operators):
        output = operator.outputs[0]
        if operator.name != "CONV_2D" or output in network.outputs or len(readers.get(output, ())) != 1:
            continue
        reader = readers[output][0]
        pool = network.operators[reader]
        if pool.name != "MAX_POOL_2D" or structure.part_of[i] != structure.part_of[reader]:
            continue
        options = pool.options
        size = network.tensor(output).shape
        out = network.tensor(pool.outputs[0]).shape
        window = (options["filterHeight"], options["filterWidth"])
        stride = (options["strideH"], options["strideW"])
        inside = all(out[axis + 1] * window[axis] <= size[axis + 1] for axis in (0, 1))
        if window == stride and inside and window[0] * window[1] in (2, c_convolution.TOGETHER):
            found[i] = reader
    return found

"""Builds dense layers.

A large kernel with few values is stored as a table of values and an index of three or four bits per weight.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.program.plan.tflite import Operator
from firmware_export.codegen.c_convolution import has_wide_sums, make_channel_fields
from firmware_export.codegen.layer import WIDE_TYPE, Field, Layer, flatten_ints, refuse
from firmware_export.quantize.dense_weights import INDEX_BITS, MIN_KERNEL_WEIGHTS
from firmware_export.tflite.quantized_model import QuantizedModel

MAX_UNPACKED_WEIGHTS = 256
"""Weights of a row that are unpacked at a time, MODEL_WIDE in the C.

The scratch memory holds four such rows, and eight bytes that unpacking may write beyond them.
"""


def build_fully_connected(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a FULLY_CONNECTED, whose weights have shape (outputs, inputs), int8.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the weights are shuffled, or as in `make_channel_fields`.
    """
    source, kernel = (network.get_tensor(i) for i in operator.inputs[:2])
    output = network.get_tensor(operator.outputs[0])
    if operator.options.get("weightsFormat", 0):
        raise refuse(network, operator, "has shuffled weights", "export the model again")
    outputs, inputs = kernel.shape
    fields = make_channel_fields(network, operator, name, kernel.data, folded=True)
    part = ", ".join(f"{{p}}->{name}_{width}" for width in ("bias", "multiplier", "shift"))
    call = f"{source.size // inputs}, {inputs}, {outputs}, &{{p}}->{name}_range, {part}"
    stored = kernel.data
    values = np.unique(stored)
    kernels = ("dsp", "limit", "products", "fully_connected")
    scratch_bytes = 0
    note = ""
    bits = (
        next((width for width in INDEX_BITS if len(values) <= 1 << width), 0)
        if stored.size >= MIN_KERNEL_WEIGHTS and source.dtype != WIDE_TYPE
        else 0
    )
    if bits:
        fields = (
            *fields,
            Field(
                f"{name}_values",
                "int8_t",
                flatten_ints(np.pad(values, (0, (1 << bits) - len(values)), "edge")),
            ),
        )
        stored = pack_indices(np.searchsorted(values, stored), bits)
        call = f"fully_connected_narrow({bits}, {{p}}->{name}_values, {{scratch}}, {call}"
        kernels = ("dsp", "limit", "products", "fully_connected_narrow")
        scratch_bytes = 4 * min(inputs, MAX_UNPACKED_WEIGHTS) + 8
        note = f"weights of {bits} bits"
    elif source.dtype == WIDE_TYPE:
        call = f"fully_connected_16({int(has_wide_sums(network, operator))}, {call}"
        kernels = ("sixteen_bits", "products_16", "output_16", "fully_connected_16")
    else:
        call = f"fully_connected({call}"
    return [
        Layer(
            name=name,
            op=operator.name,
            inputs=(source.index,),
            output=output.index,
            kernels=kernels,
            call=f"{call}, {{p}}->{name}_weights, {{a}}, {{out}});",
            fields=(*fields, Field(f"{name}_weights", "int8_t", flatten_ints(stored))),
            macs=output.size * inputs,
            scratch_bytes=scratch_bytes,
            note=note,
        )
    ]


def pack_indices(codes: NDArray[np.int64], bits: int) -> NDArray[np.int8]:
    """Pack indices densely into bytes.

    Eight indices take `bits` bytes, with the first index in the lowest bits. A row is padded to a multiple of
    eight indices.

    Args:
        codes: indices below 2^bits, shape (rows, n), int64.
        bits: bits of an index.

    Returns:
        Packed indices, shape (rows, bytes), int8.
    """
    filled = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 8))).reshape(len(codes), -1, 8)
    groups = (filled.astype(np.uint32) << (bits * np.arange(8, dtype=np.uint32))).sum(axis=-1).astype("<u4")
    made: NDArray[np.int8] = groups[..., None].view(np.int8)[..., :bits].reshape(len(codes), -1)
    return made

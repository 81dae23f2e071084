"""Finds what an int8 export cannot compute in a template, before a federation trains the model."""

from edgefl.program.plan.tflite import read_subgraph

INT8_OPERATORS = frozenset(
    (
        *("ADD", "AVERAGE_POOL_2D", "BROADCAST_TO", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DIV"),
        *("FULLY_CONNECTED", "GATHER", "GATHER_ND", "GELU", "HARD_SWISH", "LOGISTIC", "MAXIMUM"),
        *("MAX_POOL_2D", "MEAN", "MIRROR_PAD", "MUL", "PACK", "PAD", "PADV2", "REDUCE_MIN", "RELU"),
        *("RESHAPE", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "RSQRT", "SLICE", "SOFTMAX"),
        *("SPACE_TO_DEPTH", "SPLIT", "SQRT", "SQUARED_DIFFERENCE", "STRIDED_SLICE", "SUB", "TANH"),
        *("TRANSPOSE", "UNPACK"),
    )
)
"""Operators of which a device makes an int8 form. An operator with an output that nothing reads has none."""
FLOAT = "FLOAT32"
MAX_LISTED = 3


def list_float_operators(template: bytes) -> tuple[tuple[str, str], ...]:
    """Return the operators without an int8 form, each with the first part of its name, which is a layer.

    Args:
        template: a float `.tflite`, such as the template of a plan.

    Raises:
        ModelFileError: the template is damaged.
    """
    graph = read_subgraph(template)
    used = {index for operator in graph.operators for index in operator.inputs} | set(graph.outputs)
    refused = {
        (operator.name, graph.tensors[operator.outputs[0]].name.split(";")[0].split("/")[0]): None
        for operator in graph.operators
        if any(graph.tensors[i].dtype == FLOAT for i in (*operator.inputs, *operator.outputs) if i >= 0)
        and (operator.name not in INT8_OPERATORS or not used.issuperset(operator.outputs))
    }
    return tuple(refused)


def describe_missing_int8(template: bytes) -> str:
    """Return a warning about operators without an int8 form, or "" if a device can export the model.

    Args:
        template: the template of a plan, which may be empty.

    Raises:
        ModelFileError: the template is damaged.
    """
    refused = list_float_operators(template) if template else ()
    if not refused:
        return ""
    named = ", ".join(f"{operator} in layer {layer}" for operator, layer in refused[:MAX_LISTED])
    others = f" and {len(refused) - MAX_LISTED} others" if len(refused) > MAX_LISTED else ""
    return (
        f"devices can train this model, but `edgefl export` will refuse it: {named}{others} cannot be "
        "computed in int8; replace it before the federation starts, for example by ReLU"
    )

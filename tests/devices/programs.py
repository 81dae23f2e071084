"""TFLite programs made by hand, without TensorFlow: one that changes nothing, and one that crashes the
runtime.
"""

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from edgefl.plan.tflite import pack_model

TYPES = {"float32": schema.TensorType.FLOAT32, "int32": schema.TensorType.INT32}
IF = 118
ADD = 0
REDUCE_MAX = 82
HUGE = 2**14


def program(spec, *, crashes=False, huge=False):
    """Return a program with the signatures of a spec. `t_i` and `s_i` come back as they went in; loss is the
    first `d_sample_weight`.

    crashes: each signature begins with an IF whose branch is a graph with an IF whose branch is that same
    graph: LiteRT prepares them without an end, and the stack overflows. huge: each has a tensor of 1 GiB.
    """
    model = schema.ModelT()
    model.version = 3
    model.buffers = [schema.BufferT()]
    model.subgraphs = []
    model.signatureDefs = []
    model.operatorCodes = []
    for number in (IF, ADD, REDUCE_MAX):
        code = schema.OperatorCodeT()
        code.builtinCode = number
        code.deprecatedBuiltinCode = number
        code.version = 1
        model.operatorCodes.append(code)
    for signature in spec.signatures:
        _signature(model, signature, len(spec.signatures), crashes, huge)
    if crashes:
        branch = _graph(model, "branch")
        flag = _tensor(branch, "flag", (1,), schema.TensorType.BOOL)
        out = _tensor(branch, "out", (1,), schema.TensorType.BOOL)
        branch.inputs = [flag]
        branch.outputs = [out]
        branch.operators = [_if(flag, out, len(spec.signatures))]
    return pack_model(model, 1024)


def _graph(model, name):
    graph = schema.SubGraphT()
    graph.name = name
    graph.tensors = []
    graph.operators = []
    model.subgraphs.append(graph)
    return graph


def _tensor(graph, name, shape, kind, buffer=0):
    tensor = schema.TensorT()
    tensor.name = name
    tensor.shape = list(shape)
    tensor.type = kind
    tensor.buffer = buffer
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def _constant(model, graph, name, values):
    buffer = schema.BufferT()
    buffer.data = list(values.tobytes())
    model.buffers.append(buffer)
    return _tensor(graph, name, values.shape, TYPES[str(values.dtype)], len(model.buffers) - 1)


def _operator(code, inputs, outputs, kind=0, options=None):
    operator = schema.OperatorT()
    operator.opcodeIndex = code
    operator.inputs = inputs
    operator.outputs = outputs
    operator.builtinOptionsType = kind
    operator.builtinOptions = options
    return operator


def _add(inputs, output):
    return _operator(1, inputs, [output], schema.BuiltinOptions.AddOptions, schema.AddOptionsT())


def _if(flag, out, branch):
    options = schema.IfOptionsT()
    options.thenSubgraphIndex = options.elseSubgraphIndex = branch
    return _operator(0, [flag, flag], [out], schema.BuiltinOptions.IfOptions, options)


def _signature(model, signature, branch, crashes, huge):
    graph = _graph(model, signature.name)
    inputs = {}
    outputs = {}
    float32 = TYPES["float32"]
    for spec in signature.data:
        inputs[f"d_{spec.name}"] = _tensor(graph, f"d_{spec.name}", spec.shape, TYPES[spec.dtype])
    for letter, specs in (
        ("t", signature.trained),
        ("f", signature.frozen),
        ("s", signature.slots),
        ("n", signature.noise),
    ):
        for i, spec in enumerate(specs):
            inputs[f"{letter}_{i}"] = _tensor(graph, f"{letter}_{i}", spec.shape, TYPES[spec.dtype])
    for name in signature.hyper:
        inputs[f"h_{name}"] = _tensor(graph, f"h_{name}", (), float32)
    zero = _constant(model, graph, "zero", np.zeros((), np.float32))
    if crashes:
        flag = _tensor(graph, "flag", (1,), schema.TensorType.BOOL)
        out = _tensor(graph, "out", (1,), schema.TensorType.BOOL)
        graph.operators.append(_if(flag, out, branch))
        inputs["flag"] = flag
    if signature.kind == "train":
        inputs["d_y"] = _tensor(graph, "d_y", (signature.batch_size,), TYPES["int32"])
        inputs["d_sample_weight"] = _tensor(graph, "d_sample_weight", (signature.batch_size,), float32)
        outputs["loss"] = _tensor(graph, "loss", (), float32)
        options = schema.ReducerOptionsT()
        options.keepDims = False
        most = inputs["d_sample_weight"]
        axes = _constant(model, graph, "axes", np.array([0], np.int32))
        if huge:
            column = _constant(model, graph, "column", np.zeros((HUGE, 1), np.float32))
            most = _tensor(graph, "big", (HUGE, HUGE), float32)
            row = _constant(model, graph, "row", np.zeros((1, HUGE), np.float32))
            graph.operators.append(_add([column, row], most))
            axes = _constant(model, graph, "both_axes", np.array([0, 1], np.int32))
        graph.operators.append(
            _operator(2, [most, axes], [outputs["loss"]], schema.BuiltinOptions.ReducerOptions, options)
        )
        for name in [name for name in inputs if name[:2] in ("t_", "s_")]:
            outputs[name] = _tensor(graph, f"new_{name}", graph.tensors[inputs[name]].shape, float32)
            graph.operators.append(_add([inputs[name], zero], outputs[name]))
    else:
        outputs["out"] = _constant(model, graph, "out_value", np.zeros(signature.out.shape, np.float32))
    graph.inputs = list(inputs.values())
    graph.outputs = list(outputs.values())
    definition = schema.SignatureDefT()
    definition.signatureKey = signature.name
    definition.subgraphIndex = model.subgraphs.index(graph)
    definition.inputs, definition.outputs = (_map(each) for each in (inputs, outputs))
    model.signatureDefs.append(definition)


def _map(named):
    maps = []
    for name, index in named.items():
        each = schema.TensorMapT()
        each.name = name
        each.tensorIndex = index
        maps.append(each)
    return maps

"""TFLite programs built without TensorFlow: one returns its inputs unchanged, one crashes the runtime."""

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from edgefl.program.plan.tflite import pack_model

TYPES = {"float32": schema.TensorType.FLOAT32, "int32": schema.TensorType.INT32}
IF = 118
ADD = 0
REDUCE_MAX = 82
HUGE = 2**14


def make_program(spec, *, crashes=False, huge=False):
    """Return a program with the signatures of a spec. It returns `t_i` and `s_i` unchanged. The loss is the
    first `d_sample_weight`.

    crashes: Each signature begins with an IF whose branch is a graph with an IF that branches to itself.
    LiteRT prepares these graphs without end, and the stack overflows. huge: Each signature has a tensor of 1
    GiB.
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
        _add_signature(model, signature, len(spec.signatures), crashes, huge)
    if crashes:
        branch = _add_graph(model, "branch")
        flag = _add_tensor(branch, "flag", (1,), schema.TensorType.BOOL)
        out = _add_tensor(branch, "out", (1,), schema.TensorType.BOOL)
        branch.inputs = [flag]
        branch.outputs = [out]
        branch.operators = [_make_if(flag, out, len(spec.signatures))]
    return pack_model(model, 1024)


def _add_graph(model, name):
    graph = schema.SubGraphT()
    graph.name = name
    graph.tensors = []
    graph.operators = []
    model.subgraphs.append(graph)
    return graph


def _add_tensor(graph, name, shape, kind, buffer=0):
    tensor = schema.TensorT()
    tensor.name = name
    tensor.shape = list(shape)
    tensor.type = kind
    tensor.buffer = buffer
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def _add_constant(model, graph, name, values):
    buffer = schema.BufferT()
    buffer.data = list(values.tobytes())
    model.buffers.append(buffer)
    return _add_tensor(graph, name, values.shape, TYPES[str(values.dtype)], len(model.buffers) - 1)


def _make_operator(code, inputs, outputs, kind=0, options=None):
    operator = schema.OperatorT()
    operator.opcodeIndex = code
    operator.inputs = inputs
    operator.outputs = outputs
    operator.builtinOptionsType = kind
    operator.builtinOptions = options
    return operator


def _make_add(inputs, output):
    return _make_operator(1, inputs, [output], schema.BuiltinOptions.AddOptions, schema.AddOptionsT())


def _make_if(flag, out, branch):
    options = schema.IfOptionsT()
    options.thenSubgraphIndex = options.elseSubgraphIndex = branch
    return _make_operator(0, [flag, flag], [out], schema.BuiltinOptions.IfOptions, options)


def _add_signature(model, signature, branch, crashes, huge):
    graph = _add_graph(model, signature.name)
    inputs = {}
    outputs = {}
    float32 = TYPES["float32"]
    for spec in signature.data:
        inputs[f"d_{spec.name}"] = _add_tensor(graph, f"d_{spec.name}", spec.shape, TYPES[spec.dtype])
    for letter, specs in (
        ("t", signature.trained),
        ("f", signature.frozen),
        ("s", signature.slots),
        ("n", signature.noise),
    ):
        for i, spec in enumerate(specs):
            inputs[f"{letter}_{i}"] = _add_tensor(graph, f"{letter}_{i}", spec.shape, TYPES[spec.dtype])
    for name in signature.hyper:
        inputs[f"h_{name}"] = _add_tensor(graph, f"h_{name}", (), float32)
    zero = _add_constant(model, graph, "zero", np.zeros((), np.float32))
    if crashes:
        flag = _add_tensor(graph, "flag", (1,), schema.TensorType.BOOL)
        out = _add_tensor(graph, "out", (1,), schema.TensorType.BOOL)
        graph.operators.append(_make_if(flag, out, branch))
        inputs["flag"] = flag
    if signature.kind == "train":
        inputs["d_y"] = _add_tensor(graph, "d_y", (signature.batch_size,), TYPES["int32"])
        inputs["d_sample_weight"] = _add_tensor(graph, "d_sample_weight", (signature.batch_size,), float32)
        outputs["loss"] = _add_tensor(graph, "loss", (), float32)
        options = schema.ReducerOptionsT()
        options.keepDims = False
        weights = inputs["d_sample_weight"]
        axes = _add_constant(model, graph, "axes", np.array([0], np.int32))
        if huge:
            column = _add_constant(model, graph, "column", np.zeros((HUGE, 1), np.float32))
            weights = _add_tensor(graph, "big", (HUGE, HUGE), float32)
            row = _add_constant(model, graph, "row", np.zeros((1, HUGE), np.float32))
            graph.operators.append(_make_add([column, row], weights))
            axes = _add_constant(model, graph, "both_axes", np.array([0, 1], np.int32))
        graph.operators.append(
            _make_operator(
                2, [weights, axes], [outputs["loss"]], schema.BuiltinOptions.ReducerOptions, options
            )
        )
        for name in [name for name in inputs if name[:2] in ("t_", "s_")]:
            outputs[name] = _add_tensor(graph, f"new_{name}", graph.tensors[inputs[name]].shape, float32)
            graph.operators.append(_make_add([inputs[name], zero], outputs[name]))
    else:
        outputs["out"] = _add_constant(model, graph, "out_value", np.zeros(signature.out.shape, np.float32))
    graph.inputs = list(inputs.values())
    graph.outputs = list(outputs.values())
    definition = schema.SignatureDefT()
    definition.signatureKey = signature.name
    definition.subgraphIndex = model.subgraphs.index(graph)
    definition.inputs, definition.outputs = map(_make_tensor_maps, (inputs, outputs))
    model.signatureDefs.append(definition)


def _make_tensor_maps(named):
    maps = []
    for name, index in named.items():
        entry = schema.TensorMapT()
        entry.name = name
        entry.tensorIndex = index
        maps.append(entry)
    return maps

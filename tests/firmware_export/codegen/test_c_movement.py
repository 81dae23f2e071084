"""Views without copies, copies between layouts, and handwritten mixtures, compared with tflite-micro."""

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.codegen.c_source import generate_c
from firmware_export.codegen.mixture_structure import find_parts
from firmware_export.tflite.quantized_model import read_quantized_model

pytest.importorskip("tflite_micro")
Q = (0.1, 3)


def make_int32(*values):
    return np.array(values, np.int32)


def check_against_micro(compiled, tmp_path, model, shape, compute=None):
    source = generate_c(model)
    x = np.random.default_rng(0).integers(-128, 128, (20, *shape)).astype(np.int8)
    oracle = compiled.run_micro(model, x)
    received, _ = compiled.run(
        compiled.build(source, tmp_path, "-fsanitize=address,undefined"), x, oracle.shape[1]
    )
    np.testing.assert_array_equal(received, oracle)
    if compute is not None:
        np.testing.assert_array_equal(received, compute(x))
    return source


@pytest.mark.parametrize(
    ("begin", "size", "copies"),
    [((0, 2, 0), (1, 2, 4), False), ((0, 0, 1), (1, 5, 2), True), ((0, 1, 1), (1, 3, 2), True)],
)
def test_slices_match_tflite_micro(compiled, graphs, tmp_path, begin, size, copies) -> None:
    end = [b + s for b, s in zip(begin, size, strict=True)]
    tensors = [
        graphs.T((1, 5, 4), *Q),
        graphs.T((1, 5, 4), *Q),
        graphs.T((3,), data=make_int32(*begin)),
        graphs.T((3,), data=make_int32(*end)),
        graphs.T((3,), data=make_int32(1, 1, 1)),
        graphs.T(size, *Q),
        graphs.T(size, *Q),
    ]
    masks = {"beginMask": 0, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0}
    operators = [
        graphs.Op("RELU", (0,), (1,)),
        graphs.Op("STRIDED_SLICE", (1, 2, 3, 4), (5,), masks, "StridedSlice"),
        graphs.Op("RELU", (5,), (6,)),
    ]
    source = check_against_micro(compiled, tmp_path, graphs.make_tflite(tensors, operators), (5, 4))
    assert ("STRIDED_SLICE" in {layer.op for layer in source.layers}) == copies


@pytest.mark.parametrize(("axis", "copies"), [(1, False), (2, True)])
def test_split_and_concatenation_match_tflite_micro(compiled, graphs, tmp_path, axis, copies) -> None:
    half = (1, 2, 6) if axis == 1 else (1, 4, 3)
    tensors = [
        graphs.T((1, 4, 6), *Q),
        graphs.T((1, 4, 6), *Q),
        graphs.T((), data=np.array(axis, np.int32)),
        graphs.T(half, *Q),
        graphs.T(half, *Q),
        graphs.T((1, 4, 6), *Q),
    ]
    operators = [
        graphs.Op("RELU", (0,), (1,)),
        graphs.Op("SPLIT", (2, 1), (3, 4), {"numSplits": 2}, "Split"),
        graphs.Op("CONCATENATION", (4, 3), (5,), {"axis": axis}, "Concatenation"),
    ]
    source = check_against_micro(compiled, tmp_path, graphs.make_tflite(tensors, operators), (4, 6))
    assert ("SPLIT" in {layer.op for layer in source.layers}) == copies


def test_pad_and_transpose_match_tflite_micro(compiled, graphs, tmp_path) -> None:
    tensors = [
        graphs.T((1, 3, 4, 2), *Q),
        graphs.T((4, 2), data=make_int32(0, 0, 1, 2, 0, 1, 0, 0).reshape(4, 2)),
        graphs.T((1, 6, 5, 2), *Q),
        graphs.T((4,), data=make_int32(0, 3, 1, 2)),
        graphs.T((1, 2, 6, 5), *Q),
    ]
    operators = [
        graphs.Op("PAD", (0, 1), (2,), {}, "Pad"),
        graphs.Op("TRANSPOSE", (2, 3), (4,), {}, "Transpose"),
    ]

    def compute(x):
        padded = np.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0)), constant_values=3)
        return padded.transpose(0, 3, 1, 2).reshape(len(x), -1)

    check_against_micro(compiled, tmp_path, graphs.make_tflite(tensors, operators), (3, 4, 2), compute)


@pytest.mark.parametrize("kind", ["MAXIMUM", "MINIMUM"])
def test_maximum_and_minimum_match_tflite_micro(compiled, graphs, tmp_path, kind) -> None:
    tensors = [
        graphs.T((1, 3, 4), *Q),
        graphs.T((4,), *Q, np.array([-5, 0, 90, 3], np.int8)),
        graphs.T((1, 3, 4), *Q),
    ]
    model = graphs.make_tflite(tensors, [graphs.Op(kind, (0, 1), (2,), {}, "MaximumMinimum")])
    check_against_micro(compiled, tmp_path, model, (3, 4))


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_unpack_and_pack_match_tflite_micro(compiled, graphs, tmp_path, axis) -> None:
    """The four slices of an axis are stacked in another order."""
    shape = (1, 4, 4, 4)
    tensors = [graphs.T(shape, *Q), graphs.T(shape, *Q), *[graphs.T((1, 4, 4), *Q)] * 4, graphs.T(shape, *Q)]
    operators = [
        graphs.Op("RELU", (0,), (1,)),
        graphs.Op("UNPACK", (1,), (2, 3, 4, 5), {"num": 4, "axis": axis}, "Unpack"),
        graphs.Op("PACK", (3, 2, 5, 4), (6,), {"valuesCount": 4, "axis": axis}, "Pack"),
    ]

    def compute(x):
        return np.maximum(x, 3).take([1, 0, 3, 2], axis=axis).reshape(len(x), -1)

    check_against_micro(compiled, tmp_path, graphs.make_tflite(tensors, operators), shape[1:], compute)


def test_split_into_unequal_sizes_matches_tflite_micro(compiled, graphs, tmp_path) -> None:
    tensors = [
        graphs.T((1, 3, 6), *Q),
        graphs.T((3,), data=make_int32(1, 3, 2)),
        graphs.T((), data=np.array(2, np.int32)),
        *(graphs.T((1, 3, n), *Q) for n in (1, 3, 2)),
        graphs.T((1, 3, 6), *Q),
    ]
    operators = [
        graphs.Op("SPLIT_V", (0, 1, 2), (3, 4, 5), {"numSplits": 3}, "SplitV"),
        graphs.Op("CONCATENATION", (5, 3, 4), (6,), {"axis": 2}, "Concatenation"),
    ]

    def compute(x):
        return x[..., [4, 5, 0, 1, 2, 3]].reshape(len(x), -1)

    check_against_micro(compiled, tmp_path, graphs.make_tflite(tensors, operators), (3, 6), compute)


@pytest.mark.parametrize(
    ("shape", "out"),
    [
        ((1, 3, 1, 4), (1, 3, 5, 4)),
        ((1, 3, 1), (1, 3, 6)),
        ((1, 4), (1, 3, 4)),
        ((1, 2, 1, 3, 1), (1, 2, 2, 3, 2)),
    ],
)
def test_broadcast_matches_tflite_micro(compiled, graphs, tmp_path, shape, out) -> None:
    tensors = [graphs.T(shape, *Q), graphs.T((len(out),), data=make_int32(*out)), graphs.T(out, *Q)]
    operator = graphs.Op("BROADCAST_TO", (0, 1), (2,), {}, "BroadcastTo", version=3)

    def compute(x):
        aligned = x.reshape(len(x), *(1,) * (len(out) - len(shape)), *shape[1:])
        return np.broadcast_to(aligned, (len(x), *out[1:])).reshape(len(x), -1)

    check_against_micro(compiled, tmp_path, graphs.make_tflite(tensors, [operator]), shape[1:], compute)


@pytest.mark.parametrize("options", [{}, {"halfPixelCenters": True}])
def test_resize_to_nearest_neighbour_matches_tflite_micro(compiled, graphs, tmp_path, options) -> None:
    tensors = [
        graphs.T((1, 3, 4, 2), *Q),
        graphs.T((2,), data=make_int32(6, 12)),
        graphs.T((1, 6, 12, 2), *Q),
    ]
    operator = graphs.Op("RESIZE_NEAREST_NEIGHBOR", (0, 1), (2,), options, "ResizeNearestNeighbor", version=2)

    def compute(x):
        return x.repeat(2, axis=1).repeat(3, axis=2).reshape(len(x), -1)

    check_against_micro(compiled, tmp_path, graphs.make_tflite(tensors, [operator]), (3, 4, 2), compute)


@pytest.mark.parametrize(("out", "options"), [((5, 8), {}), ((6, 8), {"alignCorners": True})])
def test_resize_by_a_broken_factor_is_refused(graphs, out, options) -> None:
    tensors = [
        graphs.T((1, 3, 4, 2), *Q),
        graphs.T((2,), data=make_int32(*out)),
        graphs.T((1, *out, 2), *Q, name="up/resize"),
    ]
    operator = graphs.Op("RESIZE_NEAREST_NEIGHBOR", (0, 1), (2,), options, "ResizeNearestNeighbor", version=2)
    with pytest.raises(ExportError, match=r"\(up/resize\) resizes .* resize by a whole factor"):
        generate_c(graphs.make_tflite(tensors, [operator]))


def test_space_to_depth_and_back_match_tflite_micro(compiled, graphs, tmp_path) -> None:
    tensors = [graphs.T((1, 4, 6, 3), *Q), graphs.T((1, 2, 3, 12), *Q), graphs.T((1, 6, 9, 1), *Q)]
    tensors[2] = graphs.T((1, 4, 6, 3), *Q)
    operators = [
        graphs.Op("SPACE_TO_DEPTH", (0,), (1,), {"blockSize": 2}, "SpaceToDepth"),
        graphs.Op("DEPTH_TO_SPACE", (1,), (2,), {"blockSize": 2}, "DepthToSpace"),
    ]

    def stack_blocks(x):
        return x.reshape(-1, 2, 2, 3, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(len(x), -1)

    only = graphs.make_tflite(tensors[:2], operators[:1])
    check_against_micro(compiled, tmp_path / "deep", only, (4, 6, 3), stack_blocks)
    both = graphs.make_tflite(tensors, operators)
    check_against_micro(compiled, tmp_path, both, (4, 6, 3), lambda x: x.reshape(len(x), -1))


@pytest.mark.parametrize("crops", [((0, 0), (0, 0)), ((1, 1), (2, 1)), ((3, 1), (0, 0))])
def test_space_to_batch_around_a_convolution_matches_tflite_micro(compiled, graphs, tmp_path, crops) -> None:
    """A converter writes a dilated convolution like this if the batch is dynamic."""
    rng = np.random.default_rng(1)
    out = (1, 6 - sum(crops[0]), 9 - sum(crops[1]), 5)
    tensors = [
        graphs.T((1, 6, 9, 2), *Q),
        graphs.T((2,), data=make_int32(2, 3)),
        graphs.T((2, 2), data=np.zeros((2, 2), np.int32)),
        graphs.T((6, 3, 3, 2), *Q),
        graphs.T((5, 3, 3, 2), 0.01, 0, rng.integers(-128, 128, (5, 3, 3, 2)).astype(np.int8)),
        graphs.T((5,), [0.001] * 5, 0, make_int32(5, 100, -300, 2, 7)),
        graphs.T((6, 3, 3, 5), 0.5, 4),
        graphs.T((2, 2), data=np.array(crops, np.int32)),
        graphs.T(out, 0.5, 4),
    ]
    geometry = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    operators = [
        graphs.Op("SPACE_TO_BATCH_ND", (0, 1, 2), (3,), {}, "SpaceToBatchND", version=2),
        graphs.Op("CONV_2D", (3, 4, 5), (6,), geometry, "Conv2D"),
        graphs.Op("BATCH_TO_SPACE_ND", (6, 1, 7), (8,), {}, "BatchToSpaceND", version=2),
    ]
    check_against_micro(compiled, tmp_path, graphs.make_tflite(tensors, operators), (6, 9, 2))


@pytest.mark.parametrize("kind", ["DEPTHWISE_CONV_2D", "MAX_POOL_2D", "CONV_2D"])
def test_batch_inside_of_a_model_matches_tflite_micro(compiled, graphs, tmp_path, kind) -> None:
    """TimeDistributed layers make such a batch from the steps of a sequence."""
    weights = np.random.default_rng(2).integers(-128, 128, (2, 3, 3, 2)).astype(np.int8)
    kernel = weights[:1] if kind == "DEPTHWISE_CONV_2D" else weights
    tensors = [
        graphs.T((1, 3, 4, 6, 2), *Q),
        graphs.T((4,), data=make_int32(3, 4, 6, 2)),
        graphs.T((3, 4, 6, 2), *Q),
        graphs.T(kernel.shape, 0.01, 0, kernel, 3 if kind == "DEPTHWISE_CONV_2D" else 0),
        graphs.T((2,), [0.001] * 2, 0, make_int32(100, -50)),
        graphs.T((3, 2, 3, 2), *Q),
        graphs.T((2,), data=make_int32(1, 36)),
        graphs.T((1, 36), *Q),
    ]
    stride = {"padding": 0, "strideH": 2, "strideW": 2}
    dilation = {"dilationHFactor": 1, "dilationWFactor": 1}
    made = {
        "DEPTHWISE_CONV_2D": ((2, 3, 4), {**stride, **dilation, "depthMultiplier": 1}, "DepthwiseConv2D"),
        "CONV_2D": ((2, 3, 4), {**stride, **dilation}, "Conv2D"),
        "MAX_POOL_2D": ((2,), {**stride, "filterHeight": 2, "filterWidth": 2}, "Pool2D"),
    }[kind]
    operators = [
        graphs.Op("RESHAPE", (0, 1), (2,), {"newShape": [3, 4, 6, 2]}, "Reshape"),
        graphs.Op(kind, made[0], (5,), *made[1:]),
        graphs.Op("RESHAPE", (5, 6), (7,), {"newShape": [1, 36]}, "Reshape"),
    ]
    check_against_micro(compiled, tmp_path, graphs.make_tflite(tensors, operators), (3, 4, 6, 2))


def make_contradictory_models(graphs):
    """Models whose stored output shape does not follow from their positions, by name."""
    positions = [graphs.T((3,), data=make_int32(0, 2, 0)), graphs.T((3,), data=make_int32(1, 2, 4))]
    ends = graphs.T((3,), data=make_int32(1, 4, 4))
    ones = graphs.T((3,), data=make_int32(1, 1, 1))
    masks = {"beginMask": 0, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0}
    source = graphs.T((1, 5, 4), *Q)
    far = graphs.T((3,), data=make_int32(0, 4, 0))
    padding = graphs.T((3, 2), data=make_int32(0, 0, 1, 1, 0, 0).reshape(3, 2))
    axis = graphs.T((), data=np.array(1, np.int32))
    half = graphs.T((1, 3, 4), *Q)
    slicing = graphs.Op("SLICE", (0, 1, 2), (3,), {}, "Slice")
    models = {
        "PAD": ([source, padding, graphs.T((1, 6, 4), *Q)], graphs.Op("PAD", (0, 1), (2,), {}, "Pad")),
        "SLICE": ([source, *positions, graphs.T((1, 3, 4), *Q)], slicing),
        "SLICE far": ([source, far, positions[1], graphs.T((1, 2, 4), *Q)], slicing),
        "STRIDED_SLICE": (
            [source, positions[0], ends, ones, graphs.T((1, 3, 4), *Q)],
            graphs.Op("STRIDED_SLICE", (0, 1, 2, 3), (4,), masks, "StridedSlice"),
        ),
        "SPLIT": (
            [source, axis, half, half],
            graphs.Op("SPLIT", (1, 0), (2, 3), {"numSplits": 2}, "Split"),
        ),
        "CONCATENATION": (
            [source, graphs.T((1, 9, 4), *Q)],
            graphs.Op("CONCATENATION", (0, 0), (1,), {"axis": 1}, "Concatenation"),
        ),
        "TRANSPOSE": (
            [source, graphs.T((3,), data=make_int32(0, 2, 1)), graphs.T((1, 5, 4), *Q)],
            graphs.Op("TRANSPOSE", (0, 1), (2,), {}, "Transpose"),
        ),
        "RESHAPE": ([source, graphs.T((1, 21), *Q)], graphs.Op("RESHAPE", (0,), (1,))),
        "RELU": ([source, graphs.T((1, 21), *Q)], graphs.Op("RELU", (0,), (1,))),
        "ADD": (
            [source, graphs.T((1, 6, 4), *Q)],
            graphs.Op("ADD", (0, 0), (1,), {"fusedActivationFunction": 0}, "Add"),
        ),
    }
    made = {}
    for name, (tensors, operator) in models.items():
        result = graphs.T(tensors[-1].shape, *Q)
        more = [graphs.Op("RELU", (len(tensors) - 1,), (len(tensors),))]
        made[name] = graphs.make_tflite([*tensors, result], [operator, *more])
    return made


@pytest.mark.parametrize(
    "name",
    [
        "PAD",
        "SLICE",
        "SLICE far",
        "STRIDED_SLICE",
        "SPLIT",
        "CONCATENATION",
        "TRANSPOSE",
        "RESHAPE",
        "RELU",
        "ADD",
    ],
)
def test_stored_shape_that_contradicts_the_operator_is_refused(graphs, name) -> None:
    """The C would read or write outside its buffers."""
    with pytest.raises(ExportError, match=rf"operator {name.split()[0]} \(t\d\) .*the model is damaged"):
        generate_c(make_contradictory_models(graphs)[name])


def test_join_of_a_constant_or_of_two_scales_is_refused_with_a_remedy(graphs) -> None:
    source, joined = graphs.T((1, 4), 0.1, 0), graphs.T((1, 8), 0.1, 0)
    join = graphs.Op("CONCATENATION", (0, 1), (2,), {"axis": 1}, "Concatenation")
    constant = graphs.T((1, 4), 0.1, 0, np.ones((1, 4), np.int8), name="ones")
    with pytest.raises(ExportError, match=r"joins the constant ones.*append the constant to the samples"):
        generate_c(graphs.make_tflite([source, constant, joined], [join]))
    other = [graphs.T((1, 4), 0.2, 0), graphs.Op("RELU", (0,), (1,))]
    with pytest.raises(ExportError, match=r"joins tensors of the scales 0\.2 and 0\.1.*one scale"):
        generate_c(graphs.make_tflite([source, other[0], joined], [other[1], join]))


def make_mixture(graphs, experts, *, shared=True):
    """Return a mixture: an optional trunk, experts of one dense layer, their gate, and the weighted sum.

    The gate's logits make some gate values exactly zero.
    """
    rng = np.random.default_rng(experts)
    tensors = [graphs.T((1, 6), 0.05, 0)]
    operators = []

    def add_dense(source, outputs, scale, name, size=6):
        weights = rng.integers(-128, 128, (outputs, size)).astype(np.int8)
        tensors.extend(
            [graphs.T(weights.shape, 0.01, 0, weights), graphs.T((1, outputs), scale, 0, name=name)]
        )
        operators.append(
            graphs.Op(
                "FULLY_CONNECTED", (source, len(tensors) - 2, -1), (len(tensors) - 1,), {}, "FullyConnected"
            )
        )
        return len(tensors) - 1

    trunk = add_dense(0, 6, 0.05, "trunk/fc") if shared else 0
    outputs = [add_dense(trunk, 4, 0.05, f"expert{k}/fc") for k in range(experts)]
    logits = add_dense(trunk, experts, 0.3, "gate/fc")
    tensors.append(graphs.T((1, experts), 1 / 256, -128, name="gate/softmax"))
    gate = len(tensors) - 1
    operators.append(graphs.Op("SOFTMAX", (logits,), (gate,), {"beta": 1.0}, "Softmax"))
    tensors.append(graphs.T((), data=np.array(1, np.int32)))
    axis = len(tensors) - 1
    columns = list(range(len(tensors), len(tensors) + experts))
    tensors.extend(graphs.T((1, 1), 1 / 256, -128) for _ in columns)
    operators.append(graphs.Op("SPLIT", (axis, gate), tuple(columns), {"numSplits": experts}, "Split"))
    total = None
    for column, output in zip(columns, outputs, strict=True):
        tensors.append(graphs.T((1, 4), 0.04, -5))
        product = len(tensors) - 1
        operators.append(graphs.Op("MUL", (output, column), (product,), {}, "Mul"))
        if total is None:
            total = product
            continue
        tensors.append(graphs.T((1, 4), 0.05, 2))
        operators.append(graphs.Op("ADD", (total, product), (len(tensors) - 1,), {}, "Add"))
        total = len(tensors) - 1
    return graphs.make_tflite(tensors, operators)


@pytest.mark.parametrize("experts", [2, 3, 5])
@pytest.mark.parametrize("shared", [True, False])
def test_handwritten_mixture_is_recognized_and_matches_tflite_micro(
    compiled, graphs, tmp_path, experts, shared
) -> None:
    model = make_mixture(graphs, experts, shared=shared)
    structure = find_parts(read_quantized_model(model))
    names = [*(["trunk"] if shared else []), "gate", *(f"expert{k}" for k in range(experts)), "mix"]
    assert list(structure.names) == names and len(structure.gate) == len(structure.products) == experts
    source = check_against_micro(compiled, tmp_path, model, (6,))
    x = np.random.default_rng(0).integers(-128, 128, (20, 6)).astype(np.int8)
    _, gates = compiled.run(compiled.build(source, tmp_path), x, 4)
    assert -128 in np.frombuffer(gates, np.int8), "no expert was left out"
    text = source.files["model.c"]
    assert text.index("run_gate(") < text.index("run_expert0(") and text.count("gate->skip[") == experts
    assert {layer.part for layer in source.layers} == set(names)


def test_residual_block_is_not_recognized_as_a_mixture(graphs) -> None:
    """The two branches of a residual block are not experts with a gate."""
    tensors = [
        graphs.T((1, 4), 0.1),
        graphs.T((4, 4), 0.1, 0, np.eye(4, dtype=np.int8)),
        graphs.T((1, 4), 0.1),
        graphs.T((1, 4), 0.2),
    ]
    operators = [
        graphs.Op("FULLY_CONNECTED", (0, 1, -1), (2,), {}, "FullyConnected"),
        graphs.Op("ADD", (0, 2), (3,), {}, "Add"),
    ]
    assert find_parts(read_quantized_model(graphs.make_tflite(tensors, operators))).names == ("model",)

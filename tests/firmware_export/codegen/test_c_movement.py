"""Views without copies, copies between layouts, and handwritten mixtures, compared with tflite-micro."""

import numpy as np
import pytest

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

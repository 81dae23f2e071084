"""Models as converters write them: computed shapes, float and uint8 ends, TILE, old axes, states."""

import numpy as np
import pytest
from click.testing import CliRunner

from edgefl.base.errors import ExportError, PlanError
from edgefl.program.plan.tflite import pack_model, read_subgraph, unpack_model
from firmware_export.certificate.import_model import read_imported_model
from firmware_export.certificate.simplify import simplify_model
from firmware_export.codegen.c_source import generate_c
from firmware_export.commands.export import export
from firmware_export.tflite.interpreter import load_tflite

pytest.importorskip("tflite_micro")
Q = (0.1, 3)


def make_int32(*values):
    return np.array(values, np.int32)


def list_names(model):
    return [operator.name for operator in read_subgraph(model).operators]


def check_against_micro(compiled, tmp_path, model, shape):
    x = np.random.default_rng(0).integers(-128, 128, (20, *shape)).astype(np.int8)
    expected = compiled.run_micro(model, x)
    received, _ = compiled.run(compiled.build(generate_c(model), tmp_path), x, expected.shape[1])
    np.testing.assert_array_equal(received, expected)
    return x, received


def make_flatten(graphs):
    """A Flatten layer with a dynamic batch. The stored shape of its output is wrong."""
    masks = {"beginMask": 0, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 1}
    tensors = [
        graphs.T((1, 2, 4), *Q),
        graphs.T((3,), kind="INT32", scales=0.0),
        graphs.T((1,), data=make_int32(0)),
        graphs.T((1,), data=make_int32(1)),
        graphs.T((), kind="INT32", scales=0.0),
        graphs.T((), data=np.array(8, np.int32)),
        graphs.T((2,), kind="INT32", scales=0.0),
        graphs.T((1, 1), *Q),
        graphs.T((1, 1), *Q),
    ]
    operators = [
        graphs.Op(name="SHAPE", inputs=(0,), outputs=(1,), options={"outType": 2}, options_class="Shape"),
        graphs.Op(
            name="STRIDED_SLICE",
            inputs=(1, 2, 3, 3),
            outputs=(4,),
            options=masks,
            options_class="StridedSlice",
        ),
        graphs.Op(name="PACK", inputs=(4, 5), outputs=(6,), options={"valuesCount": 2}, options_class="Pack"),
        graphs.Op(name="RESHAPE", inputs=(0, 6), outputs=(7,), options={}, options_class="Reshape"),
        graphs.Op("RELU", (7,), (8,)),
    ]
    return graphs.make_tflite(tensors, operators)


def test_shapes_of_a_dynamic_batch_become_constants(compiled, graphs, tmp_path) -> None:
    model = simplify_model(make_flatten(graphs)).content
    graph = read_subgraph(model)
    assert list_names(model) == ["RESHAPE", "RELU"]
    assert graph.tensors[6].data.tolist() == [1, 8]
    assert [graph.tensors[i].shape for i in (7, 8)] == [(1, 8), (1, 8)]
    x, received = check_against_micro(compiled, tmp_path, model, (2, 4))
    np.testing.assert_array_equal(received, np.maximum(x.reshape(20, 8), 3))


def test_model_whose_shapes_cannot_be_computed_is_refused(graphs) -> None:
    root = unpack_model(make_flatten(graphs))
    root.buffers[root.subgraphs[0].tensors[5].buffer].data = np.frombuffer(make_int32(7), np.uint8)
    with pytest.raises(ExportError, match=r"shapes cannot be computed: .*; convert .* fixed batch of 1"):
        simplify_model(pack_model(root, 1024))


def test_model_without_such_operators_is_unchanged(graphs) -> None:
    model = graphs.make_tflite([graphs.T((1, 8)), graphs.T((1, 8))], [graphs.Op("RELU", (0,), (1,))])
    simplified = simplify_model(model)
    assert simplified.content is model and simplified.notes == ()


@pytest.mark.parametrize("kind", ["FLOAT32", "UINT8"])
def test_conversions_at_the_ends_are_left_out(graphs, tmp_path, kind) -> None:
    scales = () if kind == "FLOAT32" else 0.1
    tensors = [
        graphs.T((1, 8), scales, 131, kind=kind),
        graphs.T((1, 8), *Q),
        graphs.T((1, 8), *Q),
        graphs.T((1, 8), scales, 131, kind=kind),
    ]
    operators = [
        graphs.Op("QUANTIZE", (0,), (1,)),
        graphs.Op("RELU", (1,), (2,)),
        graphs.Op("DEQUANTIZE" if kind == "FLOAT32" else "QUANTIZE", (2,), (3,), version=2),
    ]
    path = tmp_path / "model.tflite"
    path.write_bytes(graphs.make_tflite(tensors, operators))
    out = tmp_path / "out"
    result = CliRunner().invoke(export, [str(path), "-o", str(out), "--target", "host", "--samples", "30"])
    assert result.exit_code == 0, result.exception
    assert f"the input of the C is int8 instead of {kind.lower()}" in result.output
    assert f"the output of the C is int8 instead of {kind.lower()}" in result.output
    assert list_names((out / "model.tflite").read_bytes()) == ["RELU"]


def make_elu(graphs):
    tensors = [
        graphs.T((1, 256), 0.02, 7),
        graphs.T((1, 256), (), kind="FLOAT32"),
        graphs.T((1, 256), (), kind="FLOAT32"),
        graphs.T((1, 256), 0.015, -50),
    ]
    operators = [
        graphs.Op("DEQUANTIZE", (0,), (1,), version=2),
        graphs.Op("ELU", (1,), (2,)),
        graphs.Op("QUANTIZE", (2,), (3,)),
    ]
    return graphs.make_tflite(tensors, operators)


def test_reference_kernels_without_an_operator_are_named(graphs) -> None:
    """ai-edge-litert has an int8 ELU, but no reference kernel of it."""
    model = simplify_model(make_elu(graphs)).content
    with pytest.raises(PlanError, match=r"reference kernels of \S+ \S+ have no ELU; .*without --reference"):
        load_tflite(model, reference=True)
    assert load_tflite(model).invoke(np.zeros((1, 256), np.int8)).shape == (256,)


def test_float_elu_between_int8_layers_becomes_int8(compiled, graphs, tmp_path) -> None:
    """The bytes are those of the float operator, computed here with numpy."""
    model = simplify_model(make_elu(graphs)).content
    assert list_names(model) == ["ELU"]
    check_against_micro(compiled, tmp_path, model, (256,))
    x = np.arange(-128, 128, dtype=np.int8)[None]
    received, _ = compiled.run(tmp_path / "program", x, 256)
    real = 0.02 * (x.astype(np.float64) - 7)
    expected = np.round(np.where(real < 0, np.expm1(real), real) / 0.015) - 50
    np.testing.assert_array_equal(received, np.clip(expected, -128, 127))


def test_float_layers_behind_the_input_are_still_refused(graphs, tmp_path) -> None:
    tensors = [graphs.T((1, 8), (), kind="FLOAT32")] * 2 + [graphs.T((1, 8), *Q)] * 2
    operators = [
        graphs.Op("EXP", (0,), (1,)),
        graphs.Op("QUANTIZE", (1,), (2,)),
        graphs.Op("RELU", (2,), (3,)),
    ]
    path = tmp_path / "model.tflite"
    path.write_bytes(graphs.make_tflite(tensors, operators))
    with pytest.raises(ExportError, match=r"EXP \(t1\)"):
        read_imported_model(path)


def test_tile_of_single_values_becomes_a_broadcast(compiled, graphs, tmp_path) -> None:
    tensors = [
        graphs.T((1, 3, 1, 4), *Q),
        graphs.T((4,), data=make_int32(1, 1, 2, 1)),
        graphs.T((1, 3, 2, 4), *Q),
    ]
    model = simplify_model(graphs.make_tflite(tensors, [graphs.Op("TILE", (0, 1), (2,))])).content
    assert list_names(model) == ["BROADCAST_TO"]
    x, received = check_against_micro(compiled, tmp_path, model, (3, 1, 4))
    np.testing.assert_array_equal(received, x.repeat(2, axis=2).reshape(20, -1))


def test_other_tiles_are_refused(graphs, tmp_path) -> None:
    tensors = [graphs.T((1, 3), *Q), graphs.T((2,), data=make_int32(1, 2)), graphs.T((1, 6), *Q)]
    path = tmp_path / "model.tflite"
    path.write_bytes(graphs.make_tflite(tensors, [graphs.Op("TILE", (0, 1), (2,))]))
    with pytest.raises(ExportError, match=r"TILE \(t2\): TensorFlow Lite Micro has no such operator"):
        read_imported_model(path)


def test_padding_of_a_space_to_batch_becomes_a_pad(compiled, graphs, tmp_path) -> None:
    tensors = [
        graphs.T((1, 3, 2), *Q),
        graphs.T((1,), data=make_int32(2)),
        graphs.T((1, 2), data=make_int32(1, 2).reshape(1, 2)),
        graphs.T((2, 3, 2), *Q),
        graphs.T((2,), data=make_int32(1, 12)),
        graphs.T((1, 12), *Q),
    ]
    operators = [
        graphs.Op(
            name="SPACE_TO_BATCH_ND",
            inputs=(0, 1, 2),
            outputs=(3,),
            options={},
            options_class="SpaceToBatchND",
            version=2,
        ),
        graphs.Op(
            name="RESHAPE",
            inputs=(3, 4),
            outputs=(5,),
            options={"newShape": [1, 12]},
            options_class="Reshape",
        ),
        graphs.Op("RELU", (5,), (6,)),
    ]
    model = simplify_model(graphs.make_tflite([*tensors, graphs.T((1, 12), *Q)], operators)).content
    assert list_names(model) == ["PAD", "SPACE_TO_BATCH_ND", "RESHAPE", "RELU"]
    x, received = check_against_micro(compiled, tmp_path, model, (3, 2))
    padded = np.pad(x, ((0, 0), (1, 2), (0, 0)), constant_values=3)
    stacked = np.concatenate([padded[:, ::2].reshape(20, -1), padded[:, 1::2].reshape(20, -1)], axis=1)
    np.testing.assert_array_equal(received, np.maximum(stacked, 3))


def test_old_axis_of_a_bias_is_corrected(graphs, tmp_path) -> None:
    """person_detect of TensorFlow Lite Micro stores the axis 3 with each bias of a depthwise convolution."""
    kernel = np.ones((1, 3, 3, 2), np.int8)
    tensors = [
        graphs.T((1, 4, 4, 2), *Q),
        graphs.T(shape=kernel.shape, scales=[0.1, 0.2], zero=0, data=kernel, axis=3),
        graphs.T(shape=(2,), scales=[0.01, 0.02], zero=0, data=make_int32(5, 6), axis=3),
        graphs.T((1, 4, 4, 2), 0.5, 4),
    ]
    options = {"padding": 0, "strideH": 1, "strideW": 1, "depthMultiplier": 1}
    options |= {"dilationHFactor": 1, "dilationWFactor": 1}
    operator = graphs.Op(
        name="DEPTHWISE_CONV_2D",
        inputs=(0, 1, 2),
        outputs=(3,),
        options=options,
        options_class="DepthwiseConv2D",
    )
    path = tmp_path / "model.tflite"
    path.write_bytes(graphs.make_tflite(tensors, [operator]))
    arguments = [str(path), "-o", str(tmp_path / "out"), "--target", "host", "--samples", "30"]
    assert CliRunner().invoke(export, arguments).exit_code == 0
    graph = read_subgraph((tmp_path / "out" / "model.tflite").read_bytes())
    assert [tensor.axis for tensor in graph.tensors[1:3]] == [3, 0]


@pytest.mark.parametrize("kind", ["BIDIRECTIONAL_SEQUENCE_LSTM", "RNN"])
def test_recurrent_operators_without_a_kernel_are_named(graphs, tmp_path, kind) -> None:
    tensors = [
        graphs.T((1, 8), *Q),
        graphs.T((1, 8), *Q, is_variable=True),
        graphs.T((1, 8), *Q, name="voice"),
    ]
    path = tmp_path / "model.tflite"
    path.write_bytes(graphs.make_tflite(tensors, [graphs.Op(kind, (0, 1), (2,))]))
    with pytest.raises(ExportError, match=rf"{kind} \(voice\): .*_SEQUENCE_LSTM.* unroll=True"):
        read_imported_model(path)

"""The reader and writer of `.tflite` files: values as views, changes, metadata, errors for damaged bytes."""

from copy import copy

import numpy as np
import pytest

from edgefl.base.errors import ExportError, ModelFileError, PlanError
from edgefl.program.plan.tflite import (
    make_operator_code,
    pack_model,
    read_float_constants,
    read_metadata,
    read_model,
    read_subgraph,
    read_subgraphs,
    set_operator_options,
    unpack_model,
    with_constants,
    with_metadata,
)
from tests.firmware_export.graphs import Op, T, make_tflite

KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def model() -> bytes:
    """Return a dense layer with a scale for each of its three outputs."""
    return make_tflite(
        [
            T(shape=(1, 4), kind="FLOAT32", name="x"),
            T(shape=(3, 4), data=KERNEL, name="kernel"),
            T(shape=(3,), scales=[0.5, 0.25, 0.125], zero=0, data=np.arange(3, dtype=np.int32), name="bias"),
            T(shape=(1, 3), scales=0.3, zero=7, name="out"),
        ],
        [
            Op(
                name="FULLY_CONNECTED",
                inputs=(0, 1, 2),
                outputs=(3,),
                options={"fusedActivationFunction": 1},
                options_class="FullyConnected",
                version=4,
            )
        ],
    )


def test_operators_and_tensors_are_read(model: bytes) -> None:
    graph = read_subgraph(model)
    (operator,) = graph.operators
    assert (operator.name, operator.version, operator.custom) == ("FULLY_CONNECTED", 4, "")
    assert (operator.inputs, operator.outputs) == ((0, 1, 2), (3,))
    assert operator.options["fusedActivationFunction"] == 1
    assert (graph.inputs, graph.outputs) == ((0,), (3,))
    x, kernel, bias, out = graph.tensors
    assert [tensor.name for tensor in graph.tensors] == ["x", "kernel", "bias", "out"]
    assert [tensor.dtype for tensor in graph.tensors] == ["FLOAT32", "FLOAT32", "INT32", "INT8"]
    assert x.data is None and x.size == 4 and x.scale.size == 0 and x.zero_points == (0,)
    np.testing.assert_array_equal(kernel.data, KERNEL)
    assert bias.scale.tolist() == [0.5, 0.25, 0.125] and bias.data.tolist() == [0, 1, 2]
    assert out.zero_point == 7


def test_constants_are_read_without_copying(model: bytes) -> None:
    kernel = read_subgraph(model).tensors[1]
    assert np.shares_memory(kernel.data, np.frombuffer(model, np.uint8))
    assert not kernel.data.flags.writeable


def test_constants_are_written_in_place(model: bytes) -> None:
    content = bytearray(model)
    read_subgraph(content).tensors[1].overwrite(KERNEL * 2)
    changed = with_constants(model, {1: KERNEL * 2})
    assert bytes(content) == changed != model
    np.testing.assert_array_equal(read_float_constants(changed)[1], KERNEL * 2)
    for index, value in ((0, KERNEL), (1, KERNEL[:2]), (3, np.zeros(3, np.int8))):
        with pytest.raises(ValueError, match=f"tensor {index} is not a constant of"):
            read_subgraph(bytearray(model)).tensors[index].overwrite(value)


def test_packing_twice_gives_the_same_bytes(model: bytes) -> None:
    once = pack_model(unpack_model(model), len(model))
    assert pack_model(unpack_model(once), len(once)) == once
    np.testing.assert_array_equal(read_float_constants(once)[1], KERNEL)
    data = read_subgraph(once).tensors[1].data
    first = np.frombuffer(once, np.uint8).__array_interface__["data"][0]
    assert (data.__array_interface__["data"][0] - first) % 16 == 0


def test_metadata_is_written_and_read(model: bytes) -> None:
    with_entries = with_metadata(model, {"first": b"1", "second": bytes(1000)})
    assert read_metadata(with_entries, "first") == b"1"
    assert read_metadata(with_entries, "second") == bytes(1000)
    assert read_metadata(with_entries, "third") is None
    assert read_metadata(model, "first") is None
    np.testing.assert_array_equal(read_float_constants(with_entries)[1], KERNEL)


def test_truncated_file_is_refused_or_read(model: bytes) -> None:
    """A model that is truncated anywhere outside its padding is a ModelFileError that names the file."""
    refused = 0
    for length in range(len(model)):
        try:
            read_model(model[:length], "plan.tflite")
        except ModelFileError as error:
            assert str(error).startswith("plan.tflite ")
            refused += 1
    assert refused > 0.9 * len(model)


@pytest.mark.parametrize("kind", [PlanError, ExportError])
def test_foreign_bytes_raise_plan_and_export_errors(kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"the identifier TFL3 at byte 4, found b'9a\\x00\\x00' in 46 bytes"):
        read_model(b"GIF89a" + bytes(40))


def test_error_for_newer_files_suggests_an_update(model: bytes) -> None:
    newer = unpack_model(model)
    newer.version = 4
    with pytest.raises(ModelFileError, match=r"schema version 4, expected 3.*update edgefl"):
        read_model(pack_model(newer, 100))
    unknown = unpack_model(model)
    unknown.operatorCodes[0].builtinCode = 4000
    with pytest.raises(ModelFileError, match=r"builtin operator 4000.*update edgefl"):
        read_model(pack_model(unknown, 100))


def test_several_subgraphs_are_refused_if_one_is_expected(model: bytes) -> None:
    root = unpack_model(model)
    root.subgraphs = [*root.subgraphs, *root.subgraphs]
    packed = pack_model(root, 100)
    assert len(read_model(packed).subgraphs) == 2
    with pytest.raises(ModelFileError, match="2 subgraphs, expected one"):
        read_subgraph(packed)


def test_a_subgraph_that_sets_the_first_state_is_no_obstacle(model: bytes) -> None:
    root = unpack_model(model)
    root.subgraphs = [*root.subgraphs, *root.subgraphs]
    called = copy(root.subgraphs[0].operators[0])
    root.operatorCodes = [*root.operatorCodes, make_operator_code("CALL_ONCE", 1)]
    called.opcodeIndex = len(root.operatorCodes) - 1
    called.inputs = called.outputs = []
    set_operator_options(called, "CallOnceOptions", initSubgraphIndex=1)
    root.subgraphs[0] = copy(root.subgraphs[0])
    root.subgraphs[0].operators = [called, *root.subgraphs[0].operators]
    packed = pack_model(root, 100)
    assert [operator.name for operator in read_subgraph(packed).operators] == ["CALL_ONCE", "FULLY_CONNECTED"]
    assert len(read_subgraphs(packed)) == 2

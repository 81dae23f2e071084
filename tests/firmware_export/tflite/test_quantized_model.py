"""Reading a .tflite, and clear errors for all other bytes."""

import re

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.codegen.c_source import generate_c
from firmware_export.tflite.portable import to_portable
from firmware_export.tflite.quantized_model import read_quantized_model


@pytest.fixture(scope="module")
def dense(graphs):
    weights = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    tensors = [
        graphs.T((1, 4), 0.5, -128, name="x"),
        graphs.T((3, 4), [0.1, 0.2, 0.3], 0, weights, name="fc/MatMul"),
        graphs.T((3,), [0.05, 0.1, 0.15], 0, np.array([1, -2, 3], np.int32), name="fc/bias"),
        graphs.T((1, 3), 0.25, 7, name="fc/Relu;fc/BiasAdd"),
    ]
    return graphs.make_tflite(
        tensors,
        [graphs.Op("FULLY_CONNECTED", (0, 1, 2), (3,), {"fusedActivationFunction": 1}, "FullyConnected")],
    )


def test_all_fields_of_a_model_are_read(dense) -> None:
    network = read_quantized_model(dense)
    (operator,) = network.operators
    assert (operator.name, operator.version, operator.inputs, operator.outputs) == (
        "FULLY_CONNECTED",
        1,
        (0, 1, 2),
        (3,),
    )
    assert operator.options["fusedActivationFunction"] == 1
    weights = network.get_tensor(1)
    assert (
        weights.data.tolist() == [[-6, -5, -4, -3], [-2, -1, 0, 1], [2, 3, 4, 5]]
        and weights.data.dtype == np.int8
    )
    assert weights.scale.tolist() == [np.float32(v) for v in (0.1, 0.2, 0.3)]
    assert network.get_tensor(2).data.tolist() == [1, -2, 3]
    assert (network.get_tensor(3).zero_point, network.get_tensor(3).shape, network.get_tensor(0).data) == (
        7,
        (1, 3),
        None,
    )
    assert (network.inputs, network.outputs) == ((0,), (3,))


def test_c_of_a_dense_layer_matches_hand_computed_constants(dense) -> None:
    """Check the fields of a dense layer by hand.

    The folded bias is 1 + 128 * sum(-6 .. -3) = 1 + 128 * -18. The multiplier is .5 * .1 / .25 = .2 = .8 *
    2^-2. ReLU starts at the zero point 7.
    """
    source = generate_c(dense)
    text = source.files["model_weights.c"]
    assert ".fc_bias = {-2303, -258, 1795}" in text
    assert ".fc_range = {.input_zero = -128, .output_zero = 7, .low = 7, .high = 127}" in text
    assert ".fc_multiplier = {1717986944, 1717986944, 1288490240}" in text and "-2, -1, 0," in text
    assert (
        source.parts == ("model",)
        and source.layers[0].macs == 12
        and source.layers[0].weight_bytes == 16 + 12 + 12 + 3 + 12
    )


def test_every_truncation_is_an_error(dense) -> None:
    for length in range(0, len(dense) - 1, 7):
        with pytest.raises(ExportError, match=r"not a TFLite model|truncated or damaged|copy it again"):
            generate_c(dense[:length])


def test_damaged_bytes_never_end_in_a_traceback(dense) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        spoiled = bytearray(dense)
        for offset in rng.integers(8, len(dense), 3):
            spoiled[offset] = int(rng.integers(256))
        try:
            generate_c(bytes(spoiled))
        except ExportError as error:
            assert str(error)


def test_foreign_bytes_are_refused() -> None:
    with pytest.raises(ExportError, match="expected the identifier TFL3"):
        read_quantized_model(b"GIF89a" + bytes(40))


def repack(model, change) -> bytes:
    from edgefl.program.plan.tflite import pack_model, unpack_model

    root = unpack_model(model)
    change(root)
    return pack_model(root, 1024)


def test_newer_schema_and_unknown_operator_are_refused(dense) -> None:
    def set_newer_version(root) -> None:
        root.version = 4

    def set_unknown_operator(root) -> None:
        root.operatorCodes[0].builtinCode = 4000

    with pytest.raises(ExportError, match=r"schema version 4, expected 3.*update edgefl"):
        read_quantized_model(repack(dense, set_newer_version))
    with pytest.raises(ExportError, match=r"builtin operator 4000.*update edgefl"):
        read_quantized_model(repack(dense, set_unknown_operator))


def test_weights_behind_the_flatbuffer_are_read_and_moved_inside(dense) -> None:
    """Large models store their weights there, and tflite-micro would read zeros."""
    weights = read_quantized_model(dense).get_tensor(1).data
    moved = bytearray()

    def move_weights_outside(root) -> None:
        buffer = root.buffers[root.subgraphs[0].tensors[1].buffer]
        buffer.data = None
        buffer.offset = 1 << 20
        buffer.size = weights.size

    moved += repack(dense, move_weights_outside)
    moved += bytes((1 << 20) - len(moved)) + weights.tobytes()
    assert read_quantized_model(bytes(moved)).get_tensor(1).data.tolist() == weights.tolist()
    inside = to_portable(bytes(moved))
    files, expected = (generate_c(model).files for model in (inside, dense))
    digests = [re.search(r"MODEL_SHA256.*", made["model.h"])[0] for made in (files, expected)]
    assert len(inside) < 2000 and files == {
        name: text.replace(digests[1], digests[0]) for name, text in expected.items()
    }
    assert to_portable(inside) == inside
    with pytest.raises(ExportError, match="truncated"):
        read_quantized_model(bytes(moved[:-1]))

"""Exports have the same operator versions as TensorFlow's own converter writes.

A strict importer accepts them.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from firmware_export.quantize.device_route import RECIPES, quantize
from firmware_export.quantize.ranges import record_extremes
from firmware_export.tflite.operator_versions import find_operator_version
from firmware_export.tflite.quantized_model import read_quantized_model

X = np.random.default_rng(0).normal(size=(30, 8, 8, 3)).astype(np.float32)
INT8 = {
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
    "ADD": 2,
    "MAX_POOL_2D": 2,
    "AVERAGE_POOL_2D": 2,
    "PAD": 2,
    "RESHAPE": 1,
}
"""The versions that bakenn 1.0.0 requires. LiteRT's op_version.cc has the same versions for int8."""


@pytest.fixture(scope="module")
def network(graphs) -> bytes:
    """A float network of the strict importer's operators, handwritten in the converter's form."""
    rng = np.random.default_rng(3)
    t = graphs.T
    op = graphs.Op

    def make_weight(*shape: int) -> object:
        return t(shape, data=rng.normal(size=shape).astype(np.float32) / 3)

    def make_activation(*shape: int) -> object:
        return t((1, *shape), kind="FLOAT32")

    tensors = [
        make_activation(8, 8, 3),
        t((4, 2), data=np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32), scales=()),
        make_activation(10, 10, 3),
        make_weight(4, 3, 3, 3),
        make_weight(4),
        make_activation(8, 8, 4),
        make_weight(1, 3, 3, 4),
        make_weight(4),
        make_activation(8, 8, 4),
        make_activation(8, 8, 4),
        make_activation(4, 4, 4),
        make_activation(2, 2, 4),
        t((2,), data=np.array([1, 16], np.int32), scales=()),
        make_activation(16),
        make_weight(5, 16),
        make_weight(5),
        make_activation(5),
    ]
    for number, tensor in enumerate(tensors):
        object.__setattr__(tensor, "name", f"layer{number}")
    conv = {
        "padding": 1,
        "strideW": 1,
        "strideH": 1,
        "dilationWFactor": 1,
        "dilationHFactor": 1,
        "fusedActivationFunction": 1,
    }
    pool = {"padding": 1, "strideW": 2, "strideH": 2, "filterWidth": 2, "filterHeight": 2}
    operators = [
        op("PAD", (0, 1), (2,), {}, "Pad"),
        op("CONV_2D", (2, 3, 4), (5,), conv, "Conv2D"),
        op(
            "DEPTHWISE_CONV_2D",
            (5, 6, 7),
            (8,),
            {**conv, "padding": 0, "depthMultiplier": 1},
            "DepthwiseConv2D",
        ),
        op("ADD", (5, 8), (9,), {}, "Add"),
        op("MAX_POOL_2D", (9,), (10,), pool, "Pool2D"),
        op("AVERAGE_POOL_2D", (10,), (11,), pool, "Pool2D"),
        op("RESHAPE", (11, 12), (13,)),
        op("FULLY_CONNECTED", (13, 14, 15), (16,), {}, "FullyConnected"),
    ]
    return graphs.make_tflite(tensors, operators)


def test_device_route_writes_the_operator_versions_of_the_schema(network) -> None:
    exported = quantize(network, record_extremes(network, X), RECIPES[0])
    assert {operator.name: operator.version for operator in read_quantized_model(exported).operators} == INT8


def test_strict_importer_accepts_an_export_and_gives_the_same_outputs(network, compiled, tmp_path) -> None:
    bakenn = pytest.importorskip("bakenn")
    pytest.importorskip("tflite")
    exported = quantize(network, record_extremes(network, X), RECIPES[0])
    refusal = ""
    try:
        imported = bakenn.import_tflite(exported)
    except bakenn.CompileError as error:
        refusal = str(error)
    assert refusal == ""
    samples = np.random.default_rng(1).integers(-128, 128, (6, 8, 8, 3)).astype(np.int8)
    from bakenn.reference import run_reference

    plan = bakenn.compile(imported, tmp_path).plan
    rows = [run_reference(plan, sample[None]).ravel() for sample in samples]
    np.testing.assert_array_equal(np.stack(rows), compiled.run_micro(exported, samples))


def test_operator_versions_equal_those_of_the_converter() -> None:
    tf = pytest.importorskip("tensorflow")
    from edgefl.program.plan.tflite import pack_model, unpack_model
    from firmware_export.tflite.portable import to_portable

    rng = np.random.default_rng(5)
    kernel, deep, dense = (
        rng.normal(size=shape).astype(np.float32) for shape in ((3, 3, 4, 4), (3, 3, 4, 1), (64, 8))
    )

    @tf.function(input_signature=[tf.TensorSpec((1, 4, 4, 4), tf.float32)])
    def everything(x):
        convolved = tf.nn.conv2d(x, kernel, 1, "SAME") + 0.5
        a = tf.nn.relu6(tf.nn.depthwise_conv2d(convolved, deep, [1, 1, 1, 1], "SAME") + 0.25)
        a = tf.tanh(a) + tf.sigmoid(a * 1.5) - tf.nn.leaky_relu(convolved, 0.1)
        a = tf.maximum(a, convolved * 0.5) + tf.minimum(a, x)
        first, second = tf.split(a, 2, axis=3)
        a = tf.concat([tf.transpose(first, [0, 2, 1, 3]), second], axis=3)
        a = tf.pad(a, [[0, 0], [1, 1], [1, 1], [0, 0]])
        a = tf.nn.max_pool2d(a, 2, 1, "VALID")
        a = tf.nn.avg_pool2d(a, 2, 1, "VALID")
        rows = tf.unstack(a, axis=1)
        a = tf.stack([rows[0], rows[1], rows[2], rows[3]], axis=1)
        spread = tf.math.rsqrt(tf.reduce_mean(tf.math.squared_difference(a, 0.1), axis=[1, 2]) + 0.5)
        flat = tf.reshape(a, (1, 64)) @ dense + 0.1
        return tf.nn.softmax(flat[:, 1:5] + spread)

    converter = tf.lite.TFLiteConverter.from_concrete_functions([everything.get_concrete_function()])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        [rng.normal(size=(1, 4, 4, 4)).astype(np.float32)] for _ in range(8)
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    converted = bytes(converter.convert())
    root = unpack_model(converted)
    for code in root.operatorCodes:
        code.version = 1
    rewritten = to_portable(pack_model(root, 1024))

    def list_versions(model: bytes) -> list[tuple[str, int]]:
        return [(operator.name, operator.version) for operator in read_quantized_model(model).operators]

    assert len({name for name, _ in list_versions(converted)}) > 15
    assert list_versions(rewritten) == list_versions(converted)


@pytest.mark.parametrize(
    ("dtype", "rank", "version"),
    [("INT8", 4, 2), ("INT8", 5, 4), ("INT8", 6, 6), ("INT16", 5, 5), ("INT16", 6, 6)],
)
def test_version_of_a_transposition_depends_on_its_rank(dtype: str, rank: int, version: int) -> None:
    """Source: LiteRT's op_version.cc, which has versions 2 and 5 for int8 and int16 of at most four axes."""
    tensors = [SimpleNamespace(shape=(1,) * rank, dtype=dtype), SimpleNamespace(shape=(rank,), dtype="INT32")]
    operator = SimpleNamespace(name="TRANSPOSE", inputs=(0, 1), outputs=(0,), options={})
    assert find_operator_version(operator, tensors) == version

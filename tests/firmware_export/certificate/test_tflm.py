"""The files for TensorFlow Lite Micro.

The arena has the smallest size that works. The resolver has exactly the model's operators.
"""

import re

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.certificate import tflm_runner
from firmware_export.certificate.tflm import list_operators, render_model_data_c, render_model_ops_h
from firmware_export.certificate.tflm_runner import find_reason, measure_tflm, run_tflm
from firmware_export.quantize.quantize import export_mixture
from firmware_export.tflite.graph import OperatorGraph, TensorKind, read_graph

pytest.importorskip("tflite_micro")


@pytest.fixture(scope="module")
def model(digits, tmp_path_factory) -> bytes:
    out = tmp_path_factory.mktemp("tflm")
    export_mixture(digits.plan, digits.mixture, digits.shard, out)
    return (out / "model.tflite").read_bytes()


def test_measured_arena_is_the_smallest_that_works(model) -> None:
    inputs = np.random.default_rng(1).integers(-128, 128, (5, 28, 28, 1)).astype(np.int8)
    measured = measure_tflm(model, inputs)
    size = measured.arena_bytes
    np.testing.assert_array_equal(measured.outputs, run_tflm(model, inputs))
    np.testing.assert_array_equal(measured.outputs, run_tflm(model, inputs, size))
    with pytest.raises(ExportError, match="refuses the model"):
        run_tflm(model, inputs, size - 16)


def make_model_with_scaled_channels() -> bytes:
    """Return an int8 model that needs 2,592 bytes. A try with 2,048 bytes damages the memory."""
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * np.prod(shape[:-1]) ** -0.5).astype(np.float32)

    kernel, bias, weights = draw(3, 3, 3, 6), draw(6), draw(384, 4)

    @tf.function(input_signature=[tf.TensorSpec((1, 8, 8, 3), tf.float32)], autograph=False)
    def run(x):
        x = tf.nn.relu(x * tf.constant([0.5, -2.0, 3.0]) + tf.constant([0.1, 0.2, -0.3]))
        x = tf.nn.conv2d(x, kernel, 1, "SAME") + bias
        return tf.matmul(tf.reshape(x, (1, -1)), weights) + tf.constant([0.1, 0.2, -0.3, 0.4])

    converter = tf.lite.TFLiteConverter.from_concrete_functions([run.get_concrete_function()], tf.Module())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    samples = rng.normal(0.2, 1, (5, 1, 8, 8, 3)).astype(np.float32)
    converter.representative_dataset = lambda: ([x] for x in samples)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def test_activations_may_be_much_larger_than_the_file(graphs) -> None:
    """tflite-micro would take ten times the size of the file as the arena."""
    tensors = [graphs.T((1, 40_000)), graphs.T((1, 40_000))]
    model = graphs.make_tflite(tensors, [graphs.Op("RELU", (0,), (1,))])
    x = np.full((1, 40_000), 5, np.int8)
    np.testing.assert_array_equal(run_tflm(model, x), x)


def test_a_failed_try_does_not_spoil_the_next_size() -> None:
    model = make_model_with_scaled_channels()
    inputs = np.random.default_rng(1).integers(-128, 128, (2, 8, 8, 3)).astype(np.int8)
    size = measure_tflm(model, inputs).arena_bytes
    assert size == 2592
    np.testing.assert_array_equal(run_tflm(model, inputs, size), run_tflm(model, inputs))


def test_the_resolver_has_every_operator_once(model) -> None:
    used = list_operators(read_graph(model))
    text = render_model_ops_h(read_graph(model), len(model), 4096, "1")
    assert len(re.findall(r"resolver\.Add\w+\(\)", text)) == len(used)
    assert f"MicroMutableOpResolver<{len(used)}>" in text and "kModelArenaBytes = 4096" in text
    assert "AddConv2D()" in text and "AddMaxPool2D()" in text and "AddSoftmax()" not in text


def test_error_names_an_operator_without_resolver_call() -> None:
    graph = OperatorGraph((("WHERE", (0,)),), (TensorKind("a", "INT8", False),))
    with pytest.raises(ExportError, match="no resolver call for WHERE"):
        render_model_ops_h(graph, 1, 1, "1")


def test_c_array_contains_every_byte_of_the_model() -> None:
    blob = bytes(range(40))
    text = render_model_data_c(blob)
    assert bytes(int(byte, 16) for byte in re.findall(r"0x([0-9a-f]{2}),", text)) == blob
    assert "model_data_bytes = 40" in text and "aligned(16)" in text


def test_bytes_that_are_not_a_model_are_refused() -> None:
    with pytest.raises(ExportError, match=r"refuses|in an arena"):
        run_tflm(b"TFL3" * 10, np.zeros((1, 2), np.int8))


def test_model_that_needs_too_large_an_arena_is_refused(model, monkeypatch) -> None:
    """The limit is read by the process itself, so the test lowers the printed size instead."""
    run = tflm_runner.TflmRun(np.zeros((1, 2), np.int8), 0)
    monkeypatch.setattr(tflm_runner, "_run_child", lambda *arguments: run)
    with pytest.raises(ExportError, match=r"in an arena of up to 67,108,864 bytes; make the model smaller"):
        measure_tflm(model, np.zeros((1, 28, 28, 1), np.int8))


def test_operator_that_tflite_micro_refuses_is_named(graphs) -> None:
    """A slice of five axes is valid for the generated C, and not for tflite-micro."""
    shape = (1, 2, 2, 2, 2)
    tensors = [
        graphs.T(shape),
        *(graphs.T((5,), data=np.array(values, np.int32)) for values in ((0,) * 5, shape, (1,) * 5)),
        graphs.T(shape),
    ]
    masks = {"beginMask": 0, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0}
    slicing = graphs.Op(
        name="STRIDED_SLICE",
        inputs=(0, 1, 2, 3),
        outputs=(4,),
        options=masks,
        options_class="StridedSlice",
        version=4,
    )
    model, inputs = graphs.make_tflite(tensors, [slicing]), np.zeros((1, *shape[1:]), np.int8)
    for run in (run_tflm, measure_tflm):
        with pytest.raises(ExportError, match=r"refuses the model: Node STRIDED_SLICE .*should not exceed 4"):
            run(model, inputs)


def test_reason_without_an_operator_is_the_last_line() -> None:
    assert find_reason("Traceback\n  RuntimeError: no arena \n\n") == "RuntimeError: no arena"
    assert find_reason("Node PAD (number 0) failed") == "Node PAD (number 0) failed"
    assert find_reason(" \n") == ""

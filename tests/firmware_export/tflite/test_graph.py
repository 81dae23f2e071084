"""Forbidden operators in an exported model are reported with their layer."""

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.tflite.graph import OperatorGraph, TensorKind, check_integer, read_graph


def make_graph(*operators: tuple[str, str]) -> OperatorGraph:
    tensors = tuple(TensorKind(f"layer{i}", dtype, False) for i, (_, dtype) in enumerate(operators))
    return OperatorGraph(tuple((name, (i,)) for i, (name, _) in enumerate(operators)), tensors)


def test_integer_operators_are_allowed() -> None:
    check_integer(make_graph(("CONV_2D", "INT8"), ("ADD", "INT8")))


def test_forbidden_operators_are_named() -> None:
    with pytest.raises(ExportError, match=r"SUM \(layer1\).*ADD"):
        check_integer(make_graph(("CONV_2D", "INT8"), ("SUM", "INT8")))
    with pytest.raises(ExportError, match=r"BATCH_MATMUL \(layer0\)"):
        check_integer(make_graph(("BATCH_MATMUL", "INT8")))


def test_error_names_the_float_operator_and_not_its_neighbours() -> None:
    with pytest.raises(ExportError, match=r"SQUARED_DIFFERENCE \(layer1\)"):
        check_integer(
            make_graph(("DEQUANTIZE", "FLOAT32"), ("SQUARED_DIFFERENCE", "FLOAT32"), ("QUANTIZE", "INT8"))
        )
    with pytest.raises(ExportError, match=r"DEQUANTIZE \(layer0\)"):
        check_integer(make_graph(("DEQUANTIZE", "FLOAT32")))


def test_bytes_without_tflite_identifier_are_refused() -> None:
    with pytest.raises(ExportError, match="TFL3"):
        read_graph(b"GIF89a" + b"\0" * 50)


def test_a_layer_without_an_int8_form_is_named() -> None:
    keras = pytest.importorskip("keras")
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.template import build_template
    from edgefl.program.plan.fill import fill_template
    from firmware_export.quantize.quantize import RECIPES, quantize
    from firmware_export.quantize.ranges import record_extremes

    layers = keras.layers
    parts = [
        layers.Conv2D(4, 3),
        layers.Activation("softplus", name="soft"),
        layers.Flatten(),
        layers.Dense(3),
    ]
    network = Network(keras.Sequential([keras.Input((6, 6, 1)), *parts]))
    template, bindings = build_template(of.predict_logits(network, 8))
    model = fill_template(template, bindings, network.read_weights())
    x = np.random.default_rng(0).random((20, 6, 6, 1), dtype=np.float32)
    with pytest.raises(ExportError, match=r"soft.*no int8 form"):
        quantize(model, record_extremes(model, x), RECIPES[0])

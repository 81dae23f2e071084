"""A model that cannot become C gives messages with operator, layer and remedy."""

import re
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.certificate.tflm import RESOLVER_METHODS
from firmware_export.codegen.c_layers import SUPPORTED_OPERATORS, WIDE_OPERATORS
from firmware_export.codegen.c_source import generate_c
from firmware_export.codegen.lint import lint
from firmware_export.tflite.quantized_model import read_quantized_model

ROOT = Path(__file__).parents[3]


def assert_refused(model, *texts) -> None:
    findings = lint(read_quantized_model(model))
    assert findings and all(text in str(findings[0]) for text in texts), findings
    with pytest.raises(ExportError, match="cannot become C"):
        generate_c(model)


def make_unary_model(graphs, kind, source=None, output=None, version=1):
    tensors = [source or graphs.T((1, 4), 0.1, 0), output or graphs.T((1, 4), 0.1, 0, name="block/layer")]
    return graphs.make_tflite(tensors, [graphs.Op(kind, (0,), (1,), version=version)])


def test_supported_operators_are_on_their_page_and_in_tflite_micro() -> None:
    page = (ROOT / "docs/how-to/export-any-model.md").read_text()
    table = page.partition("## Operators")[2].partition("\n\n")[2].partition("\n\n")[0]
    resolved = {"CALL_ONCE", "VAR_HANDLE"}  # the reader of the model leaves them out
    assert set(re.findall(r"`([A-Z0-9_]+)`", table)) == SUPPORTED_OPERATORS | resolved, (
        "docs/how-to/export-any-model.md lists other operators than BUILDERS; correct its table"
    )
    assert RESOLVER_METHODS.keys() >= SUPPORTED_OPERATORS


def test_operators_of_16_bits_are_on_their_page() -> None:
    page = (ROOT / "docs/how-to/export-any-model.md").read_text()
    table = page.partition("## 16-bit activations")[2].partition("| group |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([A-Z0-9_]+)`", table)) == WIDE_OPERATORS


def test_operators_without_a_kernel_are_refused(graphs) -> None:
    assert_refused(make_unary_model(graphs, "GELU"), "GELU", "block/layer", "ReLU")
    assert_refused(make_unary_model(graphs, "SUM"), "SUM", "block/layer", "ADD")
    assert_refused(make_unary_model(graphs, "COS"), "COS", "block/layer", "Export any int8 model")
    assert_refused(make_unary_model(graphs, "LOGISTIC", version=6), "LOGISTIC", "version 6", "update")


def test_float_tensors_and_batches_are_refused(graphs) -> None:
    assert_refused(
        make_unary_model(
            graphs, "LOGISTIC", graphs.T((1, 4), kind="FLOAT32"), graphs.T((1, 4), kind="FLOAT32")
        ),
        "FLOAT32",
        "INT8",
    )
    assert_refused(make_unary_model(graphs, "QUANTIZE", graphs.T((1, 4), kind="FLOAT32")), "FLOAT32")
    assert_refused(
        make_unary_model(graphs, "LOGISTIC", graphs.T((2, 4)), graphs.T((2, 4), 1 / 256, -128)),
        "batch of one",
    )
    tensors = [graphs.T((1, 4)), graphs.T((4, 4), data=np.zeros((4, 4), np.float32)), graphs.T((1, 4))]
    assert_refused(
        graphs.make_tflite(
            tensors,
            [
                graphs.Op(
                    name="FULLY_CONNECTED",
                    inputs=(0, 1, -1),
                    outputs=(2,),
                    options={},
                    options_class="FullyConnected",
                )
            ],
        ),
        "FULLY_CONNECTED",
        "FLOAT32",
    )


def test_invalid_quantization_parameters_are_refused(graphs) -> None:
    with pytest.raises(ExportError, match=r"LOGISTIC \(p\) has zero point 0, expected -128"):
        generate_c(make_unary_model(graphs, "LOGISTIC", None, graphs.T((1, 4), 1 / 256, 0, name="p")))
    join = graphs.Op(
        name="CONCATENATION", inputs=(0, 0), outputs=(1,), options={"axis": 1}, options_class="Concatenation"
    )
    with pytest.raises(ExportError, match=r"the scales 0\.1 and 0\.2"):
        generate_c(graphs.make_tflite([graphs.T((1, 4), 0.1), graphs.T((1, 8), 0.2)], [join]))


def test_bias_that_overflows_is_refused(graphs) -> None:
    tensors = [
        graphs.T((1, 2), 0.1),
        graphs.T(shape=(1, 2), scales=1e-9, zero=0, data=np.ones((1, 2), np.int8)),
        graphs.T(shape=(1,), scales=[1e-10], zero=0, data=np.array([2**31 - 1], np.int32)),
        graphs.T((1, 1), 0.1, name="fc"),
    ]
    with pytest.raises(ExportError, match=r"FULLY_CONNECTED \(fc\) has a bias of 2147483647 in channel 0"):
        generate_c(
            graphs.make_tflite(
                tensors,
                [
                    graphs.Op(
                        name="FULLY_CONNECTED",
                        inputs=(0, 1, 2),
                        outputs=(3,),
                        options={},
                        options_class="FullyConnected",
                    )
                ],
            )
        )

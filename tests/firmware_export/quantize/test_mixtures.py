"""The int8 models of all mixtures on real data.

They have no forbidden operator, run in tflite-micro, and agree with the float models.
"""

import numpy as np
import pytest
from edgefl_export_tests_mixtures import MIXTURES  # conftest.py has loaded it

from firmware_export.tflite.graph import FORBIDDEN_OPERATORS, read_graph
from firmware_export.tflite.interpreter import MICRO_RUNTIME, load_tflite, run_samples


@pytest.fixture(scope="module", params=MIXTURES)
def made(request, mixture_of):
    return mixture_of(*request.param)


def test_int8_models_have_only_allowed_operators(made) -> None:
    graph = read_graph(made.model)
    assert not {name for name, _ in graph.operators} & FORBIDDEN_OPERATORS.keys()
    assert {tensor.dtype for tensor in graph.tensors} <= {"INT8", "INT32"}


def test_int8_models_agree_with_float_models(made) -> None:
    assert made.report.accuracy_float > (0.22 if made.data == "cifar10" else 0.5)
    assert made.report.accuracy_float - made.report.accuracy_int8 <= 0.015
    assert made.report.agreement > 0.95


def test_int8_models_agree_with_reference_kernels_in_tflite_micro(made) -> None:
    pytest.importorskip("tflite_micro")
    x = made.shard.x_test[:100]
    micro, _ = run_samples(load_tflite(made.model, MICRO_RUNTIME), x)
    reference, _ = run_samples(load_tflite(made.model, reference=True), x)
    assert micro.dtype == np.int8
    difference = np.abs(micro.astype(int) - reference).max(axis=1)
    assert (
        difference > 2
    ).mean() <= 0.01  # one step of a logit may be several steps of a probability if the softmax is steep
    assert difference.max() <= 4
    assert (micro.argmax(axis=1) == reference.argmax(axis=1)).mean() >= 0.97

"""Formulas for mixing experts, on real mixtures."""

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.interpreter import load_tflite, run_samples
from tests.benchmarks.firmware.mixing import measure_agreement, mix_logits, mix_outside

pytestmark = pytest.mark.slow  # the formulas are not in the product


@pytest.fixture(scope="module", params=["aem", "fedmix"])
def made(request, mixture_of):
    return mixture_of(request.param, "uci-har")


def test_mixing_outside_int8_is_close_to_float(made) -> None:
    """The sum of products in float is the mixture, so only the int8 gate and logits cause a difference."""
    x = made.shard.x_test[:60]
    expected, _ = run_samples(load_tflite(made.model_float), x)
    outside = mix_outside(made.model, x)
    np.testing.assert_allclose(outside.sum(axis=1), 1, atol=0.02)
    inside = (run_samples(load_tflite(made.model, reference=True), x)[0].astype(np.float32) + 128) / 256
    assert np.abs(outside - expected).mean() < 0.02
    assert outside.shape == inside.shape == expected.shape


def test_logit_mixture_has_no_softmax_of_experts(made) -> None:
    before, after = (read_graph(model) for model in (made.model_float, mix_logits(made.model_float)))
    experts = sum(name == "SOFTMAX" for name, _ in before.operators) - 1
    assert [name for name, _ in after.operators].count("SOFTMAX") == 1
    assert len(after.operators) == len(before.operators) - experts
    values, _ = run_samples(load_tflite(mix_logits(made.model_float)), made.shard.x_test[:10])
    assert values.min() < 0, "logits are no probabilities"


def test_template_formula_agrees_at_least_as_often_as_logits(made) -> None:
    agreement = measure_agreement(made.model_float, made.shard.x_train[:256], made.shard.x_test[:300])
    assert agreement.probabilities >= agreement.logits - 0.01
    assert agreement.outside >= agreement.probabilities - 0.01


def test_model_without_mixed_probabilities_is_refused(mixture_of) -> None:
    with pytest.raises(ExportError, match="0 gates and 0 experts"):
        mix_logits(mixture_of("pfl-mfe", "uci-har").model_float)

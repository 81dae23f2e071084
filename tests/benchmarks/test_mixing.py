"""Formulas of mixing: by hand on a mixture whose parts are known, and on real ones."""

import numpy as np
import pytest

from edgefl.errors import ExportError
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.interpreter import load_tflite, run_samples
from tests.benchmarks.firmware.mixing import agreement, mix_logits, mixed_outside


@pytest.fixture(scope="module", params=["aem", "fedmix"])
def made(request, mixture_of):
    return mixture_of(request.param, "uci-har")


def test_outside_is_nearest_to_float(made) -> None:
    """In float the sum of products is the mixture itself; what is left are the int8 gate and logits."""
    x = made.shard.x_test[:60]
    expected, _ = run_samples(load_tflite(made.model_float), x)
    outside = mixed_outside(made.model, x)
    np.testing.assert_allclose(outside.sum(axis=1), 1, atol=0.02)
    inside = (run_samples(load_tflite(made.model, reference=True), x)[0].astype(np.float32) + 128) / 256
    assert np.abs(outside - expected).mean() < 0.02
    assert outside.shape == inside.shape == expected.shape


def test_logits_leave_the_experts_softmax_out(made) -> None:
    before, after = (read_graph(model) for model in (made.model_float, mix_logits(made.model_float)))
    experts = sum(name == "SOFTMAX" for name, _ in before.operators) - 1
    assert [name for name, _ in after.operators].count("SOFTMAX") == 1
    assert len(after.operators) == len(before.operators) - experts
    values, _ = run_samples(load_tflite(mix_logits(made.model_float)), made.shard.x_test[:10])
    assert values.min() < 0, "logits are no probabilities"


def test_the_templates_formula_is_not_the_worst(made) -> None:
    found = agreement(made.model_float, made.shard.x_train[:256], made.shard.x_test[:300])
    assert found.probabilities >= found.logits - 0.01
    assert found.outside >= found.probabilities - 0.01


def test_a_model_that_mixes_otherwise(mixture_of) -> None:
    with pytest.raises(ExportError, match="0 gates and 0 experts"):
        mix_logits(mixture_of("pfl-mfe", "uci-har").model_float)

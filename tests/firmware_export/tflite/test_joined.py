"""Several float models joined into one, against their own outputs."""

import numpy as np
import pytest

from edgefl.base.errors import ModelFileError
from edgefl.program.plan.fill import fill_template
from edgefl.program.plan.tflite import read_subgraph
from firmware_export.tflite.interpreter import load_tflite, run_samples
from firmware_export.tflite.joined import JoinedModel, join_models


@pytest.fixture(scope="module")
def models(digits):
    """Return the mixture of the fixture, whose outputs are logits, and one with other weights."""
    rng = np.random.default_rng(0)
    other = {
        name: (array + rng.normal(0, 0.05, array.shape)).astype(np.float32)
        for name, array in digits.mixture.weights.items()
    }
    template = digits.plan.template, digits.plan.spec.bindings
    return [fill_template(*template, weights) for weights in (digits.mixture.weights, other)]


def compute_softmax(logits):
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def run(model, x):
    return run_samples(load_tflite(model), x)[0]


def test_output_is_the_weighted_sum_of_probabilities(digits, models):
    x = digits.shard.x_test[:20]
    first, second = (compute_softmax(run(model, x)) for model in models)
    joined = join_models([JoinedModel(models[0], 0.7, True), JoinedModel(models[1], 0.3, True)])
    np.testing.assert_allclose(run(joined, x), 0.7 * first + 0.3 * second, atol=1e-6)


def test_probabilities_are_not_normalized_again(digits, models):
    """A blend is itself a model that gives probabilities."""
    x = digits.shard.x_test[:20]
    inner = join_models([JoinedModel(model, 0.5, True) for model in models])
    joined = join_models([JoinedModel(models[0], 0.2, True), JoinedModel(inner, 0.8, False)])
    expected = 0.2 * compute_softmax(run(models[0], x)) + 0.8 * run(inner, x)
    np.testing.assert_allclose(run(joined, x), expected, atol=1e-6)


def test_each_tensor_has_a_name_of_its_own(models):
    """The quantizer identifies tensors by their names."""
    joined = join_models([JoinedModel(models[0], 1 / 3, True)] * 3)
    graph = read_subgraph(joined)
    names = [tensor.name for tensor in graph.tensors]
    assert len(set(names)) == len(names)
    assert (len(graph.inputs), len(graph.outputs)) == (1, 1)
    used = {index for operator in graph.operators for index in (*operator.inputs, *operator.outputs)}
    assert used == set(range(len(names))), "the input of each member is the one of the first"
    assert len(graph.operators) == 3 * len(read_subgraph(models[0]).operators) + 3 + 3 + 2


def test_damaged_member_is_an_error(models):
    with pytest.raises(ModelFileError, match="a member of the blend"):
        join_models([JoinedModel(models[0], 0.5, True), JoinedModel(models[1][:100], 0.5, True)])

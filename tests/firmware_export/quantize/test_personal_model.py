"""The members of a blend that an export takes."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import PlanError
from edgefl.base.types import Peer
from edgefl.learning.client.blend import BlendMember, predict_outputs
from edgefl.program.learner.litert import LiteRTLearner
from firmware_export.quantize.personal_model import (
    choose_exported_members,
    list_exported_members,
    make_float_model,
)
from firmware_export.tflite.interpreter import load_tflite, run_samples

MEMBERS = [
    BlendMember("federated", Peer("predict", {}), 0.5),
    BlendMember("local", Peer("predict", {}), 0.3),
    BlendMember("fine_tuned", Peer("predict", {}), 0.2),
]


@pytest.mark.parametrize(
    ("single", "count", "expected"),
    [
        ("local", 1, ["local"]),
        ("", 1, ["federated"]),
        ("mixture", 1, ["federated"]),
        ("local", 2, ["federated", "local"]),
        ("fine_tuned", 3, ["federated", "local", "fine_tuned"]),
        ("local", 9, ["federated", "local", "fine_tuned"]),
    ],
)
def test_one_member_is_the_single_model_and_several_have_the_largest_shares(single, count, expected):
    assert [member.name for member in choose_exported_members(MEMBERS, single, count)] == expected


@pytest.mark.parametrize("kind", ["blend", pytest.param("blend-of-mixture", marks=pytest.mark.slow)])
def test_exported_model_computes_what_the_device_computes(kind, mixture_of):
    made = mixture_of(kind, "uci-har")
    x = made.shard.x_test[:50]
    model = make_float_model(made.plan, made.mixture).model
    outputs, _ = run_samples(load_tflite(model), x)
    expected = predict_outputs(
        LiteRTLearner(made.plan), Peer(made.mixture.signature, made.mixture.weights), x
    )
    np.testing.assert_allclose(np.log(outputs + 1e-7), expected, atol=1e-4)
    names = list_exported_members(made.plan, made.mixture)
    assert [len(each) for each in names] == list(range(1, 4 + (kind != "blend")))
    assert names[0] == (made.mixture.single,)


def test_one_member_has_the_size_of_one_model(mixture_of):
    made = mixture_of("blend", "uci-har")
    single = make_float_model(made.plan, made.mixture, 1).model
    assert len(make_float_model(made.plan, made.mixture, 2).model) > 1.9 * len(single)
    outputs, _ = run_samples(load_tflite(single), made.shard.x_test[:50])
    local = made.mixture.peers[made.mixture.single]
    expected = LiteRTLearner(made.plan).predict(local.signature, local.weights, {"x": made.shard.x_test[:50]})
    assert (outputs.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.9


def test_blend_of_another_plan_is_an_error(mixture_of, digits):
    made = mixture_of("blend", "uci-har")
    with pytest.raises(PlanError, match="expected a blend of the same plan; copy"):
        make_float_model(digits.plan, made.mixture)
    assert list_exported_members(made.plan, replace(digits.mixture)) == ()

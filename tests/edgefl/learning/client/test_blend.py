"""The blend of a client's models: its members, its outputs, and what a client ships."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import PlanError
from edgefl.base.types import Mixture, Peer, Shard
from edgefl.learning.client.blend import (
    choose_members,
    find_gated_weights,
    fit_member_shares,
    join_members,
    predict_outputs,
    split_members,
    with_fitted_bias,
)
from edgefl.program.plan.spec import PREDICT_BLEND, PREDICT_MIXTURE, PREDICT_SINGLE
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

LEARNER = SoftmaxLearner(softmax_spec("fedavg", inputs=2, features=2, classes=2))
REGRESSION = SoftmaxLearner(replace(LEARNER.spec, task={"kind": "regression", "outputs": 2}))
X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], np.float32)
Y = np.array([0, 1, 1, 0])
SHARD = Shard(x_train=X, y_train=Y, x_test=X, y_test=Y, num_classes=2)


def make_model(odds, signature=PREDICT_SINGLE):
    """Return a model that predicts class 0 with the probability odds / (odds + 1) for each sample."""
    weights = {
        "trunk/kernel": np.eye(2, dtype=np.float32),
        "head/kernel": np.zeros((2, 2), np.float32),
        "head/bias": np.array([np.log(odds), 0], np.float32),
    }
    return Peer(signature, weights)


def test_outputs_are_the_weighted_probabilities():
    """The probabilities of class 0 are .75 and .2, so the blend has .8 * .75 + .2 * .2 = .64."""
    blend = join_members(
        {"local": make_model(3), "federated": make_model(0.25)}, {"local": 0.8, "federated": 0.2}
    )
    assert blend.signature == PREDICT_BLEND
    p = np.exp(predict_outputs(LEARNER, blend, X))
    np.testing.assert_allclose(p, [[0.64, 0.36]] * 4, atol=1e-6)


def make_linear_model(offset):
    """Return a model of `REGRESSION` that predicts both values of a sample plus an offset."""
    weights = {
        "trunk/kernel": np.eye(2, dtype=np.float32),
        "head/kernel": np.eye(2, dtype=np.float32),
        "head/bias": np.array([offset, offset], np.float32),
    }
    return Peer(PREDICT_SINGLE, weights)


def test_outputs_of_a_regression_are_the_weighted_predictions():
    """.75 * (x + 1) + .25 * (x - 2) = x + .25."""
    shares = {"local": 0.75, "federated": 0.25}
    blend = join_members({"local": make_linear_model(1), "federated": make_linear_model(-2)}, shares)
    np.testing.assert_allclose(predict_outputs(REGRESSION, blend, X), X + 0.25, atol=1e-6)


def test_federated_model_of_a_regression_gets_an_offset():
    """Its predictions are 5 too high for each of four samples: the bias changes by -5 * 4 / (4 + 1)."""
    shard = Shard(x_train=X, y_train=X, x_test=X, y_test=X, num_classes=2)
    models = {"local": make_linear_model(1), "federated": make_linear_model(5)}
    members = choose_members(REGRESSION, models, shard)
    np.testing.assert_allclose(members["federated"].weights["head/bias"], [1, 1], atol=1e-6)
    np.testing.assert_allclose(members["local"].weights["head/bias"], [1, 1])


def test_shares_of_a_regression_follow_the_errors():
    """The first member is exact, so each of four samples is its own: (4 + 1) / (4 + 2)."""
    members = {"local": make_linear_model(0), "federated": make_linear_model(3)}
    shares = fit_member_shares(REGRESSION, members, X, X, None)
    assert shares == {"local": pytest.approx(5 / 6), "federated": pytest.approx(1 / 6)}


def test_shares_of_missing_members_go_to_the_others():
    """A model whose training diverged is no member: .6 and .2 become .75 and .25."""
    shares = {"local": 0.6, "fine_tuned": 0.2, "federated": 0.2}
    blend = join_members({"local": make_model(3), "federated": make_model(1)}, shares)
    members = split_members(LEARNER.spec, blend.weights)
    assert [(member.name, member.share) for member in members] == [
        ("local", pytest.approx(0.75)),
        ("federated", pytest.approx(0.25)),
    ]
    np.testing.assert_array_equal(members[0].peer.weights["head/bias"], make_model(3).weights["head/bias"])


def test_members_may_be_mixtures():
    spec = softmax_spec("pfl-mfe", inputs=2, features=2, classes=2)
    mixture = {
        each.name: np.ones(each.shape, np.float32) for each in spec.find_signature(PREDICT_MIXTURE).frozen
    }
    members = {"local": make_model(3), "mixture": Peer(PREDICT_MIXTURE, mixture)}
    local, other = split_members(spec, join_members(members, {"local": 0.6, "mixture": 0.4}).weights)
    assert (local.peer.signature, other.peer.signature) == (PREDICT_SINGLE, PREDICT_MIXTURE)
    assert other.peer.weights.keys() == mixture.keys()


@pytest.mark.parametrize("shares", [{}, {"mixture": 1.0}, {"local": 0.0}])
def test_members_without_shares_have_equal_ones(shares):
    blend = join_members({"local": make_model(3), "federated": make_model(1)}, shares)
    assert [member.share for member in split_members(LEARNER.spec, blend.weights)] == [0.5, 0.5]


def test_a_member_without_a_share_is_left_out():
    blend = join_members({"local": make_model(3), "federated": make_model(1)}, {"local": 0.7})
    assert [(each.name, each.share) for each in split_members(LEARNER.spec, blend.weights)] == [("local", 1)]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (
            {"share/local": np.ones(1, np.float32)},
            "the member local of this blend does not have the weights of a model of the plan",
        ),
        ({"local/head/bias": np.ones(2, np.float32)}, "no members, expected shares named share/MEMBER"),
    ],
)
def test_weights_of_another_plan_are_an_error(weights, expected):
    with pytest.raises(PlanError, match=expected):
        split_members(LEARNER.spec, weights)


def test_fitted_bias_knows_the_classes_of_a_client():
    """The model has equal logits, and a client has class 1 alone: see `test_shares` for the value .741."""
    labels = np.ones(4, np.int64)
    fitted = with_fitted_bias(LEARNER, make_model(1), X, labels)
    np.testing.assert_allclose(fitted.weights["head/bias"], [-0.741, 0.741], atol=1e-3)
    assert predict_outputs(LEARNER, fitted, X).argmax(axis=1).tolist() == [1, 1, 1, 1]


def test_a_bias_that_is_not_added_to_the_outputs_stays():
    """A model may scale its logits, and a fitted bias would then be wrong by that factor."""

    class ScalingLearner(SoftmaxLearner):
        def predict(self, signature, weights, data):
            return 3 * super().predict(signature, weights, data)

    model = make_model(1)
    fitted = with_fitted_bias(ScalingLearner(LEARNER.spec), model, X, np.ones(4, np.int64))
    assert fitted is model
    without = Peer(PREDICT_SINGLE, {name: a for name, a in model.weights.items() if name != "head/bias"})
    assert with_fitted_bias(LEARNER, without, X, Y) is without


class ScaledRegression(SoftmaxLearner):
    """A regression whose output is ten times the output of the layer with the bias."""

    def predict(self, signature, weights, data):
        return 10 * super().predict(signature, weights, data)


class ClippedRegression(SoftmaxLearner):
    """A regression whose outputs are not negative."""

    def predict(self, signature, weights, data):
        return np.maximum(0, super().predict(signature, weights, data))


def test_bias_before_another_factor_stays_in_a_regression_with_one_output():
    """A fitted bias would be wrong by the factor."""
    spec = softmax_spec("fedavg", inputs=2, features=2, classes=1)
    weights = {
        "trunk/kernel": np.eye(2, dtype=np.float32),
        "head/kernel": np.ones((2, 1), np.float32),
        "head/bias": np.float32([1]),
    }
    model = Peer(PREDICT_SINGLE, weights)
    learner = ScaledRegression(replace(spec, task={"kind": "regression", "outputs": 1}))
    assert with_fitted_bias(learner, model, X, np.zeros((4, 1), np.float32)) is model


def test_bias_before_an_activation_stays():
    """A positive step of the bias changes each output by as much, a negative one does not."""
    model = make_linear_model(1)
    assert with_fitted_bias(ClippedRegression(REGRESSION.spec), model, X, X) is model


def test_outliers_do_not_move_the_offset_of_absolute_errors():
    """Three targets are the predictions plus 2, and one is 1,000 above. With one 0, the median error is 2."""
    spec = replace(REGRESSION.spec, task={"kind": "regression", "loss": "mae", "outputs": 2})
    targets = X + np.float32([[2], [2], [2], [1000]])
    fitted = with_fitted_bias(SoftmaxLearner(spec), make_linear_model(0), X, targets)
    np.testing.assert_allclose(fitted.weights["head/bias"], [2, 2], atol=1e-5)


def test_members_are_different_models_with_finite_outputs():
    models = {
        "mixture": make_model(2, PREDICT_MIXTURE),
        "federated": make_model(2),
        "local": make_model(3),
        "fine_tuned": make_model(np.nan),
    }
    assert list(choose_members(LEARNER, models, SHARD)) == ["local", "federated"]
    models["mixture"] = make_model(2 + 1e-6, PREDICT_MIXTURE)  # rounded in another order
    assert list(choose_members(LEARNER, models, SHARD)) == ["local", "federated"]
    models["mixture"] = make_model(2.001, PREDICT_MIXTURE)
    assert list(choose_members(LEARNER, models, SHARD)) == ["local", "federated", "mixture"]
    models["federated"] = make_model(np.inf)
    assert list(choose_members(LEARNER, models, SHARD)) == ["local", "mixture"]
    models["federated"] = make_model(2)
    models["mixture"] = make_model(4, PREDICT_MIXTURE)
    assert list(choose_members(LEARNER, models, SHARD)) == ["local", "federated", "mixture"]
    models["federated"] = make_model(2, PREDICT_MIXTURE)
    assert list(choose_members(LEARNER, models, SHARD)) == ["local", "mixture"]
    alone = {"local": make_model(3), "mixture": make_model(4, PREDICT_MIXTURE)}
    assert choose_members(LEARNER, alone, SHARD) == {}
    assert fit_member_shares(LEARNER, {}, X, Y, None) == {}


def test_a_model_that_fails_on_some_samples_is_no_member():
    """The trunk's weights are so large that the last training sample overflows."""
    large = make_model(3)
    large.weights["trunk/kernel"][1, 1] = 3e38
    large.weights["head/kernel"][1, 1] = 3e38
    shard = Shard(
        x_train=np.float32([[1, 0], [1, 0], [0, 1]]), y_train=Y[:3], x_test=X, y_test=Y, num_classes=2
    )
    with np.errstate(over="ignore", invalid="ignore"):
        members = choose_members(LEARNER, {"local": large, "federated": make_model(2)}, shard)
    assert list(members) == ["federated"]


def test_bias_is_fitted_to_samples_of_all_classes_of_a_sorted_shard():
    """2,000 samples of class 0 come before 2,000 of class 1, and the model needs no bias."""
    x = np.zeros((4000, 2), np.float32)
    fitted = with_fitted_bias(LEARNER, make_model(1), x, np.repeat([0, 1], 2000))
    np.testing.assert_allclose(fitted.weights["head/bias"], 0, atol=1e-3)


def test_large_logits_do_not_hide_a_bias_without_effect():
    class DeafLearner(SoftmaxLearner):
        def predict(self, signature, weights, data):
            return super().predict(signature, {**weights, "head/bias": np.float32([5000, 0])}, data)

    model = make_model(1)
    assert with_fitted_bias(DeafLearner(LEARNER.spec), model, X, np.ones(4, np.int64)) is model


def test_federated_model_with_untrained_layers_is_no_member():
    learner = SoftmaxLearner(softmax_spec("fedper", inputs=2, features=2, classes=2))
    models = {"local": make_model(3), "federated": make_model(2), "fine_tuned": make_model(4)}
    assert list(choose_members(learner, models, SHARD)) == ["local", "fine_tuned"]


def test_output_bias_is_the_one_of_the_last_layer_of_the_plan():
    """FedPer's federated model lists the weights of its head first."""
    reordered = Peer(PREDICT_SINGLE, dict(reversed(make_model(1).weights.items())))
    members = choose_members(LEARNER, {"local": make_model(3), "federated": reordered}, SHARD)
    assert list(members["federated"].weights) == [
        w.name for w in LEARNER.spec.find_signature(PREDICT_SINGLE).frozen
    ]


@pytest.mark.parametrize(
    "share", [np.float32([0]), np.float32([-1]), np.float32([np.nan]), np.zeros(0, np.float32)]
)
def test_share_that_is_no_share_is_an_error(share):
    weights = {**join_members({"local": make_model(3)}, {}).weights, "share/local": share}
    with pytest.raises(PlanError, match="a share above 0"):
        split_members(LEARNER.spec, weights)


def test_member_with_an_unknown_name_is_an_error():
    weights = join_members({"local": make_model(3)}, {}).weights
    renamed = {name.replace("local", "other"): array for name, array in weights.items()}
    with pytest.raises(PlanError, match="the member other of this blend"):
        split_members(LEARNER.spec, renamed)


def test_gated_weights_are_those_of_the_mixture_in_a_blend():
    blend = join_members({"local": make_model(3), "federated": make_model(1)}, {})
    peers = {"mixture": make_model(7, PREDICT_MIXTURE)}
    mixture = Mixture(weights=blend.weights, peers=peers, signature=PREDICT_BLEND)
    assert find_gated_weights(mixture) is peers["mixture"].weights
    single = Mixture(weights=peers["mixture"].weights, peers=peers)
    assert find_gated_weights(single) is single.weights

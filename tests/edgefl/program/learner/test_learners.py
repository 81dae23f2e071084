"""One test suite for the interface `Learner` on LiteRT, Keras and numpy.

LiteRT and Keras give equal numbers.
"""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import DataError, PlanError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Shard
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.program.learner import evaluate
from edgefl.program.learner.litert import LiteRTLearner
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


@pytest.fixture(scope="session")
def litert(tiny):
    return LiteRTLearner(tiny[0])


@pytest.fixture(scope="session")
def keras_learner(tiny):
    from edgefl.learning.algorithms.plans import make_keras_learner

    return make_keras_learner(tiny[0].spec)


@pytest.fixture(params=["litert", "keras_learner", "numpy"])
def case(request, tiny, digits):
    """Return (learner, initial weights, x, y)."""
    x, y = digits
    if request.param != "numpy":
        return request.getfixturevalue(request.param), tiny[1], x, y
    learner = SoftmaxLearner(softmax_spec("pfl-mfe", inputs=64, features=16, classes=10))
    rng = np.random.default_rng(1)
    return (
        learner,
        {s.name: rng.normal(0, 0.1, s.shape).astype(np.float32) for s in learner.spec.weights},
        x.reshape(len(x), -1),
        y,
    )


def test_training_improves_accuracy_and_changes_no_argument(case):
    learner, weights, x, y = case
    before = {name: array.copy() for name, array in weights.items()}
    start = evaluate(learner, "predict", weights, x, y)
    trained, loss = learner.fit(
        "train", weights, {"x": x}, y, epochs=5, rng=derive_rng(1, 1), hyper={"learning_rate": 0.1}
    )
    end = evaluate(learner, "predict", {**weights, **trained}, x, y)
    assert end.accuracy > max(0.6, start.accuracy)
    assert loss < start.loss
    assert end.num_samples == len(y)
    for name, array in weights.items():
        np.testing.assert_array_equal(array, before[name])


def test_same_seed_gives_the_same_bits(case):
    learner, weights, x, y = case
    first, second, other = (
        learner.fit("train", weights, {"x": x[:50]}, y[:50], epochs=1, rng=derive_rng(seed, 1))[0]
        for seed in (1, 1, 2)
    )
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)


def test_epochs_in_several_calls_with_slots_give_the_bits_of_one_call(case):
    learner, weights, x, y = case
    hyper = {"learning_rate": 0.1, "momentum": 0.9}
    rng = derive_rng(1, 1)
    model, slots = weights, {}
    for _ in range(3):
        trained, _ = learner.fit(
            "train", model, {"x": x[:50]}, y[:50], epochs=1, rng=rng, hyper=hyper, slots=slots
        )
        model = {**model, **trained}
    whole, _ = learner.fit(
        "train", weights, {"x": x[:50]}, y[:50], epochs=3, rng=derive_rng(1, 1), hyper=hyper
    )
    assert set(slots) == {spec.name for spec in learner.spec.find_signature("train").slots} != set()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, model[name])
    with pytest.raises(PlanError, match="is missing"):
        learner.fit("train", model, {"x": x}, y, epochs=1, rng=rng, slots={"other": np.zeros(1, np.float32)})


def test_training_ends_with_the_first_epoch_whose_loss_is_low_enough(case):
    """The result and the next draw are those of a training of as many epochs."""
    learner, weights, x, y = case

    def fit(epochs, **options):
        rng = derive_rng(1, 1)
        hyper = {"learning_rate": 0.1, "momentum": 0.9}
        trained, loss = learner.fit(
            "train", weights, {"x": x[:50]}, y[:50], epochs=epochs, rng=rng, hyper=hyper, **options
        )
        return {name: array.tobytes() for name, array in trained.items()}, loss, rng.random()

    losses = [fit(count)[1] for count in (1, 2, 3)]
    lowest = losses.index(min(losses[:2]))
    assert fit(3, final_loss=losses[lowest]) == fit(lowest + 1)
    assert fit(3, final_loss=min(losses) / 2) == fit(3)
    assert fit(3, final_loss=max(losses), least_epochs=2) == fit(2)
    assert fit(3, final_loss=max(losses), least_epochs=9) == fit(3)


def test_number_of_threads_does_not_change_results(tiny, digits):
    """A device uses more threads than the simulator. Both must learn the same."""
    (plan, weights), (x, y) = tiny[:2], digits
    results = [
        LiteRTLearner(plan, threads).fit("train", weights, {"x": x}, y, epochs=2, rng=derive_rng(1, 1))
        for threads in (1, 2, 4)
    ]
    for trained, loss in results[1:]:
        assert loss == results[0][1]
        assert all(np.array_equal(trained[name], results[0][0][name]) for name in trained)


def test_zero_epochs_change_nothing(case):
    learner, weights, x, y = case
    trained, _ = learner.fit("train", weights, {"x": x[:5]}, y[:5], epochs=0, rng=derive_rng(1, 1))
    assert all(np.array_equal(trained[name], weights[name]) for name in trained)


def test_partial_batches_predict_like_full_batches(case):
    learner, weights, x, _ = case
    whole = learner.predict("predict", weights, {"x": x[:100]})
    parts = [learner.predict("predict", weights, {"x": x[:100][i : i + 7]}) for i in range(0, 100, 7)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-5, atol=1e-5)


def test_padding_samples_do_not_count(case):
    """With one sample in a batch of 8, the mean loss is the loss of this sample."""
    learner, weights, x, y = case
    _, loss = learner.fit(
        "train_head",
        weights,
        {"features": learner.predict("features", weights, {"x": x[:1]})},
        y[:1],
        epochs=1,
        rng=derive_rng(1, 1),
    )
    alone = evaluate(learner, "predict", weights, x[:1], y[:1]).loss
    # With dropout, the compiled losses vary.
    assert loss == pytest.approx(alone, rel=0.5 if learner.name != "numpy" else 1e-5)


def test_head_on_features_matches_the_whole_model(case):
    learner, weights, x, _ = case
    features = learner.predict("features", weights, {"x": x[:30]})
    np.testing.assert_allclose(
        learner.predict("predict_head", weights, {"features": features}),
        learner.predict("predict", weights, {"x": x[:30]}),
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda w, d, y: (w, {"x": d["x"][:, :4]}, y), DataError, "expected"),
        (lambda w, d, y: (w, {"x": d["x"][:0]}, y[:0]), DataError, "no samples"),
        (lambda w, d, y: (w, {"x": d["x"] * np.float32("nan")}, y), DataError, "NaN"),
        (lambda w, d, y: (w, d, y[:3]), DataError, "labels"),
        (lambda w, d, y: (w, {"z": d["x"]}, y), DataError, "expected data 'x'"),
        (lambda w, d, y: ({n: a[:1] for n, a in w.items()}, d, y), PlanError, "another plan"),
        (lambda w, d, y: (dict(list(w.items())[1:]), d, y), PlanError, "missing"),
    ],
)
def test_bad_input_is_a_clear_error(case, change, error, message):
    learner, weights, x, y = case
    bad, data, labels = change(weights, {"x": x[:20]}, y[:20])
    with pytest.raises(error, match=message):
        learner.fit("train", bad, data, labels, epochs=1, rng=derive_rng(1, 1))


def test_divergence_is_an_error_not_an_update(case):
    learner, weights, x, y = case
    with pytest.raises(DataError, match="lower the learning rate"):
        learner.fit(
            "train",
            weights,
            {"x": x * np.float32(1e20)},
            y,
            epochs=2,
            rng=derive_rng(1, 1),
            hyper={"learning_rate": 1e20},
        )


def test_error_for_unknown_signature_lists_the_others(case):
    learner, weights, x, _ = case
    with pytest.raises(PlanError, match="it has train"):
        learner.predict("predictt", weights, {"x": x})


def test_litert_trains_like_keras(litert, keras_learner, tiny, digits):
    """All weights match to 1e-5 after 50 steps with dropout and momentum."""
    (x, y), (_, weights) = digits, tiny
    results = [
        learner.fit("train", weights, {"x": x}, y, epochs=1, rng=derive_rng(3, 1))
        for learner in (litert, keras_learner)
    ]
    assert results[0][1] == pytest.approx(results[1][1], abs=1e-5)
    for name in weights:
        np.testing.assert_allclose(results[0][0][name], results[1][0][name], atol=1e-5, err_msg=name)


def test_algorithm_satisfies_the_laws_on_litert(litert, tiny, tiny_config, digits):
    x, y = digits
    shards = {
        f"pi-{i}": Shard(
            x_train=x[i::4][:40],
            y_train=y[i::4][:40],
            x_test=x[i::4][40:60],
            y_test=y[i::4][40:60],
            num_classes=10,
        )
        for i in range(3)
    }
    check_algorithm(
        lambda learner: make_algorithm("pfl-mfe", learner, tiny_config.options), litert, tiny[1], shards
    )


def test_keras_learner_refuses_a_model_of_another_plan(tiny):
    from edgefl.learning.algorithms.plans import make_keras_learner

    with pytest.raises(PlanError, match="other weights than the plan"):
        make_keras_learner(replace(tiny[0].spec, model="softmax", model_options={}))

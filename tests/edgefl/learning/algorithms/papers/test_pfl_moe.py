"""PFL-MoE: the gate's step by hand, the split, and the client result of each kind."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import AugmentationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, ServerState, Shard
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.mixtures.gate import split_gate_samples
from edgefl.learning.algorithms.mixtures.gate_utilization import predict_gate_weights
from edgefl.program.learner import evaluate
from tests.support.numpy_learner.recording import RecordingLearner
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def test_gate_step_by_hand():
    """Oracle 13: global (2,0,0), local (0,2,0), g = .25, y = 0.

    The cross-entropy is 1.464369, and its derivative by the gate's logit is -.523990.
    """
    learner = SoftmaxLearner(softmax_spec("pfl-mfe", inputs=4, features=1, classes=3, batch_size=1))
    start = {"gate/kernel": np.zeros((1, 1), np.float32), "gate/bias": np.array([np.log(1 / 3)], np.float32)}
    data = {
        "gate_input": np.ones((1, 1), np.float32),
        "logits": np.array([[[2, 0, 0], [0, 2, 0]]], np.float32),
    }
    gate, loss = learner.fit(
        "train_gate", start, data, np.array([0]), epochs=1, rng=derive_rng(1, 1), hyper={"learning_rate": 1.0}
    )
    assert loss == pytest.approx(1.464369, abs=1e-6)
    assert start["gate/bias"][0] - gate["gate/bias"][0] == pytest.approx(-0.523990, abs=1e-6)


@given(count=st.integers(2, 500), share=st.floats(0.0, 1.0), seed=st.integers(0, 99))
def test_split_is_a_partition_with_no_empty_side(count, share, seed):
    local_rows, gate = split_gate_samples(np.zeros(count, np.int64), share, derive_rng(seed, 1))
    assert sorted([*local_rows, *gate]) == list(range(count))
    assert len(local_rows) and len(gate)


def test_split_of_the_paper_is_three_to_one():
    local_rows, gate = split_gate_samples(np.zeros(400, np.int64), 0.25, derive_rng(1, 1))
    assert (len(local_rows), len(gate)) == (300, 100)


def test_gate_and_local_model_train_on_different_recordings():
    """Each class has two recordings: one trains the local model, the other one trains the gate."""
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    recordings = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    local_rows, gate = split_gate_samples(labels, 0.25, derive_rng(1, 1), recordings)
    assert sorted([*local_rows, *gate]) == list(range(8)) and len(gate) == 4
    assert not set(recordings[local_rows]) & set(recordings[gate])
    assert set(labels[local_rows]) == set(labels[gate]) == {0, 1}
    alone = split_gate_samples(labels, 0.25, derive_rng(1, 1), np.zeros(8, np.int64))
    assert [rows.tolist() for rows in alone] == [
        rows.tolist() for rows in split_gate_samples(labels, 0.25, derive_rng(1, 1))
    ]


def test_single_sample_trains_gate_and_local_model():
    assert [rows.tolist() for rows in split_gate_samples(np.zeros(1, np.int64), 0.25, derive_rng(1, 1))] == [
        [0],
        [0],
    ]


@pytest.mark.parametrize("name", ["pfl-fb", "pfl-mf", "pfl-mfe"])
def test_personal_model_beats_weak_global_model_and_keeps_its_trunk(name, shards):
    spec = softmax_spec(name, inputs=4, features=4, classes=3)
    learner = SoftmaxLearner(spec)
    options = {"adapt_learning_rate": 0.1, "adapt_epochs": 20, "gate_epochs": 20, "gate_learning_rate": 0.1}
    algorithm = make_algorithm(name, learner, options)
    model = {
        "trunk/kernel": np.eye(4, dtype=np.float32),
        "head/kernel": np.zeros((4, 3), np.float32),
        "head/bias": np.zeros(3, np.float32),
    }
    state = ServerState(round=2, phase=PHASE_PERSONALIZE, models={"global": model, "initial": model})
    shard = shards["pi-2"]
    mixture, _ = algorithm.personalize(
        algorithm.broadcast(state, "pi-2"), ClientState(), shard, derive_rng(1, 2, "pi-2")
    )
    np.testing.assert_array_equal(mixture.weights["trunk/kernel"], model["trunk/kernel"])
    before = evaluate(learner, "predict", model, shard.x_test, shard.y_test).accuracy
    after = evaluate(learner, "predict_mixture", mixture.weights, shard.x_test, shard.y_test).accuracy
    assert after > before + 0.2
    assert ("gate/kernel" in mixture.weights) == (name != "pfl-fb")


def test_the_mixture_is_the_gated_sum_of_logits(shards):
    learner = SoftmaxLearner(softmax_spec("pfl-mfe", inputs=4, features=4, classes=3))
    rng = np.random.default_rng(1)
    weights = {
        s.name: rng.normal(size=s.shape).astype(np.float32)
        for s in learner.spec.find_signature("predict_mixture").frozen
    }
    x = shards["pi-1"].x_test
    h = x @ weights["trunk/kernel"]
    g = 1 / (1 + np.exp(-(h @ weights["gate/kernel"] + weights["gate/bias"])))
    parts = [h @ weights[f"{p}/head/kernel"] + weights[f"{p}/head/bias"] for p in ("global", "local")]
    np.testing.assert_allclose(
        learner.predict("predict_mixture", weights, {"x": x}),
        g * parts[0] + (1 - g) * parts[1],
        rtol=1e-5,
        atol=1e-6,
    )


def list_epochs(calls):
    return [(call.signature, call.options["epochs"]) for call in calls]


def personalize_by_turns(name, shards, **options):
    learner = RecordingLearner(softmax_spec(name, inputs=4, features=4, classes=3))
    algorithm = make_algorithm(name, learner, {"adapt_epochs": 3, "least_steps": 0, **options})
    model = {
        "trunk/kernel": np.eye(4, dtype=np.float32),
        "head/kernel": np.full((4, 3), 0.1, np.float32),
        "head/bias": np.zeros(3, np.float32),
    }
    sent = algorithm.broadcast(
        ServerState(round=2, phase=PHASE_PERSONALIZE, models={"global": model, "initial": model}), "pi-1"
    )
    mixture, _ = algorithm.personalize(sent, ClientState(), shards["pi-1"], derive_rng(1, 2, "pi-1"))
    return learner.calls, mixture


@pytest.mark.parametrize("name", ["pfl-mf", "pfl-mfe"])
def test_alternating_training_takes_turns_and_keeps_weights_and_momentum(name, shards):
    calls, mixture = personalize_by_turns(
        name, shards, alternate=True, gate_optimizer="sgd", gate_momentum=0.9, gate_epochs=7
    )
    assert list_epochs(calls) == [("train_head", 1), ("train_gate", 1)] * 3
    for turns in (calls[::2], calls[1::2]):
        assert not turns[0].slots
        for before, after in pairwise(turns):
            assert after.slots and any(array.any() for array in after.slots.values())
            assert all(np.array_equal(after.weights[key], array) for key, array in before.trained.items())
    assert all(call.options["hyper"] == {"learning_rate": 0.001, "momentum": 0.9} for call in calls[1::2])
    for part, last in (("local/", calls[4].trained), ("", calls[5].trained)):
        for key, array in last.items():
            np.testing.assert_array_equal(mixture.weights[part + key], array)


def test_without_turns_the_gate_follows_the_last_epoch_of_the_classifier(shards):
    calls, _ = personalize_by_turns("pfl-mfe", shards)
    assert list_epochs(calls) == [("train_head", 3), ("train_gate", 10)]


@pytest.mark.parametrize("alternate", [False, True])
@pytest.mark.parametrize("name", ["pfl-fb", "pfl-mf", "pfl-mfe"])
def test_classifier_and_gate_train_on_different_samples(name, alternate, shards):
    """The trunk is the unit matrix, so the features are the samples. A quarter of them trains the gate.

    Each training takes 60 steps or more, in batches of 8.
    """
    calls, _ = personalize_by_turns(name, shards, alternate=alternate, least_steps=60, adapt_batch_size=8)
    x, y = shards["pi-1"].x_train, shards["pi-1"].y_train
    rows = {}
    for call in calls:
        seen = call.data["features" if call.signature == "train_head" else "gate_input"]
        found = [int(np.flatnonzero((x == sample).all(axis=1))[0]) for sample in seen]
        np.testing.assert_array_equal(call.labels, y[found])
        rows.setdefault(call.signature, set(found))
        assert rows[call.signature] == set(found)
    if name == "pfl-fb":
        assert rows == {"train_head": set(range(len(y)))}
    else:
        assert not rows["train_head"] & rows["train_gate"]
        assert rows["train_head"] | rows["train_gate"] == set(range(len(y)))
        assert len(rows["train_gate"]) == pytest.approx(len(y) / 4, abs=2)
    for signature, members in rows.items():
        epochs = sum(call.options["epochs"] for call in calls if call.signature == signature)
        if not (alternate and signature == "train_gate"):  # whose turns are those of the classifier
            steps = -(-len(members) // 8)
            assert steps * epochs >= 60 > steps * (epochs - 1)


def test_alternating_training_without_a_gate_changes_nothing(shards):
    (_, plain), (_, turns) = (personalize_by_turns("pfl-fb", shards, alternate=on) for on in (False, True))
    for name, array in plain.weights.items():
        np.testing.assert_array_equal(array, turns.weights[name])


@pytest.mark.parametrize("share", [1.0, 0.95])
def test_share_of_the_gate_leaves_samples_for_the_classifier(share):
    with pytest.raises(ConfigError, match=f"gate_share is {share}, expected a number from 0 to 0.9"):
        make_algorithm("pfl-mf", None, {"gate_share": share})


def test_unknown_optimizer_of_the_gate_is_refused():
    with pytest.raises(ConfigError, match="gate_optimizer is 'adamw', expected 'adam' or 'sgd'"):
        make_algorithm("pfl-mfe", None, {"gate_optimizer": "adamw"})


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("pfl-fb", "pfl-mf")]


@pytest.fixture(scope="module", params=["pfl-mfe", *SLOW])
def pair(request, tiny_config):
    """Return (name, plan, plan with augmentation, initial weights). The gate's optimizer is SGD."""
    from edgefl.learning.algorithms.plans import build_plan

    options = {**tiny_config.options, "gate_optimizer": "sgd", "gate_momentum": 0.9}
    config = replace(tiny_config, algorithm=request.param, options=options)
    plan, initial = build_plan(config)
    augmented, _ = build_plan(replace(config, augmentation=AugmentationConfig(1, True, 10.0)))
    return request.param, plan, augmented, initial


def test_training_on_samples_takes_the_steps_of_training_on_features(pair, digits):
    """Without changes of the samples, both forms of the plan train the same head and gate."""
    from edgefl.program.learner.litert import LiteRTLearner

    name, plan, augmented, initial = pair
    assert [spec.name for spec in augmented.spec.find_signature("train_head").data] == ["x"]
    plain, on_samples = LiteRTLearner(plan), LiteRTLearner(augmented)
    x, y = digits[0][:70], digits[1][:70]
    features = plain.predict("features", initial, {"x": x})
    options = {"epochs": 2, "hyper": {"learning_rate": 0.02, "momentum": 0.9}}
    heads = [
        learner.fit("train_head", initial, data, y, rng=derive_rng(1, 1), augment=False, **options)[0]
        for learner, data in ((plain, {"features": features}), (on_samples, {"x": x}))
    ]
    for key, array in heads[0].items():
        np.testing.assert_allclose(heads[1][key], array, atol=1e-5)
    if name == "pfl-fb":
        return
    head = {spec.name: initial[spec.name] for spec in plain.spec.find_signature("predict_head").frozen}
    parts = (head, {**head, **heads[0]})
    logits = [plain.predict("predict_head", part, {"features": features}) for part in parts]
    inputs = features if name == "pfl-mfe" else x.reshape(len(x), -1)
    width = inputs.shape[1]
    start = {"gate/kernel": np.zeros((width, 1), np.float32), "gate/bias": np.zeros(1, np.float32)}
    experts = {
        **initial,
        **start,
        **{
            f"{prefix}/{key}": array
            for prefix, part in zip(("global", "local"), parts, strict=True)
            for key, array in part.items()
        },
    }
    cases = ((plain, {"gate_input": inputs, "logits": np.stack(logits, axis=1)}), (on_samples, {"x": x}))
    gates = [
        learner.fit("train_gate", experts, data, y, rng=derive_rng(1, 1), augment=False, **options)[0]
        for learner, data in cases
    ]
    for key, array in gates[0].items():
        np.testing.assert_allclose(gates[1][key], array, atol=1e-5)
        assert np.abs(array).max() > 1e-5


def test_litert_and_keras_personalize_alike_with_augmentation(pair, digits):
    from edgefl.learning.algorithms.plans import make_keras_learner
    from edgefl.program.learner.litert import LiteRTLearner

    name, plan, augmented, initial = pair
    shard = Shard(
        x_train=digits[0][:60],
        y_train=digits[1][:60],
        x_test=digits[0][60:80],
        y_test=digits[1][60:80],
        num_classes=10,
    )
    options = {**augmented.spec.options, "adapt_epochs": 3, "least_steps": 0, "alternate": True}
    mixtures = []
    for learner in (LiteRTLearner(augmented), make_keras_learner(augmented.spec), LiteRTLearner(plan)):
        algorithm = make_algorithm(name, learner, options)
        sent = algorithm.broadcast(
            ServerState(round=2, phase=PHASE_PERSONALIZE, models={"global": initial}), "a"
        )
        mixtures.append(algorithm.personalize(sent, ClientState(), shard, derive_rng(1, 2, "a"))[0].weights)
    device, reference, plain = mixtures
    for key, array in device.items():
        np.testing.assert_allclose(array, reference[key], atol=1e-4)
    changed = {key for key, array in device.items() if not np.array_equal(array, plain[key])}
    assert changed >= {"local/fc2/bias"} | ({"gate/bias"} if name != "pfl-fb" else set())
    assert not any(key.startswith(("conv", "global")) for key in changed)


@pytest.mark.slow
@pytest.mark.parametrize("augmentation", [AugmentationConfig(), AugmentationConfig(flip=True)])
def test_gate_on_the_image_reads_normalized_samples(augmentation, tiny_config, digits):
    """With mean and std, the gate is the one of a raw model on samples that were normalized before."""
    from edgefl.learning.algorithms.plans import build_plan
    from edgefl.program.learner.litert import LiteRTLearner

    x, y = digits[0][:60], digits[1][:60]
    scaled = ((x - np.float32(0.5)) / np.float32(0.2)).astype(np.float32)
    personal = []
    for mean, std, samples in (((), (), scaled), ((0.5,), (0.2,), x)):
        model = replace(tiny_config.model, mean=mean, std=std)
        config = replace(tiny_config, algorithm="pfl-mf", model=model, augmentation=augmentation)
        plan, initial = build_plan(config)
        algorithm = make_algorithm("pfl-mf", learner := LiteRTLearner(plan), plan.spec.options)
        sent = algorithm.broadcast(
            ServerState(round=2, phase=PHASE_PERSONALIZE, models={"global": initial}), "a"
        )
        shard = Shard(x_train=samples, y_train=y, x_test=samples[:9], y_test=y[:9], num_classes=10)
        mixture, _ = algorithm.personalize(sent, ClientState(), shard, derive_rng(1, 2, "a"))
        weights = predict_gate_weights(learner, mixture.weights, samples)
        logits = learner.predict("predict_mixture", mixture.weights, {"x": samples})
        personal.append((mixture.weights["gate/kernel"], weights, logits, mixture.diagnostics["gate/global"]))
    for raw, normalized in zip(*personal, strict=True):
        np.testing.assert_allclose(normalized, raw, rtol=1e-3, atol=1e-3)
    assert np.ptp(personal[0][1][:, 0]) > 0.01, "the gate depends on the sample"

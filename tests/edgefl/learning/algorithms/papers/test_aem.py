"""Adaptive Expert Models: a gate's step and a mixture by hand, exploration, and the client result."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.model_choice import read_pick_counts, split_validation_rows
from edgefl.learning.algorithms.names import select_experts
from edgefl.learning.algorithms.papers.aem import explore_models
from edgefl.program.learner import evaluate
from tests.support.numpy_learner.recording import RecordingLearner
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

QUICK = {
    "local_epochs": 6,
    "local_learning_rate": 0.1,
    "gate_epochs": 6,
    "gate_learning_rate": 0.1,
    "learning_rate": 0.1,
}


def make_learner(options, inputs=4, features=3, classes=3, batch_size=8):
    return SoftmaxLearner(
        softmax_spec(
            "aem", inputs=inputs, features=features, classes=classes, batch_size=batch_size, options=options
        )
    )


def draw_weights(learner, seed=7):
    return {
        s.name: np.random.default_rng(seed).normal(0, 0.5, s.shape).astype(np.float32)
        for s in learner.spec.weights
    }


def compute_logs(*values):
    return np.log(np.array(values, np.float32))


def test_mixture_by_hand():
    """Oracle 15: g = [.5, .3, .2], p = [.7, .3], [.2, .8], [.5, .5] -> [.51, .49]."""
    learner = make_learner({"num_experts": 2}, inputs=1, features=1, classes=2, batch_size=1)
    weights = {
        s.name: np.zeros(s.shape, np.float32) for s in learner.spec.find_signature("predict_mixture").frozen
    }
    weights["gate/bias"] = compute_logs(0.5, 0.3, 0.2)
    for part, p in (("expert0", (0.7, 0.3)), ("expert1", (0.2, 0.8)), ("local", (0.5, 0.5))):
        weights[f"{part}/head/bias"] = compute_logs(*p)
    out = learner.predict("predict_mixture", weights, {"x": np.ones((1, 1), np.float32)})
    np.testing.assert_allclose(np.exp(out), [[0.51, 0.49]], atol=1e-6)


def test_gate_step_by_hand():
    """As in the mixture above, with y = 0: the loss is -ln .51 = .673345.

    Its gradient by the gate's logits is g (.51 - p) / .51 = -.186275, .182353, .003922.
    """
    learner = make_learner({"num_experts": 2}, inputs=1, features=1, classes=2, batch_size=1)
    start = {"gate/kernel": np.zeros((1, 3), np.float32), "gate/bias": compute_logs(0.5, 0.3, 0.2)}
    data = {"x": np.full((1, 1), 2, np.float32), "likelihood": np.array([[0.7, 0.2, 0.5]], np.float32)}
    gate, loss = learner.fit(
        "train_gate", start, data, np.array([0]), epochs=1, rng=derive_rng(1, 1), hyper={"learning_rate": 1.0}
    )
    assert loss == pytest.approx(0.673345, abs=1e-5)
    np.testing.assert_allclose(
        start["gate/bias"] - gate["gate/bias"], [-0.186275, 0.182353, 0.003922], atol=1e-5
    )
    np.testing.assert_allclose(-gate["gate/kernel"], [[-0.372549, 0.364706, 0.007843]], atol=1e-5)


def test_exploration_may_choose_the_best_model():
    """Oracle 3: epsilon .33, J 6: P(best) = .725, the others .055."""
    models = {index: {} for index in range(6)}
    rng = derive_rng(1, 1)
    chosen = np.array(
        [
            next(iter(offered)) if len(offered := explore_models(models, 0.33, rng)) == 1 else 2
            for _ in range(20000)
        ]
    )
    shares = np.bincount(chosen, minlength=6) / len(chosen)
    np.testing.assert_allclose(shares, [0.055, 0.055, 0.725, 0.055, 0.055, 0.055], atol=0.01)


def test_local_expert_peer_trains_on_all_samples():
    """Labels 0, 0, 0, 1, x = 1, one epoch in one batch at rate 1 from zero.

    The bias moves by (3 - 1) / 4 of .5 = .25. If one sample were left for the gate, it would move by .5 or
    .1667.
    """
    options = {
        "num_experts": 2,
        "local_epochs": 1,
        "local_learning_rate": 1.0,
        "local_weight_decay": 0.0,
        "gate_epochs": 1,
    }
    learner = make_learner(options, inputs=1, features=1, classes=2)
    zeros = {s.name: np.zeros(s.shape, np.float32) for s in learner.spec.find_signature("predict").frozen}
    zeros["trunk/kernel"] = np.ones((1, 1), np.float32)
    device, server = (make_algorithm("aem", item, options) for item in (learner, None))
    sent = server.broadcast(
        replace(server.init(zeros, derive_rng(1, 0, "init")), phase=PHASE_PERSONALIZE), "a"
    )
    x = np.ones((4, 1), np.float32)
    y = np.array([0, 0, 0, 1])
    mixture, _ = device.personalize(
        sent,
        ClientState(),
        Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=2),
        derive_rng(1, 2, "a"),
    )
    np.testing.assert_allclose(mixture.peers["local_expert"].weights["head/bias"], [0.25, -0.25], atol=1e-6)
    assert abs(mixture.weights["local/head/bias"][0] - 0.25) > 0.05, (
        "the mixture's own has not seen the gate's sample"
    )


def test_local_model_gate_and_fine_tuned_model_have_their_samples_and_rates(shards):
    """A quarter of the samples trains the gate. The peers train on all samples, one of them from the best
    model.
    """
    options = {**QUICK, "num_experts": 2, "gate": "pixels", "baselines": True, "local_weight_decay": 0.5}
    options |= {"local_learning_rate": 0.2, "gate_learning_rate": 0.3, "gate_weight_decay": 0.25}
    learner = RecordingLearner(
        softmax_spec("aem", inputs=4, features=3, classes=3, batch_size=8, options=options)
    )
    algorithm = make_algorithm("aem", learner, options)
    state = algorithm.init(draw_weights(learner), derive_rng(1, 0, "init"))
    sent = algorithm.broadcast(replace(state, phase=PHASE_PERSONALIZE), "pi-1")
    shard = shards["pi-1"]
    mixture, _ = algorithm.personalize(sent, ClientState(), shard, derive_rng(1, 1, "pi-1"))
    local, gate, full, tuned = learner.calls
    assert [call.signature for call in learner.calls] == [
        "train_local",
        "train_gate",
        "train_local",
        "train_local",
    ]
    best = select_experts(sent.models)[int(mixture.diagnostics["best"])]
    for call, start in ((local, sent.models["local"]), (full, sent.models["local"]), (tuned, best)):
        assert call.options == {"epochs": 6, "hyper": {"learning_rate": 0.2, "weight_decay": 0.5}}
        for key in call.trained:
            np.testing.assert_array_equal(call.weights[key], start[key])
    rates = {"learning_rate": 0.3, "weight_decay": 0.25}
    assert gate.options == {"epochs": 6, "hyper": rates, "augment": False}
    seen = [{sample.tobytes() for sample in call.data["x"]} for call in learner.calls]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == seen[2] == seen[3] == {sample.tobytes() for sample in shard.x_train}
    assert len(gate.labels) == pytest.approx(len(shard.y_train) / 4, abs=2)


def test_gate_unseen_trains_gate_only_on_validation_samples():
    """One of four samples is a validation sample. Only its label moves the gate.

    Only the labels of the others move the local model.
    """
    options = {"num_experts": 2, "validation_share": 0.25, "gate_unseen": True, **QUICK}
    learner = make_learner(options, inputs=1, features=1, classes=2)
    device, server = (make_algorithm("aem", item, options) for item in (learner, None))
    sent = server.broadcast(
        replace(server.init(draw_weights(learner), derive_rng(1, 0, "init")), phase=PHASE_PERSONALIZE), "a"
    )
    x = np.ones((4, 1), np.float32)
    y = np.array([0, 0, 1, 1])
    _, held_out = split_validation_rows(Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=2), 0.25)
    other = y.copy()
    other[held_out] = 1 - other[held_out]
    first, second = (
        device.personalize(
            sent,
            ClientState(),
            Shard(x_train=x, y_train=item, x_test=x, y_test=item, num_classes=2),
            derive_rng(1, 2, "a"),
        )[0].weights
        for item in (y, other)
    )
    np.testing.assert_array_equal(first["local/head/bias"], second["local/head/bias"])
    assert not np.array_equal(first["gate/bias"], second["gate/bias"])
    with pytest.raises(ConfigError, match="gate_unseen needs samples to validate on"):
        make_algorithm("aem", None, {"gate_unseen": True, "validation_share": 0.0})


def federate(name, learner, weights, shards, options, rounds):
    device, server = (make_algorithm(name, item, options) for item in (learner, None))
    state = server.init(weights, derive_rng(1, 0, "init"))
    for _ in range(rounds):
        rngs = {c: derive_rng(1, state.round, c) for c in shards}
        updates = [
            device.local_update(server.broadcast(state, c), ClientState(), shards[c], c, rngs[c])[0]
            for c in sorted(shards)
        ]
        state = server.aggregate(state, updates)
    return device, server, state


def test_aem_without_exploration_equals_ifca(shards):
    learner = make_learner({})
    rates = {"learning_rate": 0.1, "epochs": 2}
    final_states = [
        federate(name, learner, draw_weights(learner), shards, options, 3)[2]
        for name, options in (("ifca", rates), ("aem", {**rates, "epsilon": 0.0}))
    ]
    for index, model in select_experts(final_states[0].models).items():
        for name, array in model.items():
            np.testing.assert_array_equal(array, select_experts(final_states[1].models)[index][name])


def test_exploration_trains_models_that_no_client_would_choose(shards):
    """IFCA trains only one of two models from this start. With exploration, both learn."""
    learner = make_learner({"num_experts": 2}, features=4)
    options = {"num_experts": 2, "epochs": 3, "learning_rate": 0.1}
    weights = draw_weights(learner, 5)
    shares = {}
    losses = {}
    for epsilon in (0.0, 0.33):
        state = federate("aem", learner, weights, shards, {**options, "epsilon": epsilon}, 10)[2]
        count = read_pick_counts(state)
        shares[epsilon] = max(count.values()) / sum(count.values())
        all_losses = [
            evaluate(learner, "predict", m, s.x_train, s.y_train).loss
            for m in select_experts(state.models).values()
            for s in shards.values()
        ]
        losses[epsilon] = max(all_losses)
    assert shares[0.0] == 1.0
    assert shares[0.33] < 0.9
    assert losses[0.33] < 0.7 * losses[0.0]


@pytest.mark.parametrize("extra", [{"gate_share": 0.0}, {"gate": "features"}, {"baselines": False}])
def test_client_result_has_gated_mixture_and_peers(extra, shards):
    options = {**QUICK, "num_experts": 2, **extra}
    learner = make_learner(options)
    device, server, state = federate("aem", learner, draw_weights(learner), shards, options, 3)
    shard = shards["pi-2"]
    broadcast = server.broadcast(replace(state, phase=PHASE_PERSONALIZE), "pi-2")
    mixture, _ = device.personalize(broadcast, ClientState(), shard, derive_rng(1, 4, "pi-2"))
    assert set(mixture.peers) == {"federated", "local_expert", "ensemble"} | (
        {"tuned"} if extra.get("baselines", True) else set()
    )
    local = {name: mixture.weights[f"local/{name}"] for name in state.models["local"]}
    x = {"x": shard.x_test}
    parts = [*select_experts(state.models).values(), local]
    p = [
        np.exp(item - np.log(np.exp(item).sum(axis=1, keepdims=True)))
        for item in (learner.predict("predict", w, x) for w in parts)
    ]
    ensemble = mixture.peers["ensemble"]
    np.testing.assert_allclose(
        np.exp(learner.predict(ensemble.signature, ensemble.weights, x)), np.mean(p, axis=0), atol=1e-5
    )
    gate_input = shard.x_test
    if extra.get("gate") == "features":
        gate_input = sum(shard.x_test @ w["trunk/kernel"] for w in parts[:-1])
    g = np.exp(gate_input @ mixture.weights["gate/kernel"] + mixture.weights["gate/bias"])
    g /= g.sum(axis=1, keepdims=True)
    expected = sum(g[:, [i]] * item for i, item in enumerate(p))
    np.testing.assert_allclose(
        np.exp(learner.predict("predict_mixture", mixture.weights, x)), expected, atol=1e-5
    )
    accuracy = {
        n: evaluate(learner, peer.signature, peer.weights, shard.x_test, shard.y_test).accuracy
        for n, peer in mixture.peers.items()
    }
    assert (
        evaluate(learner, "predict_mixture", mixture.weights, shard.x_test, shard.y_test).accuracy
        >= max(accuracy.values()) - 0.1
    )
    usage = {key: value for key, value in mixture.diagnostics.items() if key.startswith("gate/")}
    assert sum(usage.values()) == pytest.approx(1, abs=1e-5)
    assert list(usage) == ["gate/expert0", "gate/expert1", "gate/local"]
    assert 1 <= mixture.diagnostics["experts_used"] <= 3
    is_shared = all(
        np.array_equal(local[name], array) for name, array in mixture.peers["local_expert"].weights.items()
    )
    assert is_shared == ("gate_share" in extra)  # otherwise the peer trains on the gate's samples too
    best = select_experts(state.models)[int(mixture.diagnostics["best"])]
    assert all(
        np.array_equal(best[name], array) for name, array in mixture.peers["federated"].weights.items()
    )


@pytest.mark.parametrize(
    "extra",
    [
        {"patience": 1, "validation_share": 0.1},
        {"gate": "features", "gate_share": 0.0, "baselines": True, "epsilon": 0.5},
    ],
)
def test_the_laws_hold_with_other_options(extra, shards):
    options = {**QUICK, "num_experts": 2, **extra}
    learner = make_learner(options)
    check_algorithm(lambda item: make_algorithm("aem", item, options), learner, draw_weights(learner), shards)


def test_a_single_sample_trains_local_model_and_gate():
    options = {**QUICK, "num_experts": 1, "gate_share": 0.5}
    learner = make_learner(options)
    device, server = (make_algorithm("aem", item, options) for item in (learner, None))
    state = replace(server.init(draw_weights(learner), derive_rng(1, 0, "init")), phase=PHASE_PERSONALIZE)
    shard = Shard(
        x_train=np.ones((1, 4), np.float32),
        y_train=np.array([1]),
        x_test=np.ones((0, 4), np.float32),
        y_test=np.zeros(0, np.int64),
        num_classes=3,
    )
    mixture, _ = device.personalize(server.broadcast(state, "a"), ClientState(), shard, derive_rng(1, 1, "a"))
    assert all(np.isfinite(array).all() for array in mixture.weights.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 1.5}, "epsilon is 1.5"),
        ({"gate_share": 1.0}, "gate_share is 1.0"),
        ({"patience": 2, "validation_share": 0.0}, "patience needs samples"),
        ({"num_experts": 0}, "num_experts is 0"),
    ],
)
def test_invalid_option_is_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm("aem", None, options)

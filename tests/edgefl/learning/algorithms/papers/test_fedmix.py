"""FedMix: one two-client round by hand, pruning, the gate, and side information."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import ConfigError, DataError, StateError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard, Update
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.mixtures.expert_aggregation import (
    Responsibilities,
    average_experts,
    load_responsibility,
)
from edgefl.learning.algorithms.mixtures.marginal_gate import predict_without_labels
from edgefl.learning.algorithms.names import select_experts
from edgefl.learning.algorithms.papers.fedmix import (
    CLOSED_GATE_LOGIT,
    FedMixOptions,
    assemble_mixture,
    list_gates,
)
from edgefl.program.learner import evaluate
from tests.support.numpy_learner.recording import RecordingLearner
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def make_learner(options, inputs=4, features=3, classes=3, batch_size=8):
    return SoftmaxLearner(
        softmax_spec(
            "fedmix",
            inputs=inputs,
            features=features,
            classes=classes,
            batch_size=batch_size,
            options=options,
        )
    )


def draw_weights(learner, seed=7):
    weights = {
        s.name: np.random.default_rng(seed).normal(0, 0.5, s.shape).astype(np.float32)
        for s in learner.spec.weights
    }
    return {**weights, "phi": np.zeros_like(weights["phi"])}


def start_algorithm(options, **sizes):
    """Return (algorithm, learner, state after init)."""
    learner = make_learner(options, **sizes)
    algorithm = make_algorithm("fedmix", learner, options)
    return algorithm, learner, algorithm.init(draw_weights(learner), derive_rng(1, 0, "init"))


def start_hand_example(personal_epochs=0, **more):
    """Return two experts on one input x = 1, with h = 1 and 2 and p(y=0) = 1/2 and 3/4."""
    options = {
        "num_experts": 2,
        "epochs": 1,
        "learning_rate": 1.0,
        "entropy": 0.0,
        "personal_epochs": personal_epochs,
        **more,
    }
    algorithm, _, state = start_algorithm(options, inputs=1, features=1, classes=2, batch_size=3)
    parts = [(1.0, 0.0), (2.0, np.log(3))]
    models = {
        f"expert{k}": {
            "trunk/kernel": np.array([[h]], np.float32),
            "head/kernel": np.zeros((1, 2), np.float32),
            "head/bias": np.array([bias, 0], np.float32),
        }
        for k, (h, bias) in enumerate(parts)
    }
    return algorithm, replace(state, models={**models, "phi": {"phi": np.zeros((2, 2), np.float32)}})


def train_client(algorithm, state, name, label, count, arrays=None):
    shard = Shard(
        x_train=np.ones((count, 1), np.float32),
        y_train=np.full(count, label),
        x_test=np.ones((1, 1), np.float32),
        y_test=np.zeros(1, np.int64),
        num_classes=2,
    )
    client_state = ClientState() if arrays is None else ClientState(arrays)
    return algorithm.local_update(
        algorithm.broadcast(state, name), client_state, shard, name, derive_rng(1, 1, name)
    )


def test_two_clients_one_round_by_hand():
    """Client a has one sample of class 0 and the gate (1/4, 3/4).

    Its loss is (ln 2 + ln 4/3) / 2 + (ln 4 + ln 4/3) / 2 = 1.327403.
    """
    algorithm, state = start_hand_example()
    gate = {"gate/kernel": np.zeros((1, 2), np.float32), "gate/bias": np.log([1, 3]).astype(np.float32)}
    a, client_state = train_client(algorithm, state, "a", 0, 1, gate)
    b, _ = train_client(algorithm, state, "b", 1, 3)
    assert a.metrics["loss"] == pytest.approx(1.327403, abs=1e-6)
    np.testing.assert_allclose(a.deltas["expert0"]["head/bias"], [0.25, -0.25], atol=1e-6)
    np.testing.assert_allclose(a.deltas["expert1"]["head/bias"], [0.125, -0.125], atol=1e-6)
    np.testing.assert_allclose(a.deltas["expert1"]["head/kernel"], [[0.25, -0.25]], atol=1e-6)
    np.testing.assert_allclose(b.deltas["expert0"]["head/bias"], [-0.25, 0.25], atol=1e-6)
    # d phi = q (term - expected term), where the term of an expert is its loss minus its log gate.
    np.testing.assert_allclose(a.deltas["phi"]["phi"], [[-0.376019, 0.376019], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(b.deltas["phi"]["phi"], [[0, 0], [0.173287, -0.173287]], atol=1e-6)
    # q(z|a) = softmax(-.376, .376), q(z|b) = softmax(.173, -.173)
    np.testing.assert_allclose([a.metrics["q/0"], b.metrics["q/0"]], [0.320377, 0.585786], atol=2e-5)
    # gate: A <- A - h_s (g - q), h_s = (1 + 2) / 2
    np.testing.assert_allclose(client_state.arrays["gate/bias"] - gate["gate/bias"], [0.25, -0.25], atol=1e-6)
    np.testing.assert_allclose(client_state.arrays["gate/kernel"], [[0.375, -0.375]], atol=1e-6)
    assert set(a.deltas) == {"expert0", "expert1", "phi"}

    means, _ = average_experts(state, [a, b], 2, 0.0)
    share = 0.320377 / (0.320377 + 3 * 0.585786)  # p(s=a|z=0)
    np.testing.assert_allclose(
        means["expert0"]["head/bias"], np.array([0.25, -0.25]) * (2 * share - 1), atol=2e-5
    )
    np.testing.assert_allclose(means["phi"]["phi"], [[-0.094005, 0.094005], [0.129965, -0.129965]], atol=1e-6)
    after = algorithm.aggregate(state, [a, b])
    # the first step of Adam is the learning rate along each sign
    np.testing.assert_allclose(after.models["phi"]["phi"], [[-1e-3, 1e-3], [1e-3, -1e-3]], rtol=1e-4)
    np.testing.assert_allclose(after.models["expert0"]["head/bias"], [-1e-3, 1e-3], rtol=1e-4)
    assert after.round == 2


def test_client_entropy_by_hand():
    """With q(z|0) = (1/4, 3/4), H = .562335 is subtracted from the loss, and dH / dphi = -q (ln q + H)."""
    gate = {"gate/kernel": np.zeros((1, 2), np.float32), "gate/bias": np.log([1, 3]).astype(np.float32)}
    updates = []
    for options in ({}, {"client_entropy": True}):
        algorithm, state = start_hand_example(**options)
        phi = np.array([[0, np.log(3)], [0, 0]], np.float32)
        state = replace(state, models={**state.models, "phi": {"phi": phi}})
        updates.append(train_client(algorithm, state, "a", 0, 1, gate)[0])
    without, entropy = updates
    # 1/4 (ln 2 + ln 4) + 3/4 (ln 4/3 + ln 4/3)
    assert without.metrics["loss"] == pytest.approx(0.951384, abs=1e-6)
    assert entropy.metrics["loss"] == pytest.approx(0.951384 - 0.562335, abs=1e-6)
    np.testing.assert_allclose(
        entropy.deltas["phi"]["phi"] - without.deltas["phi"]["phi"],
        [[0.205990, -0.205990], [0, 0]],
        atol=1e-6,
    )
    for expert in ("expert0", "expert1"):
        for name, array in without.deltas[expert].items():
            np.testing.assert_array_equal(entropy.deltas[expert][name], array)


@pytest.mark.parametrize("epochs", [0, 1])
def test_the_personal_epochs_continue_the_training_of_a_round(epochs):
    """One epoch moves only client a's experts and gate, as in its round above."""
    algorithm, state = start_hand_example(epochs)
    gate = {"gate/kernel": np.zeros((1, 2), np.float32), "gate/bias": np.log([1, 3]).astype(np.float32)}
    x, label = np.ones((1, 1), np.float32), np.zeros(1, np.int64)
    last = algorithm.broadcast(replace(state, phase=PHASE_PERSONALIZE), "a")
    mixture, client_state = algorithm.personalize(
        last,
        ClientState(gate),
        Shard(x_train=x, y_train=label, x_test=x, y_test=label, num_classes=2),
        derive_rng(1, 2),
    )
    trained_weights = {
        "expert0/head/bias": [0.25, -0.25],
        "expert1/head/bias": [np.log(3) + 0.125, -0.125],
        "gate/bias": [0.25, np.log(3) - 0.25],
    }
    initial_weights = {
        "expert0/head/bias": [0, 0],
        "expert1/head/bias": [np.log(3), 0],
        "gate/bias": [0, np.log(3)],
    }
    for name, expected in (trained_weights if epochs else initial_weights).items():
        np.testing.assert_allclose(mixture.weights[name], expected, atol=1e-6)
    share = [0.320377, 0.679623] if epochs else [0.5, 0.5]  # softmax(-.376019, .376019)
    np.testing.assert_allclose(
        [mixture.diagnostics[f"responsibility/{k}"] for k in range(2)], share, atol=2e-5
    )
    np.testing.assert_array_equal(mixture.peers["expert"].weights["head/bias"], [0, 0])
    np.testing.assert_array_equal(client_state.arrays["gate/bias"], gate["gate/bias"])


def test_phi_has_a_separate_learning_rate():
    algorithm, state = start_hand_example()
    updates = [train_client(algorithm, state, name, label, 1)[0] for name, label in (("a", 0), ("b", 1))]
    fast = make_algorithm("fedmix", None, {"num_experts": 2, "phi_learning_rate": 0.1, "entropy": 0.0})
    after = fast.aggregate(state, updates)
    np.testing.assert_allclose(np.abs(after.models["phi"]["phi"][1]), 0.1, rtol=1e-4)
    np.testing.assert_allclose(np.abs(after.models["expert0"]["head/kernel"]), 1e-3, rtol=1e-3)


def test_entropy_moves_phi_towards_less_used_experts():
    start = np.array([[2.0, 0.0], [1.0, 0.0], [1.5, 0.0]], np.float32)
    algorithm, _, state = start_algorithm({"num_experts": 2, "entropy": 1.0})
    state = replace(state, models={**state.models, "phi": {"phi": start}})
    unchanged_update = Update(
        client_id="a",
        round=1,
        num_samples=10,
        deltas={"phi": {"phi": np.zeros_like(start)}},
        metrics={"loss": 1.0, "q/0": 0.5, "q/1": 0.5},
    )
    after = algorithm.aggregate(state, [unchanged_update]).models["phi"]["phi"]
    assert (after[:, 0] < start[:, 0]).all()
    assert (after[:, 1] > start[:, 1]).all()


def test_entropy_has_its_weight():
    """Without an optimizer, phi moves by its mean delta and by the weighted gradient of the entropy."""
    start = np.array([[2.0, 0.0], [1.0, 0.0], [1.5, 0.0]], np.float32)
    options = {"num_experts": 2, "entropy": 0.5, "server_optimizer": "none", "server_learning_rate": 1.0}
    algorithm, _, state = start_algorithm({**options, "phi_learning_rate": 1.0})
    state = replace(state, models={**state.models, "phi": {"phi": start}})
    delta = np.full_like(start, 0.25)
    update = Update(
        client_id="a",
        round=1,
        num_samples=10,
        deltas={"phi": {"phi": delta}},
        metrics={"loss": 1.0, "q/0": 0.5, "q/1": 0.5},
    )
    after = algorithm.aggregate(state, [update]).models["phi"]["phi"]

    def measure_entropy(phi):
        mean = (np.exp(phi) / np.exp(phi).sum(axis=1, keepdims=True)).mean(axis=0)
        return -(mean * np.log(mean)).sum()

    step = 1e-4
    for index in np.ndindex(*start.shape):
        moved = start.astype(np.float64)
        moved[index] += step
        slope = (measure_entropy(moved) - measure_entropy(start.astype(np.float64))) / step
        assert after[index] == pytest.approx(start[index] + 0.25 + 0.5 * slope, abs=1e-4)


def test_weights_of_clients_are_their_pruned_responsibilities():
    """Client a prunes its third expert, so its first one has the weight .6 / .9."""
    _, _, state = start_algorithm({"num_experts": 3})
    updates = [
        Update(
            client_id=name,
            round=1,
            num_samples=5,
            deltas={"expert0": {"w": np.array([delta], np.float32)}},
            metrics=metrics,
        )
        for name, delta, metrics in (
            ("a", 1.0, {"q/0": 0.6, "q/1": 0.3, "q/2": 0.1}),
            ("b", 4.0, {"q/0": 1.0, "q/1": 0.0, "q/2": 0.0}),
        )
    ]
    means, _ = average_experts(state, updates, 3, 0.2)
    np.testing.assert_allclose(means["expert0"]["w"], [(2 / 3 * 1 + 1 * 4) / (2 / 3 + 1)], rtol=1e-6)


def test_untrained_model_stays_and_invalid_responsibility_becomes_uniform():
    algorithm, _, state = start_algorithm({"num_experts": 2})
    delta = {name: np.ones_like(array) for name, array in state.models["expert0"].items()}
    invalid_update = Update(
        client_id="a",
        round=1,
        num_samples=10,
        deltas={"expert0": delta},
        metrics={"loss": 1.0, "q/0": float("nan")},
    )
    after = algorithm.aggregate(state, [invalid_update])
    np.testing.assert_allclose(load_responsibility(after, "a", 2), [0.5, 0.5])
    assert load_responsibility(after, "b", 2) is None
    for name, same in (("expert0", False), ("expert1", True), ("phi", True)):
        unchanged = all(
            np.array_equal(after.models[name][key], state.models[name][key]) for key in state.models[name]
        )
        assert unchanged == same, name


def test_experts_start_different_and_phi_uniform():
    _, _, state = start_algorithm({"num_experts": 3})
    assert set(state.models) == {"expert0", "expert1", "expert2", "phi"}
    assert not np.array_equal(
        state.models["expert1"]["trunk/kernel"], state.models["expert2"]["trunk/kernel"]
    )
    assert (state.models["phi"]["phi"] == 0).all()


PRUNING = {"num_experts": 3, "prune": 0.6}  # the client prunes below .2, the server below .18


@pytest.mark.parametrize(
    ("q", "sent"), [((0.6, 0.19, 0.21), {0, 1, 2}), ((0.7, 0.17, 0.13), {0}), ((0.4, 0.42, 0.18), {0, 1, 2})]
)
def test_unused_expert_is_not_broadcast(q, sent):
    algorithm, _, state = start_algorithm(PRUNING)
    state = state.with_record(Responsibilities({"pi-1": q}))
    assert set(algorithm.broadcast(state, "pi-1").models) == {f"expert{k}" for k in sent} | {"phi"}
    assert len(algorithm.broadcast(state, "pi-2").models) == 4


def test_unused_expert_is_not_trained(shards):
    algorithm, _, state = start_algorithm(PRUNING)
    phi = np.log(np.array([[0.7, 0.2, 0.1]] * 3, np.float32))
    state = replace(state, models={**state.models, "phi": {"phi": phi}})
    update, _ = algorithm.local_update(
        algorithm.broadcast(state, "pi-1"), ClientState(), shards["pi-1"], "pi-1", derive_rng(1, 1)
    )
    assert "expert2" not in update.deltas
    assert "expert0" in update.deltas
    assert update.metrics["q/2"] > 0


def test_client_keeps_its_only_expert_when_phi_prefers_another(shards):
    """The client has only expert 2, and phi has moved to expert 0."""
    algorithm, learner, state = start_algorithm({**PRUNING, "personal_epochs": 0})
    phi = np.log(np.array([[0.9, 0.05, 0.05]] * 3, np.float32))
    state = replace(state, models={**state.models, "phi": {"phi": phi}})
    state = state.with_record(Responsibilities({"pi-1": (0.0, 0.0, 1.0)}))
    broadcast = algorithm.broadcast(state, "pi-1")
    assert set(broadcast.models) == {"expert2", "phi"}
    update, client_state = algorithm.local_update(
        broadcast, ClientState(), shards["pi-1"], "pi-1", derive_rng(1, 1)
    )
    assert set(update.deltas) == {"expert2", "phi"}
    mixture, _ = algorithm.personalize(
        replace(broadcast, phase=PHASE_PERSONALIZE), client_state, shards["pi-1"], derive_rng(1, 2)
    )
    alone = learner.predict("predict", broadcast.models["expert2"], {"x": shards["pi-1"].x_test})
    mixed = learner.predict("predict_mixture", mixture.weights, {"x": shards["pi-1"].x_test})
    np.testing.assert_array_equal(mixed.argmax(axis=1), alone.argmax(axis=1))
    assert mixture.diagnostics["gate/2"] > 0.999


def test_pruned_expert_does_not_change_mixture_of_the_others():
    learner = make_learner({"num_experts": 3})
    _, _, state = start_algorithm({"num_experts": 3})
    models = {k: state.models[f"expert{k}"] for k in range(2)}
    private = {"gate/kernel": np.zeros((3, 3), np.float32), "gate/bias": np.array([0, 0, 3], np.float32)}
    weights = assemble_mixture(models, np.array([0.5, 0.5, 0.0]), private)
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    p = [
        np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        for z in (learner.predict("predict", models[k], {"x": x}) for k in models)
    ]
    np.testing.assert_allclose(
        np.exp(learner.predict("predict_mixture", weights, {"x": x})), (p[0] + p[1]) / 2, atol=1e-4
    )


def run_rounds(options, shards, rounds=25, **more):
    algorithm, learner, state = start_algorithm(options, **more)
    client_states = {name: ClientState() for name in shards}
    for round_ in range(1, rounds + 1):
        results = {
            c: algorithm.local_update(
                algorithm.broadcast(state, c), client_states[c], shards[c], c, derive_rng(1, round_, c)
            )
            for c in shards
        }
        client_states = {c: client_state for c, (_, client_state) in results.items()}
        state = algorithm.aggregate(state, [update for update, _ in results.values()])
    return algorithm, learner, replace(state, phase=PHASE_PERSONALIZE), client_states


TRAINING_OPTIONS = {"num_experts": 2, "learning_rate": 0.2, "server_learning_rate": 0.02, "gate_epochs": 5}


@pytest.mark.parametrize(
    "more", [{}, {"gate": "federated"}, {"bias": True}, {"prune": 0.8}, {"objective": "likelihood"}]
)
def test_fedmix_learns_and_client_without_gate_trains_a_new_gate(more, shards):
    options = TRAINING_OPTIONS | more
    algorithm, learner, state, client_states = run_rounds(options, shards)
    for name, shard in shards.items():
        for client_state in (client_states[name], ClientState()):
            mixture, _ = algorithm.personalize(
                algorithm.broadcast(state, name), client_state, shard, derive_rng(1, 9, name)
            )
            assert (
                evaluate(learner, "predict_mixture", mixture.weights, shard.x_test, shard.y_test).accuracy
                > 0.8
            )
            assert sum(mixture.diagnostics[f"gate/{k}"] for k in range(2)) == pytest.approx(1)
    private = set(client_states["pi-1"].arrays)
    assert ("gate/kernel" in private) == (more.get("gate") != "federated")
    assert ("personal/head/bias" in private) == ("bias" in more)
    assert not any(name.startswith("personal") for model in state.models.values() for name in model)


def test_new_gate_trains_for_gate_epochs(shards):
    options = {"num_experts": 2, "gate_epochs": 7, "personal_epochs": 0}
    spec = softmax_spec("fedmix", inputs=4, features=3, classes=3, batch_size=8, options=options)
    learner = RecordingLearner(spec)
    algorithm = make_algorithm("fedmix", learner, options)
    sent = algorithm.broadcast(algorithm.init(draw_weights(learner), derive_rng(1, 0, "init")), "pi-1")
    algorithm.personalize(sent, ClientState(), shards["pi-1"], derive_rng(1, 1, "pi-1"))
    (call,) = learner.calls
    assert call.options["epochs"] == 7
    assert len(call.labels) == len(shards["pi-1"].y_train)


def add_side_information(shards):
    return {
        c: replace(s, side_train=(np.arange(len(s.y_train)) % 2).astype(np.int64)) for c, s in shards.items()
    }


def test_laws_hold_with_side_information(shards):
    options = {"num_experts": 2, "condition": "side", "num_sides": 2}
    learner = make_learner(options)
    initial = draw_weights(learner)
    assert initial["phi"].shape == (2, 2)
    check_algorithm(
        lambda any_learner: make_algorithm("fedmix", any_learner, options),
        learner,
        initial,
        add_side_information(shards),
    )


@pytest.mark.parametrize(
    ("side", "message"),
    [
        (None, 'needs side information .*simulator.*; set condition = "label"'),
        (np.array([0, 5]), "side_train has 2 values for .*, expected one each from 0 to 1; set num_sides"),
        (np.array([0]), "side_train has 1 values for .*, expected one each from 0 to 1; set num_sides"),
    ],
)
def test_missing_or_invalid_side_information_is_an_error(side, message, shards):
    algorithm, _, state = start_algorithm({"num_experts": 2, "condition": "side", "num_sides": 2})
    shard = replace(shards["pi-1"], side_train=side)
    with pytest.raises(DataError, match=message):
        algorithm.local_update(
            algorithm.broadcast(state, "pi-1"), ClientState(), shard, "pi-1", derive_rng(1, 1)
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"condition": "lable"}, "did you mean 'label'"),
        ({"gate": "none"}, "'local' or 'federated'"),
        ({"num_experts": 0}, "1 or more"),
        ({"prune": 1.5}, "from 0 to 1"),
        ({"entropy": float("nan")}, "entropy is nan, expected 0 or more"),
    ],
)
def test_invalid_option_is_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm("fedmix", None, options)


def with_reported(state, **responsibilities):
    """Return the state after each client reported these responsibilities."""
    before = state.read_record(Responsibilities).by_client
    return state.with_record(Responsibilities({**before, **responsibilities}))


def test_gates_of_participants_by_hand():
    """Client b lacks expert 1, because it reported .2, below .5 / 2."""
    _, _, state = start_algorithm({"num_experts": 2}, inputs=1, features=1, classes=2)
    state = with_reported(state, a=(0.4, 0.6), b=(0.8, 0.2))
    kernel = np.array([[1.0, 2.0]], np.float32)
    states = {
        name: ClientState({"gate/kernel": kernel * i, "gate/bias": np.array([i, 0], np.float32)})
        for i, name in enumerate("ab", 1)
    }
    counts = {"b": 30.0, "a": 10.0, "rejected": 5.0}
    a, b = list_gates(FedMixOptions(num_experts=2, prune=0.5), state, states, counts)
    assert (a.num_samples, b.num_samples) == (10, 30)
    np.testing.assert_allclose([a.responsibility, b.responsibility], [[0.4, 0.6], [1, 0]])
    np.testing.assert_array_equal([a.kernel, b.kernel], [kernel, 2 * kernel])
    np.testing.assert_array_equal([a.bias, b.bias], [[1, 0], [2, CLOSED_GATE_LOGIT]])
    likelihood = list_gates(FedMixOptions(num_experts=2, objective="likelihood"), state, states, counts)
    np.testing.assert_array_equal([gate.responsibility for gate in likelihood], np.full((2, 2), 0.5))


def test_a_missing_local_gate_is_an_error_and_a_federated_gate_needs_no_client():
    _, _, state = start_algorithm({"num_experts": 2})
    state = with_reported(state, a=(0.4, 0.6), b=(0.8, 0.2))
    with pytest.raises(StateError, match=r"the gate of a is missing.*a local gate never leaves its device"):
        list_gates(FedMixOptions(num_experts=2), state, {}, {"a": 1.0, "b": 1.0})
    _, _, federated = start_algorithm({"num_experts": 2, "gate": "federated"})
    federated = with_reported(federated, a=(0.4, 0.6), b=(0.8, 0.2))
    options = FedMixOptions(num_experts=2, gate="federated")
    gates = list_gates(options, federated, {}, {"a": 1.0, "b": 1.0})
    for gate in gates:
        np.testing.assert_array_equal(gate.kernel, federated.models["gate"]["gate/kernel"])
    np.testing.assert_allclose([gate.responsibility for gate in gates], [[0.4, 0.6], [0.8, 0.2]])


@pytest.mark.parametrize("prune", [0.0, 0.9])
def test_a_single_participant_predicts_like_a_client_without_labels(prune):
    """With one participant, the mean gate is its gate, so the prediction equals its own mixture."""
    options = {"num_experts": 3, "prune": prune, "learning_rate": 0.3}
    algorithm, learner, state = start_algorithm(options)
    rng = np.random.default_rng(3)
    phi = rng.normal(0, 2, (3, 3)).astype(np.float32)
    state = replace(state, models={**state.models, "phi": {"phi": phi}})
    y = np.array([0, 0, 1, 2, 0, 0, 1, 0])
    shard = Shard(
        x_train=rng.random((8, 4), np.float32),
        y_train=y,
        x_test=rng.random((5, 4), np.float32),
        y_test=np.zeros(5, np.int64),
        num_classes=3,
    )
    broadcast = algorithm.broadcast(state, "a")
    _, client_state = algorithm.local_update(broadcast, ClientState(), shard, "a", derive_rng(1, 1, "a"))
    q = np.exp(phi) / np.exp(phi).sum(axis=1, keepdims=True)
    state = with_reported(state, a=q[y].mean(axis=0))
    gates = list_gates(FedMixOptions(**options), state, {"a": client_state}, {"a": 8.0})
    classes, _ = predict_without_labels(learner, select_experts(state.models), gates, shard.x_test)
    peer = algorithm.current(broadcast, client_state, shard)
    log_p = learner.predict(peer.signature, peer.weights, {"x": shard.x_test})
    np.testing.assert_allclose(classes, np.exp(log_p), atol=2e-6)

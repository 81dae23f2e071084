"""FedMix for permuted labels: pi and a round by hand, then two kinds of clients that choose their experts."""

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.papers.fedmix_permutation import update_pi
from edgefl.program.learner import evaluate
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

NAME = "fedmix-permutation"


def make_learner(options, inputs=4, features=3, classes=3, batch_size=8):
    return SoftmaxLearner(
        softmax_spec(
            NAME, inputs=inputs, features=features, classes=classes, batch_size=batch_size, options=options
        )
    )


def test_pi_after_a_batch_by_hand():
    """With the prior (.8, .2) and mean likelihoods .25 and .5, the joints are .2 and .1, so (2/3, 1/3).

    Damped by .75, pi is (.766667, .233333).
    """
    log_p = {0: np.log(0.25), 1: np.log(0.5)}
    np.testing.assert_allclose(
        update_pi(np.array([0.8, 0.2]), log_p, 1.0, 0.75), [0.766667, 0.233333], atol=1e-6
    )
    hot = np.sqrt([0.2, 0.1])
    np.testing.assert_allclose(update_pi(np.array([0.8, 0.2]), log_p, 2.0, 0.0), hot / hot.sum(), atol=1e-6)


def test_faded_expert_returns_if_it_fits_better():
    """The prior of the second expert is at least 1e-6. Its likelihood is 1 million times larger."""
    log_p = {0: np.log(1e-6), 1: 0.0}
    np.testing.assert_allclose(update_pi(np.array([1.0, 0.0]), log_p, 1.0, 0.0), [0.5, 0.5], atol=1e-6)


def test_pi_of_expert_without_likelihood_decreases():
    np.testing.assert_allclose(update_pi(np.array([0.6, 0.3, 0.1]), {0: -1.0, 1: -1.0}, 1.0, 0.75)[2], 0.075)


def test_pi_takes_the_clients_beta_and_damping():
    """One batch of one expert with p(y=0) = 1/2 and one with 3/4."""
    options = {"num_experts": 2, "learning_rate": 0.0, "epochs": 1, "beta": 2.0, "damping": 0.5}
    learner = make_learner(options, inputs=1, features=1, classes=2, batch_size=3)
    algorithm = make_algorithm(NAME, learner, options)
    bias = [np.array([0, 0], np.float32), np.array([np.log(3), 0], np.float32)]
    kernels = {"trunk/kernel": np.ones((1, 1), np.float32), "head/kernel": np.zeros((1, 2), np.float32)}
    state = algorithm.init(kernels | {"head/bias": bias[0]}, derive_rng(1, 0, "init"))
    state = replace(state, models={f"expert{k}": {**kernels, "head/bias": bias[k]} for k in range(2)})
    x = np.ones((3, 1), np.float32)
    shard = Shard(
        x_train=x, y_train=np.zeros(3, np.int64), x_test=x, y_test=np.zeros(3, np.int64), num_classes=2
    )
    update, _ = algorithm.local_update(
        algorithm.broadcast(state, "a"), ClientState(), shard, "a", derive_rng(1, 1, "a")
    )
    evidence = np.sqrt([0.5, 0.75])  # to the power of 1 / beta
    expected = 0.5 * 0.5 + 0.5 * evidence / evidence.sum()
    np.testing.assert_allclose([update.metrics["q/0"], update.metrics["q/1"]], expected, atol=1e-5)


def test_two_clients_one_round_by_hand():
    """x = 1, and the experts have only a bias, with p(y=0) = 1/2 and 3/4.

    Each takes one step of the learning rate times pi = 1/2.
    """
    options = {"num_experts": 2, "learning_rate": 1.0, "epochs": 1, "server_learning_rate": 0.003}
    learner = make_learner(options, inputs=1, features=1, classes=2, batch_size=3)
    algorithm = make_algorithm(NAME, learner, options)
    bias = [np.array([0, 0], np.float32), np.array([np.log(3), 0], np.float32)]
    trunk_and_kernel = {
        "trunk/kernel": np.ones((1, 1), np.float32),
        "head/kernel": np.zeros((1, 2), np.float32),
    }
    state = algorithm.init(trunk_and_kernel | {"head/bias": bias[0]}, derive_rng(1, 0, "init"))
    state = replace(
        state, models={f"expert{k}": {**trunk_and_kernel, "head/bias": bias[k]} for k in range(2)}
    )

    def train_client(name, label, count):
        shard = Shard(
            x_train=np.ones((count, 1), np.float32),
            y_train=np.full(count, label),
            x_test=np.ones((1, 1), np.float32),
            y_test=np.zeros(1, np.int64),
            num_classes=2,
        )
        return algorithm.local_update(
            algorithm.broadcast(state, name), ClientState(), shard, name, derive_rng(1, 1, name)
        )

    a, client_state = train_client("a", 0, 1)
    b, _ = train_client("b", 1, 3)
    assert a.metrics["loss"] == pytest.approx((np.log(2) + np.log(4 / 3)) / 2, abs=1e-6)
    np.testing.assert_allclose(a.deltas["expert1"]["head/bias"], [0.125, -0.125], atol=1e-6)
    np.testing.assert_allclose(b.deltas["expert1"]["head/bias"], [-0.375, 0.375], atol=1e-6)
    # a: joints 1/4 and 3/8, so pi_now = (.4, .6); damped (.475, .525). b: joints 1/4 and 1/8, so (2/3, 1/3);
    # damped (.541667, .458333)
    np.testing.assert_allclose([a.metrics["q/0"], b.metrics["q/0"]], [0.475, 0.541667], atol=1e-6)
    np.testing.assert_allclose(client_state.arrays["pi"], [0.475, 0.525], atol=1e-6)
    after = algorithm.aggregate(state, [a, b])
    # p(s=a|z=1) = .525 / (.525 + 3 * .458333) = .276316: .125 and -.375 come to -.236842, and Adam steps by
    # its rate
    np.testing.assert_allclose(after.models["expert1"]["head/bias"] - bias[1], [-0.003, 0.003], rtol=1e-3)


class DrawingLearner(SoftmaxLearner):
    """Records the first draw of each training, as dropout or an augmentation would use it."""

    def __init__(self, spec):
        super().__init__(spec)
        self.draws = []

    def fit(self, *arguments, rng, **options):
        self.draws.append(copy.deepcopy(rng).integers(1 << 62))
        return super().fit(*arguments, rng=rng, **options)


def test_experts_share_the_noise_of_a_batch():
    options = {"num_experts": 2, "epochs": 1}
    spec = softmax_spec(NAME, inputs=1, features=1, classes=2, batch_size=4, options=options)
    learner = DrawingLearner(spec)
    algorithm = make_algorithm(NAME, learner, options)
    weights = {item.name: np.ones(item.shape, np.float32) for item in spec.weights}
    sent = algorithm.broadcast(algorithm.init(weights, derive_rng(1, 0, "init")), "a")
    x = np.ones((8, 1), np.float32)
    algorithm.local_update(
        sent,
        ClientState(),
        Shard(
            x_train=x, y_train=np.zeros(8, np.int64), x_test=x, y_test=np.zeros(8, np.int64), num_classes=2
        ),
        "a",
        derive_rng(1, 1),
    )
    first, second, third, fourth = learner.draws
    assert first == second != third == fourth


def make_two_kinds_of_clients(seed=3):
    """Return six clients of blobs. The labels of every other client are shifted by one."""
    rng = np.random.default_rng(seed)
    centres = np.array([[2.0, 0.0, 0.0, 1.0], [0.0, 2.0, 0.0, -1.0], [0.0, 0.0, 2.0, 0.0]])

    def draw_samples(kind, count):
        y = rng.integers(0, 3, count)
        return (centres[y] + rng.normal(0, 0.4, (count, 4))).astype(np.float32), (y + kind) % 3

    def draw_shard(kind):
        x_train, y_train = draw_samples(kind, 48)
        x_test, y_test = draw_samples(kind, 40)
        return Shard(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, num_classes=3)

    return {f"pi-{i}": draw_shard(i % 2) for i in range(6)}


OPTIONS = {"num_experts": 3, "learning_rate": 0.3, "server_learning_rate": 0.03}


@cache
def run_federation(prune=0.0, rounds=12):
    options = OPTIONS | {"prune": prune}
    shards = make_two_kinds_of_clients()
    learner = make_learner(options)
    algorithm = make_algorithm(NAME, learner, options)
    initial = {
        s.name: np.random.default_rng(2).normal(0, 0.5, s.shape).astype(np.float32)
        for s in learner.spec.weights
    }
    state = algorithm.init(initial, derive_rng(1, 0, "init"))
    states = {name: ClientState() for name in shards}
    sent = []
    for round_ in range(1, rounds + 1):
        results = {
            c: algorithm.local_update(
                algorithm.broadcast(state, c), states[c], shards[c], c, derive_rng(1, round_, c)
            )
            for c in shards
        }
        states = {c: client_state for c, (_, client_state) in results.items()}
        sent.append(sum(len(update.deltas) for update, _ in results.values()))
        state = algorithm.aggregate(state, [update for update, _ in results.values()])
    return algorithm, learner, shards, replace(state, phase=PHASE_PERSONALIZE), states, sent


@pytest.mark.parametrize("prune", [0.0, 0.2])
def test_clients_with_equal_labels_choose_the_same_expert(prune):
    algorithm, learner, shards, state, states, sent = run_federation(prune)
    chosen = []
    for name, shard in shards.items():
        mixture, _ = algorithm.personalize(
            algorithm.broadcast(state, name), states[name], shard, derive_rng(1, 99, name)
        )
        assert (
            evaluate(learner, "predict_mixture", mixture.weights, shard.x_test, shard.y_test).accuracy > 0.9
        )
        uniform_mixture = mixture.peers["federated"]
        assert (
            evaluate(
                learner, uniform_mixture.signature, uniform_mixture.weights, shard.x_test, shard.y_test
            ).accuracy
            <= 0.9
            or prune
        )
        chosen.append(mixture.diagnostics["assignment"])
    assert len(set(chosen[::2])) == len(set(chosen[1::2])) == 1
    assert chosen[0] != chosen[1]
    assert 6 < sent[0] <= 18 if prune else sent[0] == 18
    assert sent[-1] == (6 if prune else 18)


def test_late_client_chooses_the_expert_of_similar_clients():
    algorithm, _, shards, state, states, _ = run_federation()
    late, _ = algorithm.personalize(
        algorithm.broadcast(state, "late"), ClientState(), shards["pi-1"], derive_rng(1, 99)
    )
    earlier, _ = algorithm.personalize(
        algorithm.broadcast(state, "pi-1"), states["pi-1"], shards["pi-1"], derive_rng(1, 99)
    )
    assert late.diagnostics["assignment"] == earlier.diagnostics["assignment"]
    assert late.diagnostics[f"responsibility/{int(late.diagnostics['assignment'])}"] > 0.6


def test_likeliest_mixture_is_a_single_accurate_classifier():
    options = OPTIONS | {"mixture": "likeliest"}
    _, _, shards, state, states, _ = run_federation()
    learner = make_learner(options)
    algorithm = make_algorithm(NAME, learner, options)
    mixture, _ = algorithm.personalize(
        algorithm.broadcast(state, "pi-0"), states["pi-0"], shards["pi-0"], derive_rng(1, 99)
    )
    assert set(mixture.weights) == {"trunk/kernel", "head/kernel", "head/bias"}
    assert (
        evaluate(
            learner, "predict_mixture", mixture.weights, shards["pi-0"].x_test, shards["pi-0"].y_test
        ).accuracy
        > 0.9
    )
    check_algorithm(
        lambda any_learner: make_algorithm(NAME, any_learner, options), learner, dict(mixture.weights), shards
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixture": "max"}, "'sum' or 'likeliest'"),
        ({"beta": 0.0}, "above 0"),
        ({"damping": 2.0}, "from 0 to 1"),
        ({"prune": 2.0}, "from 0 to 1"),
    ],
)
def test_invalid_option_is_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm(NAME, None, options)

"""FedALA: steps of W by hand, W = 1 as FedAvg, and a W that is never sent."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState
from edgefl.learning.algorithms import build_objectives, make_algorithm
from edgefl.learning.algorithms.papers.fedala import CONVERGENCE_EPOCHS, has_converged, merge_models
from edgefl.program.learner.litert import LiteRTLearner
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec
from tests.support.softmax_federation import simulate_softmax

ONE_STEP = {"mixing_share": 1.0, "start_epochs": 1}
LOCAL_HEAD = {
    "head/kernel": np.zeros((1, 2), np.float32),
    "head/bias": np.array([1, -1], np.float32),
}
"""A local model that differs from the start by its bias."""


def train_client(one_sample, arrays, **options):
    algorithm = one_sample.make_algorithm("fedala", **{**ONE_STEP, **options})
    return one_sample.train(algorithm, ClientState(arrays), one_sample.start)


@pytest.mark.parametrize(
    ("rate", "share", "start"), [(0.5, 0.75, 0.25), (1.0, 0.5, 0.5), (4.0, 0.0, 1.0), (0.01, 0.995, 0.005)]
)
def test_a_step_of_the_mixing_weights_by_hand(one_sample, rate, share, start):
    """At W = 1 the start is the global model, whose gradient by the bias is (-.5, .5).

    Times global - local = (-1, 1), that is .5 for both. The rate 4 would give -1, which is clipped to 0. The
    kernels are equal, so their W stays at 1. Then one step of training from the bias (s, -s).
    """
    update, state = train_client(one_sample, LOCAL_HEAD, mixing_learning_rate=rate)
    np.testing.assert_allclose(state.arrays["mixing/head/bias"], [share, share], atol=1e-6)
    np.testing.assert_array_equal(state.arrays["mixing/head/kernel"], [[1, 1]])
    expected = start + 1 / (1 + np.exp(2 * start))
    np.testing.assert_allclose(update.deltas["global"]["head/bias"], [expected, -expected], atol=1e-6)
    np.testing.assert_allclose(state.arrays["head/bias"], [expected, -expected], atol=1e-6)


def test_mixing_weights_continue_from_their_last_values(one_sample):
    """The local bias is (1, -1), so the start is (.5, -.5), with a gradient of -+.268941."""
    arrays = {
        **LOCAL_HEAD,
        "mixing/head/kernel": np.ones((1, 2), np.float32),
        "mixing/head/bias": np.full(2, 0.5, np.float32),
    }
    _, state = train_client(one_sample, arrays, mixing_learning_rate=0.1, start_epochs=9)
    np.testing.assert_allclose(state.arrays["mixing/head/bias"], [0.4731059] * 2, atol=1e-6)


def test_the_first_round_is_that_of_fedavg(one_sample):
    """A client without a local model starts from the global model and learns no W."""
    update, state = train_client(one_sample, {})
    expected, _ = one_sample.train(one_sample.make_algorithm("fedavg"), ClientState(), one_sample.start)
    for name, delta in expected.deltas["global"].items():
        assert update.deltas["global"][name].tobytes() == delta.tobytes()
    assert set(state.arrays) == set(LOCAL_HEAD)


def test_rounds_with_all_weights_at_one_are_those_of_fedavg(shards):
    ends = []
    for name, more in (("fedavg", {}), ("fedala", {"mixing_learning_rate": 0.0})):
        options = {"learning_rate": 0.1, **more}
        spec = softmax_spec(name, inputs=4, features=4, classes=3, options=options)
        config = FederationConfig(rounds=3, algorithm=name, options=options)
        ends.append(simulate_softmax(spec, shards, config).state.models["global"])
    for name, array in ends[0].items():
        assert array.tobytes() == ends[1][name].tobytes()


def test_merge_takes_other_weights_from_the_global_model():
    received = {"conv": np.array([3.0], np.float32), "head": np.array([2.0, 2.0, 2.0], np.float32)}
    state = {
        "head": np.array([6.0, 6.0, 6.0], np.float32),
        "mixing/head": np.array([0.0, 0.25, 1.0], np.float32),
    }
    merged = merge_models(received, state)
    assert merged["conv"] is received["conv"]
    np.testing.assert_array_equal(merged["head"], [6, 5, 2])


def test_weights_and_local_layers_stay_on_the_device(one_sample):
    update, state = train_client(one_sample, LOCAL_HEAD)
    assert set(update.deltas) == {"global"} and set(update.deltas["global"]) == set(one_sample.start)
    assert set(update.metrics) == {"loss"}
    assert set(state.arrays) == {*LOCAL_HEAD, "mixing/head/kernel", "mixing/head/bias"}


@settings(max_examples=25, deadline=None)
@given(bias=st.floats(-50, 50, width=32), share=st.floats(0, 1, width=32), rate=st.floats(0.01, 100))
def test_mixing_weights_stay_between_zero_and_one(one_sample, bias, share, rate):
    arrays = {
        **LOCAL_HEAD,
        "head/bias": np.array([bias, -bias], np.float32),
        "mixing/head/kernel": np.ones((1, 2), np.float32),
        "mixing/head/bias": np.full(2, share, np.float32),
    }
    _, state = train_client(one_sample, arrays, mixing_learning_rate=rate)
    assert np.all((state.arrays["mixing/head/bias"] >= 0) & (state.arrays["mixing/head/bias"] <= 1))


def test_convergence_is_judged_by_the_last_losses():
    constant = [1.0] * CONVERGENCE_EPOCHS
    assert not has_converged(constant, 0.01)
    assert has_converged([5.0, *constant], 0.01)
    assert not has_converged([*constant, 5.0], 0.01)


class CountingLearner(SoftmaxLearner):
    """Counts the calls of `fit` for each signature."""

    def __init__(self, spec):
        super().__init__(spec)
        self.calls = {}

    def fit(self, signature, *args, **options):
        self.calls[signature] = self.calls.get(signature, 0) + 1
        return super().fit(signature, *args, **options)


@pytest.mark.parametrize(("threshold", "first_epochs"), [(0.0, 15), (0.012, 14), (100.0, 11)])
def test_the_first_learning_takes_more_epochs(shards, threshold, first_epochs):
    """36 of 45 samples are five batches of 8. The second time takes one epoch.

    The deviation of the last ten losses is .0156 after 13 epochs and .0081 after 14.
    """
    spec = softmax_spec("fedala", inputs=4, features=3, classes=3)
    learner = CountingLearner(spec)
    algorithm = make_algorithm("fedala", learner, {"mixing_threshold": threshold, "start_epochs": 15})
    rng = np.random.default_rng(3)
    model = {w.name: rng.normal(size=w.shape).astype(np.float32) for w in spec.weights}
    state = ClientState({name: model[name] + np.float32(0.1) for name in ("head/kernel", "head/bias")})
    for expected in (first_epochs, first_epochs + 1):
        _, state = algorithm.local_update(
            Broadcast(round=1, phase="federate", models={"global": model}),
            state,
            shards["pi-1"],
            "pi-1",
            derive_rng(1, 1, "pi-1"),
        )
        assert learner.calls["train_mixing"] == 5 * expected


def test_personalization_merges_and_trains_once_more(one_sample):
    """As in the step by hand with rate .5, the start is (.25, -.25)."""
    algorithm = one_sample.make_algorithm("fedala", **ONE_STEP, mixing_learning_rate=0.5)
    mixture, _ = one_sample.personalize(algorithm, ClientState(LOCAL_HEAD), {"global": one_sample.start})
    np.testing.assert_allclose(mixture.weights["head/bias"], [0.6275407, -0.6275407], atol=1e-6)
    np.testing.assert_array_equal(mixture.peers["federated"].weights["head/bias"], [0, 0])
    assert mixture.diagnostics == {"mixing/head/kernel": 1.0, "mixing/head/bias": 0.75}


def test_a_simulated_federation_personalizes(shards):
    options = {"learning_rate": 0.1, "epochs": 2}
    spec = softmax_spec("fedala", inputs=4, features=4, classes=3, options=options)
    end = simulate_softmax(spec, shards, FederationConfig(rounds=4, algorithm="fedala", options=options))
    for metrics in end.metrics.values():
        assert metrics["accuracy_mixture"] > 0.9


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (1, ["fc2/kernel", "fc2/bias"]),
        (2, ["fc1/kernel", "fc1/bias", "fc2/kernel", "fc2/bias"]),
        (3, ["conv/kernel", "conv/bias", "fc1/kernel", "fc1/bias", "fc2/kernel", "fc2/bias"]),
    ],
)
def test_the_last_layers_are_merged(layers, names, tiny_config):
    from edgefl.program.compiler.build import make_network

    mixing = build_objectives("fedala", make_network(tiny_config), {"mixing_layers": layers})[-1]
    assert [spec.name for spec in mixing.trained] == [f"mixing/{name}" for name in names]


def test_more_layers_than_the_model_has_are_an_error(tiny_config):
    from edgefl.program.compiler.build import make_network

    with pytest.raises(ConfigError, match="mixing_layers is 4, expected at most 3"):
        build_objectives("fedala", make_network(tiny_config), {"mixing_layers": 4})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixing_layers": 0}, "1 or more"),
        ({"start_epochs": 0}, "1 or more"),
        ({"mixing_share": 1.5}, "from 0 to 1"),
    ],
)
def test_options_out_of_range_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm("fedala", None, options)


def test_compiled_step_of_the_mixing_weights_is_that_of_numpy(tiny_config, digits):
    """With output kernels of zero the logits are the biases, so the gradient is known."""
    from edgefl.learning.algorithms.plans import build_plan

    options = {"epochs": 1, "learning_rate": 0.1, "batch_size": 8}
    plan, initial = build_plan(replace(tiny_config, algorithm="fedala", options=options))
    x = digits[0][:8]
    y = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    rng = np.random.default_rng(1)
    received = rng.normal(size=10).astype(np.float32)
    local = rng.normal(size=10).astype(np.float32)
    mixing = rng.uniform(0.3, 0.7, size=10).astype(np.float32)
    weights = {
        **initial,
        "fc2/kernel": np.zeros((16, 10), np.float32),
        "fc2/bias": received,
        "local/fc2/kernel": np.zeros((16, 10), np.float32),
        "local/fc2/bias": local,
        "mixing/fc2/kernel": np.ones((16, 10), np.float32),
        "mixing/fc2/bias": mixing,
    }
    trained, loss = LiteRTLearner(plan).fit(
        "train_mixing", weights, {"x": x}, y, epochs=1, rng=derive_rng(1, 1)
    )
    logits = local + (received - local) * mixing
    p = np.exp(logits) / np.exp(logits).sum()
    shares = np.bincount(y, minlength=10) / 8
    np.testing.assert_allclose(
        trained["mixing/fc2/bias"], mixing - (p - shares) * (received - local), atol=1e-5
    )
    np.testing.assert_array_equal(trained["mixing/fc2/kernel"], weights["mixing/fc2/kernel"])
    assert loss == pytest.approx(-(shares[:3] * np.log(p[:3])).sum(), abs=1e-5)

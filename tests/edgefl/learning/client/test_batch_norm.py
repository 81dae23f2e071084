"""Re-estimated moving statistics: by hand, on compiled plans, and their benefit."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig, ModelConfig, PersonalizationConfig
from edgefl.base.errors import DivergedError, PlanError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, Mixture, Peer, Shard, Weights
from edgefl.learning.algorithms import PHASE_FEDERATE, PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.names import LOCAL_START
from edgefl.learning.client.batch_norm import (
    MAX_STATISTICS_SAMPLES,
    make_renewer,
    reestimate_statistics,
    with_statistics,
)
from edgefl.learning.client.runner import ClientRunner, WorkItem
from edgefl.program.learner.base import evaluate
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.learner.loop import StepLearner
from edgefl.program.plan.spec import PlanSpec, SignatureSpec, TensorSpec
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

NORM = ("norm/moving_mean", "norm/moving_variance")


class OneNorm(StepLearner):
    """A batch norm over two channels.

    A step assigns the moving statistics, and moves `norm/gamma` by its learning rate.
    """

    name = "one-norm"

    def __init__(self, momentum: float, batch_size: int = 2) -> None:
        trained = tuple(TensorSpec(name, (2,)) for name in ("norm/gamma", *NORM))
        data = (TensorSpec("x", (batch_size, 2)),)
        train = SignatureSpec(
            name="train",
            kind="train",
            batch_size=batch_size,
            data=data,
            trained=trained,
            hyper={"learning_rate": 0.5},
        )
        self.spec = PlanSpec(
            model="norm",
            algorithm="fedavg",
            options={},
            input_shape=(2,),
            num_classes=2,
            weights=trained,
            signatures=(train,),
        )
        self.momentum = np.float32(momentum)
        self.rows: list[int] = []

    def step(self, signature: str, arguments: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        x = arguments["d_x"]
        self.rows += x[:, 0].astype(int).tolist()
        momentum = self.momentum
        return {
            "t_0": arguments["t_0"] + arguments["h_learning_rate"],
            "t_1": arguments["t_1"] * momentum + x.mean(axis=0) * (1 - momentum),
            "t_2": arguments["t_2"] * momentum + x.var(axis=0) * (1 - momentum),
            "loss": np.float32(1) + 0 * arguments["t_0"].sum(),
        }


def make_norm_weights(mean: float = 3.0, variance: float = 7.0) -> dict[str, np.ndarray]:
    arrays = {"norm/gamma": np.ones(2), NORM[0]: np.full(2, mean), NORM[1]: np.full(2, variance)}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99, 0.999])
def test_statistics_of_four_samples_match_hand_calculation(momentum: float) -> None:
    x = np.array([[1, 10], [3, 10], [5, 30], [7, 30]], np.float32)
    y = np.zeros(4, np.int64)
    weights = make_norm_weights()
    new = reestimate_statistics(OneNorm(momentum), "train", weights, x, y, np.random.default_rng(1))
    # Means of 1, 3, 5, 7 and of 10, 10, 30, 30. The squared distances are 9, 1, 1, 9, and four times 100.
    np.testing.assert_allclose(new[NORM[0]], [4, 20], rtol=1e-3)
    np.testing.assert_allclose(new[NORM[1]], [5, 100], rtol=1e-3)
    assert new["norm/gamma"] is weights["norm/gamma"]
    assert weights[NORM[0]].tolist() == [3, 3]


@given(
    seed=st.integers(0, 99),
    count=st.integers(1, 12).map(lambda batches: 4 * batches),
    momentum=st.sampled_from([0.0, 0.6, 0.99]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_full_batches_give_mean_and_variance_of_all_samples(
    seed: int, count: int, momentum: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(0.5, 1, (count, 2)) * scale).astype(np.float32)
    y = np.zeros(count, np.int64)
    new = reestimate_statistics(OneNorm(momentum, 4), "train", make_norm_weights(), x, y, rng)
    np.testing.assert_allclose(new[NORM[0]], x.mean(axis=0), rtol=1e-3, atol=1e-4 * scale)
    np.testing.assert_allclose(new[NORM[1]], x.var(axis=0), rtol=1e-3)


def test_all_samples_are_used_and_last_batch_is_padded_with_samples() -> None:
    learner = OneNorm(0.9, batch_size=4)
    x = np.arange(1, 11, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    reestimate_statistics(
        learner, "train", make_norm_weights(), x, np.zeros(10, np.int64), np.random.default_rng(1)
    )
    assert len(learner.rows) == 16  # 3 batches, the first twice
    assert set(learner.rows[:12]) == set(range(1, 11))
    assert sorted(learner.rows[12:]) == sorted(learner.rows[:4])


def test_statistics_are_of_samples_without_augmentation() -> None:
    """These samples are no pictures, so an augmentation of them would be an error."""
    learner = OneNorm(0.9)
    x = np.array([[1, 10], [3, 10], [5, 30], [7, 30]], np.float32)
    y = np.zeros(4, np.int64)
    learner.spec = replace(learner.spec, augmentation={"flip": True})
    new = reestimate_statistics(learner, "train", make_norm_weights(), x, y, np.random.default_rng(1))
    np.testing.assert_allclose(new[NORM[0]], [4, 20], rtol=1e-3)
    with pytest.raises(PlanError, match="expected pictures"):
        learner.fit("train", make_norm_weights(), {"x": x}, y, epochs=1, rng=np.random.default_rng(1))


def test_large_shard_is_subsampled() -> None:
    learner = OneNorm(0.9, batch_size=16)
    x = np.arange(2000, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    reestimate_statistics(
        learner, "train", make_norm_weights(), x, np.zeros(2000, np.int64), np.random.default_rng(1)
    )
    assert len(set(learner.rows)) == MAX_STATISTICS_SAMPLES


@pytest.mark.parametrize("case", ["momentum 1", "constant samples", "no samples"])
def test_statistics_that_cannot_be_estimated_are_unchanged(case: str) -> None:
    x = np.array([[1, 10], [3, 12]], np.float32)
    x = np.ones_like(x) if case == "constant samples" else x[:0] if case == "no samples" else x
    learner = OneNorm(1.0 if case == "momentum 1" else 0.9)
    weights = make_norm_weights()
    new = reestimate_statistics(
        learner, "train", weights, x, np.zeros(len(x), np.int64), np.random.default_rng(1)
    )
    assert all(new[name] is weights[name] for name in weights)


def test_model_without_batch_norm_runs_no_steps() -> None:
    learner = SoftmaxLearner(softmax_spec("fedavg", inputs=4, features=3, classes=3))
    weights = {w.name: np.ones(w.shape, np.float32) for w in learner.spec.weights}
    x = np.full((9, 4), np.nan, np.float32)  # a step would reject it
    y = np.zeros(9, np.int64)
    assert reestimate_statistics(learner, "train", weights, x, y, np.random.default_rng(1)) is weights


FOUR_SAMPLES = Shard(
    x_train=np.array([[1, 10], [3, 10], [5, 30], [7, 30]], np.float32),
    y_train=np.zeros(4, np.int64),
    x_test=np.zeros((0, 2), np.float32),
    y_test=np.zeros(0, np.int64),
    num_classes=2,
)


def renew_statistics(learner: OneNorm, weights: Weights) -> Weights:
    return make_renewer(learner, "train", FOUR_SAMPLES, np.random.default_rng(1), 64)(weights)


def test_whole_networks_in_a_mixture_get_new_statistics() -> None:
    network = make_norm_weights()
    parts = {
        "expert0": network,
        "local": make_norm_weights(),
        "trunk": {name: network[name] for name in NORM},
    }
    parts["wide"] = {name: np.ones(3, np.float32) for name in network}  # another architecture
    mixture = {f"{part}/{name}": array for part, weights in parts.items() for name, array in weights.items()}
    mixture |= {"gate/kernel": np.ones(3, np.float32)}
    new = renew_statistics(OneNorm(0.9), mixture)
    assert list(new) == list(mixture)
    changed = {name for name in mixture if new[name] is not mixture[name]}
    assert changed == {f"{part}/{name}" for part in ("expert0", "local") for name in NORM}
    for part in ("expert0", "local"):
        np.testing.assert_allclose(new[f"{part}/{NORM[1]}"], [5, 100], rtol=1e-3)
    np.testing.assert_allclose(renew_statistics(OneNorm(0.9), network)[NORM[0]], [4, 20], rtol=1e-3)


def test_statistics_of_a_network_are_estimated_once() -> None:
    learner = OneNorm(0.9)
    renew = make_renewer(learner, "train", FOUR_SAMPLES, np.random.default_rng(1), 64)
    network = make_norm_weights()
    new = renew(network)
    steps = len(learner.rows)
    assert renew({f"expert{k}/{name}": array for k in range(3) for name, array in network.items()})
    again = renew(new)
    assert len(learner.rows) == steps
    assert all(again[name] is new[name] for name in new)


def list_means(models: Mapping[str, Weights]) -> dict[str, list[float]]:
    return {name: weights[NORM[0]].round(2).tolist() for name, weights in models.items()}


def test_a_personalized_model_has_the_clients_statistics() -> None:
    broadcasts: list[Broadcast] = []

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        broadcasts.append(broadcast)
        peers = {
            "federated": Peer("predict", make_norm_weights(1)),
            "other": Peer("predict_local", make_norm_weights(2)),
            "received": Peer("predict", broadcast.models["global"]),
        }
        return Mixture(weights=make_norm_weights(3), peers=peers, diagnostics={"share": 1.0}), state

    base = replace(make_algorithm("fedavg", None, {}), personalize=personalize)
    learner = OneNorm(0.9)
    algorithm = with_statistics(base, learner)
    models = {
        "global": make_norm_weights(),
        LOCAL_START: make_norm_weights(),
        "phi": {"phi": np.ones((2, 2))},
    }
    received = Broadcast(round=4, phase=PHASE_PERSONALIZE, models=models, scalars={"epochs": 2.0})
    state = ClientState({"own": np.ones(1, np.float32)})
    mixture, after = algorithm.personalize(received, state, FOUR_SAMPLES, np.random.default_rng(1))
    assert after is state
    assert list_means({name: broadcasts[0].models[name] for name in ("global", LOCAL_START)}) == {
        "global": [4, 20],
        LOCAL_START: [3, 3],
    }
    assert (broadcasts[0].round, broadcasts[0].phase, broadcasts[0].scalars) == (
        4,
        PHASE_PERSONALIZE,
        {"epochs": 2.0},
    )
    assert list_means({"mixture": mixture.weights}) == {"mixture": [4, 20]}
    assert list_means({name: peer.weights for name, peer in mixture.peers.items()}) == {
        "federated": [4, 20],
        "other": [2, 2],
        "received": [4, 20],
    }
    assert mixture.diagnostics == {"share": 1.0}
    assert len(learner.rows) == 3 * 6  # global, federated and mixture; two batches each, the first twice


def test_the_current_model_has_the_clients_statistics() -> None:
    algorithm = with_statistics(make_algorithm("fedavg", None, {}), OneNorm(0.9))
    received = Broadcast(round=1, phase=PHASE_FEDERATE, models={"global": make_norm_weights()})
    current = algorithm.current(received, ClientState(), FOUR_SAMPLES)
    assert current is not None
    assert current.signature == "predict"
    assert list_means({"current": current.weights}) == {"current": [4, 20]}


def test_diverged_model_is_measured_unchanged() -> None:
    broken = {**make_norm_weights(), "norm/gamma": np.full(2, np.nan, np.float32)}
    algorithm = with_statistics(make_algorithm("fedavg", None, {}), OneNorm(0.9))
    current = algorithm.current(
        Broadcast(round=1, phase=PHASE_FEDERATE, models={"global": broken}), ClientState(), FOUR_SAMPLES
    )
    assert current is not None
    assert current.weights is broken
    with pytest.raises(DivergedError):
        renew_statistics(OneNorm(0.9), broken)


def test_algorithm_of_a_plan_without_batch_norm_is_not_wrapped() -> None:
    base = make_algorithm("fedavg", None, {})
    assert (
        with_statistics(base, SoftmaxLearner(softmax_spec("fedavg", inputs=4, features=3, classes=3))) is base
    )


@pytest.fixture(scope="module")
def normed_plan(tmp_path_factory):
    """Return (plan, initial weights, model, configuration).

    The network has two batch norms, and dropout between them.
    """
    keras = pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from edgefl.learning.algorithms.plans import build_plan

    layers = keras.layers
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, use_bias=False, name="conv"),
            layers.BatchNormalization(name="norm1"),  # momentum .99
            layers.ReLU(name="relu"),
            layers.Dropout(0.25, name="drop"),
            layers.Conv2D(8, 3, strides=2, name="conv2"),
            layers.BatchNormalization(momentum=0.9, name="norm2"),
            layers.ReLU(name="relu2"),
            layers.Flatten(name="flatten"),
            layers.Dense(10, name="fc"),
        ]
    )
    path = tmp_path_factory.mktemp("model") / "normed.keras"
    model.save(path)
    options = {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.01, "batch_size": 16}
    config = FederationConfig(
        algorithm="fedavg",
        options=options,
        model=ModelConfig(name=str(path), input_shape=(8, 8, 1), num_classes=10),
    )
    return *build_plan(config), model, config


@pytest.fixture(scope="module")
def trained(normed_plan, digits):
    """Return (learner, weights, x, y): the model after two epochs on 160 digits."""
    plan, initial, *_ = normed_plan
    learner = LiteRTLearner(plan)
    x, y = digits
    x = x * 16 + 10  # far from what the initial statistics fit
    rng = np.random.default_rng(1)
    new, _ = learner.fit("train", initial, {"x": x[:160]}, y[:160], epochs=2, rng=rng)
    return learner, {**initial, **new}, x, y


def test_first_layer_statistics_match_its_inputs(trained, normed_plan) -> None:
    learner, weights, x, y = trained
    model = normed_plan[2]
    new = reestimate_statistics(learner, "train", weights, x[:160], y[:160], np.random.default_rng(2))
    model.get_layer("conv").set_weights([weights["conv/kernel"]])
    images = np.asarray(model.get_layer("conv")(x[:160]))
    np.testing.assert_allclose(new["norm1/moving_mean"], images.mean(axis=(0, 1, 2)), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(new["norm1/moving_variance"], images.var(axis=(0, 1, 2)), rtol=1e-3)
    changed = {name for name in weights if new[name] is not weights[name]}
    assert changed == {f"norm{i}/moving_{part}" for i in (1, 2) for part in ("mean", "variance")}


def test_estimate_does_not_depend_on_old_statistics(trained) -> None:
    learner, weights, x, y = trained
    shifted = {name: w + np.float32(5) if "moving" in name else w for name, w in weights.items()}
    both = [
        reestimate_statistics(learner, "train", start, x[:50], y[:50], np.random.default_rng(2))
        for start in (weights, shifted)
    ]
    for name in weights:
        np.testing.assert_array_equal(both[0][name], both[1][name])


def test_new_statistics_improve_accuracy_after_few_epochs(trained) -> None:
    learner, weights, x, y = trained
    new = reestimate_statistics(learner, "train", weights, x[:160], y[:160], np.random.default_rng(2))
    before = evaluate(learner, "predict", weights, x[160:], y[160:]).accuracy
    after = evaluate(learner, "predict", new, x[160:], y[160:]).accuracy

    assert before + 0.1 < after > 0.6


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("aem", "fedap", "fedem", "fedprox", "fedrod")]


@pytest.mark.parametrize("name", ["pfl-mfe", *SLOW])
def test_a_client_ships_statistics_of_its_samples(name, normed_plan, digits) -> None:
    """FedAP keeps the statistics of earlier rounds in the client's state. They belong to other weights."""
    from edgefl.learning.algorithms.plans import build_plan

    options = {
        "aem": {"num_experts": 2, "local_epochs": 2, "gate_epochs": 2},
        "fedem": {"num_experts": 2},
    }.get(name, {})
    no_selection = PersonalizationConfig(select=False, baseline=False)
    config = replace(normed_plan[3], algorithm=name, options=options, personalization=no_selection)
    plan, initial = build_plan(config)
    x, y = digits
    shard = Shard(x_train=x[:120], y_train=y[:120], x_test=x[120:200], y_test=y[120:200], num_classes=10)
    runner = ClientRunner(plan, LiteRTLearner(plan), {"pi-1": shard}, 1)
    server = make_algorithm(name, None, plan.spec.options)
    state = server.init(initial, derive_rng(1, 0, "init"))
    update, client_state = runner.update(
        WorkItem(broadcast=server.broadcast(state, "pi-1"), state=ClientState(), client_id="pi-1")
    )
    state = replace(server.aggregate(state, [update]), phase=PHASE_PERSONALIZE)
    received = server.broadcast(state, "pi-1")
    mixture, *_ = runner.personalize(WorkItem(broadcast=received, state=client_state, client_id="pi-1"))
    prefixes = {"aem": ("expert0/", "local/"), "fedem": ("expert0/", "expert1/")}
    for prefix in prefixes.get(name, ("",)):
        model = normed_plan[2].get_layer("conv")
        model.set_weights([mixture.weights[f"{prefix}conv/kernel"]])
        images = np.asarray(model(shard.x_train))
        mean = mixture.weights[f"{prefix}norm1/moving_mean"]
        np.testing.assert_allclose(mean, images.mean(axis=(0, 1, 2)), rtol=0.02, atol=1e-3)

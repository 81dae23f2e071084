"""The accuracy of a round by hand: the current model on the client's validation samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, Shard
from edgefl.learning.algorithms import PHASE_FEDERATE, PHASE_PERSONALIZE, REGISTRY, make_algorithm
from edgefl.learning.algorithms.papers.apfl import PersonalShare
from edgefl.learning.client.compression import CodecResidual, with_compression
from edgefl.learning.client.evaluation import evaluate_current_model
from edgefl.learning.client.validation import ValidationSplit
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def make_biased_model(first, second):
    """Return a model whose logits are its bias for every sample."""
    return {
        "trunk/kernel": np.ones((1, 1), np.float32),
        "head/kernel": np.zeros((1, 2), np.float32),
        "head/bias": np.array([first, second], np.float32),
    }


def make_shard(*labels):
    x = np.ones((len(labels), 1), np.float32)
    y = np.array(labels, np.int64)
    return Shard(x_train=x, y_train=y, x_test=x[:0], y_test=y[:0], num_classes=2)


def make_split(labels, train=(0,)):
    """Return validation samples with these labels, and training samples with others."""
    held_out = make_shard(*labels)
    return ValidationSplit(train=make_shard(*train), x=held_out.x_train, y=held_out.y_train)


def measure(name, models, labels, *, state=None, train=(0,), **options):
    """Return the metrics of a client that validates on these labels and trains on others."""
    full = {"batch_size": 1, **options}
    learner = SoftmaxLearner(softmax_spec(name, inputs=1, features=1, classes=2, batch_size=1, options=full))
    algorithm = make_algorithm(name, learner, full)
    broadcast = Broadcast(round=3, phase=PHASE_FEDERATE, models=models)
    return evaluate_current_model(
        algorithm, learner, broadcast, state or ClientState(), make_split(labels, train)
    )


def test_accuracy_matches_hand_calculation():
    """A model that always predicts class 1 is right on two of three samples."""
    assert measure("fedavg", {"global": make_biased_model(0, 1)}, [1, 1, 0]) == {
        "accuracy": pytest.approx(2 / 3)
    }
    assert measure("fedavg", {"global": make_biased_model(0, 1)}, [0]) == {"accuracy": 0.0}


def test_no_accuracy_is_reported_without_samples_or_valid_model():
    assert measure("fedavg", {"global": make_biased_model(0, 1)}, []) == {}
    assert measure("fedavg", {"global": make_biased_model(0, np.nan)}, [0, 1]) == {}
    assert measure("local", {}, [0, 1]) == {}
    incomplete = {name: array for name, array in make_biased_model(0, 1).items() if name != "head/bias"}
    assert measure("fedavg", {"global": incomplete}, [0, 1]) == {}


def test_sample_with_nan_is_an_error():
    learner = SoftmaxLearner(softmax_spec("fedavg", inputs=1, features=1, classes=2, batch_size=1))
    algorithm = make_algorithm("fedavg", learner, {})
    broadcast = Broadcast(round=1, phase=PHASE_FEDERATE, models={"global": make_biased_model(0, 1)})
    x = np.full((1, 1), np.nan, np.float32)
    with pytest.raises(DataError, match="NaN"):
        evaluate_current_model(
            algorithm,
            learner,
            broadcast,
            ClientState(),
            ValidationSplit(train=make_shard(0), x=x, y=np.array([0])),
        )


def test_clustered_client_mixes_its_model_with_the_cluster_model():
    """The mean of the biases (0, 4) and (1, 0) predicts class 1. The cluster model alone predicts class 0."""
    received = {"global": make_biased_model(1, 0)}
    client_state = ClientState({"head/bias": np.array([0, 4], np.float32)})
    assert measure("clustered", received, [1, 1, 0, 0, 0]) == {"accuracy": pytest.approx(0.6)}
    assert measure("clustered", received, [1, 1, 0, 0, 0], state=client_state) == {
        "accuracy": pytest.approx(0.4)
    }
    assert measure("clustered", received, [1, 1, 0, 0, 0], state=client_state, mixing=0.1) == {
        "accuracy": pytest.approx(0.6)
    }


def test_personal_weights_are_used_if_the_client_has_them():
    """The personal weights predict class 1, and the received weights predict class 0."""
    received = make_biased_model(1, 0)
    client_state = ClientState({"head/bias": np.array([0, 4], np.float32)})
    assert measure("ditto", {"global": received}, [1, 1, 0]) == {"accuracy": pytest.approx(1 / 3)}
    assert measure("ditto", {"global": received}, [1, 1, 0], state=client_state) == {
        "accuracy": pytest.approx(2 / 3)
    }
    assert measure("apfl", {"global": received}, [1, 1, 0], state=client_state) == {
        "accuracy": pytest.approx(2 / 3)
    }
    unmixed = client_state.with_record(PersonalShare(alpha=0.0))
    assert measure("apfl", {"global": received}, [1, 1, 0], state=unmixed) == {
        "accuracy": pytest.approx(1 / 3)
    }
    merged = ClientState({**client_state.arrays, "mixing/head/bias": np.zeros(2, np.float32)})
    assert measure("fedala", {"global": received}, [1, 1, 0], state=merged) == {
        "accuracy": pytest.approx(2 / 3)
    }
    added = ClientState({"personal/head/bias": np.array([0, 4], np.float32)})
    assert measure("fedrod", {"global": received}, [1, 1, 0], state=added) == {
        "accuracy": pytest.approx(2 / 3)
    }
    shared = {name: array for name, array in received.items() if name != "head/bias"}
    models = {"global": shared, "start": {"head/bias": received["head/bias"]}}
    assert measure("biased-fedavg", models, [1, 1, 0]) == {"accuracy": pytest.approx(1 / 3)}
    assert measure("biased-fedavg", models, [1, 1, 0], state=client_state) == {
        "accuracy": pytest.approx(2 / 3)
    }


@pytest.mark.parametrize("name", ["ifca", "aem"])
def test_expert_with_lowest_training_loss_is_used(name):
    """A client of class 1 uses the model that predicts class 1, independently of its validation samples."""
    models = {"expert0": make_biased_model(2, 0), "expert1": make_biased_model(0, 2)}
    assert measure(name, models, [0, 0, 0, 1], train=[1, 1], num_experts=2) == {"accuracy": 0.25}
    assert measure(name, models, [0, 0, 0, 1], train=[0, 0], num_experts=2) == {"accuracy": 0.75}


def test_fedmix_permutation_weighs_experts_by_pi():
    models = {"expert0": make_biased_model(2, 0), "expert1": make_biased_model(0, 2)}
    name, labels = "fedmix-permutation", [0, 0, 0, 1]
    for share, accuracy in ((0.9, 0.75), (0.1, 0.25)):
        state = ClientState({"pi": np.array([share, 1 - share], np.float32)})
        for mixture in ("sum", "likeliest"):
            assert measure(name, models, labels, state=state, num_experts=2, mixture=mixture) == {
                "accuracy": accuracy
            }


def test_fedmix_weighs_experts_by_the_clients_labels():
    """phi assigns class 0 to expert 0 and class 1 to expert 1. The gate adds the same to both."""
    models = {"expert0": make_biased_model(2, 0), "expert1": make_biased_model(0, 2)}
    phi = {"phi": np.array([[9, -9], [-9, 9]], np.float32)}
    pruned = {"num_experts": 2, "prune": 1.0}
    for label, accuracy in ((0, 0.75), (1, 0.25)):
        assert measure("fedmix", {**models, "phi": phi}, [0, 0, 0, 1], train=[label] * 3, **pruned) == {
            "accuracy": accuracy
        }


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_codec_does_not_hide_the_client_state(codec):
    learner = SoftmaxLearner(softmax_spec("ditto", inputs=1, features=1, classes=2, batch_size=1))
    algorithm = with_compression(make_algorithm("ditto", learner, {}), codec)
    client_state = ClientState({"head/bias": np.array([0, 4], np.float32)}).with_record(
        CodecResidual({"global": {"head/bias": np.zeros(2, np.float32)}})
    )
    broadcast = Broadcast(round=1, phase=PHASE_FEDERATE, models={"global": make_biased_model(1, 0)})
    assert evaluate_current_model(algorithm, learner, broadcast, client_state, make_split([1, 1, 0])) == {
        "accuracy": pytest.approx(2 / 3)
    }


@given(
    labels=st.lists(st.integers(0, 1), min_size=1, max_size=20),
    bias=st.tuples(st.floats(-2, 2, width=32), st.floats(-2, 2, width=32)),
)
def test_accuracy_is_the_share_of_the_predicted_class(labels, bias):
    metrics = measure("fedavg", {"global": make_biased_model(*bias)}, labels)
    assert metrics["accuracy"] == pytest.approx(np.mean(np.array(labels) == int(bias[1] > bias[0])))


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "local"])
def test_every_algorithm_reports_an_accuracy_in_its_first_round(name, shards):
    """The figure is a share. Neither the state nor the received weights change."""
    options = {"num_experts": 2} if "num_experts" in REGISTRY[name].defaults else {}
    spec = softmax_spec(name, inputs=4, features=4, classes=3, options=options)
    learner = SoftmaxLearner(spec)
    rng = np.random.default_rng(3)
    initial = {item.name: rng.normal(0, 0.3, item.shape).astype(np.float32) for item in spec.weights}
    server = make_algorithm(name, None, options)
    broadcast = server.broadcast(server.init(initial, derive_rng(5, 0, "init")), "pi-1")
    before = {model: {n: a.copy() for n, a in weights.items()} for model, weights in broadcast.models.items()}
    shard = shards["pi-1"]
    algorithm = make_algorithm(name, learner, options)
    samples = ValidationSplit(train=shard, x=shard.x_test, y=shard.y_test)
    metrics = evaluate_current_model(algorithm, learner, broadcast, ClientState(), samples)
    assert metrics.keys() == {"accuracy"} and 0 <= metrics["accuracy"] <= 1
    for model, weights in broadcast.models.items():
        for item, array in weights.items():
            np.testing.assert_array_equal(array, before[model][item])
    assert broadcast.phase != PHASE_PERSONALIZE

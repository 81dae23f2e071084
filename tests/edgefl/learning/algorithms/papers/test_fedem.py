"""FedEM: a round by hand, private mixture weights, and two groups with opposite labels."""

import numpy as np
import pytest

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, ServerState, Update
from edgefl.learning.algorithms import (
    PHASE_FEDERATE,
    PHASE_PERSONALIZE,
    complete_algorithm_options,
    make_algorithm,
)
from edgefl.learning.algorithms.mixtures.constant_shares import infer_responsibilities
from edgefl.learning.algorithms.papers.fedem import estimate_pi
from tests.support.numpy_learner.softmax import softmax_spec
from tests.support.softmax_federation import make_permuted_shard, simulate_softmax

LOG_P = np.log([[0.2, 0.6], [0.5, 0.5], [0.9, 0.1]])
"""log p_m(y_i | x_i) of three samples and two components."""


def test_e_step_and_m_step_by_hand():
    """With pi (.25, .75) the joints are (.05, .45), (.125, .375) and (.225, .075)."""
    q = infer_responsibilities(np.array([0.25, 0.75]), LOG_P)
    np.testing.assert_allclose(q, [[0.1, 0.9], [0.25, 0.75], [0.75, 0.25]])
    np.testing.assert_allclose(estimate_pi(np.array([0.25, 0.75]), LOG_P, 1), [1.1 / 3, 1.9 / 3])
    np.testing.assert_allclose(estimate_pi(np.array([0.25, 0.75]), LOG_P, 0), [0.25, 0.75])


def test_final_steps_increase_the_likelihood():
    likelihoods = [
        np.log(np.exp(LOG_P) @ estimate_pi(np.array([0.05, 0.95]), LOG_P, steps)).mean() for steps in range(9)
    ]
    assert (np.diff(likelihoods) > 0).all()


def test_faded_component_can_return():
    log_p = np.log([[1.0, 1e-9]])
    assert estimate_pi(np.array([0.0, 1.0]), log_p, 1)[0] > 0.99


def make_components(one_sample):
    """Return component 0 with p = (1/2, 1/2), and component 1 with p = (3/4, 1/4)."""
    bias = np.log([3, 1]).astype(np.float32)
    return {"expert0": one_sample.start, "expert1": {**one_sample.start, "head/bias": bias}}


def train(one_sample, state):
    algorithm = one_sample.make_algorithm("fedem", num_experts=2)
    models = make_components(one_sample)
    return algorithm.local_update(
        Broadcast(round=1, phase=PHASE_FEDERATE, models=models),
        state,
        one_sample.shard,
        "a",
        derive_rng(1, 1, "a"),
    )


@pytest.mark.parametrize(
    ("state", "q"),
    [(ClientState(), [0.4, 0.6]), (ClientState({"pi": np.float32([0.75, 0.25])}), [2 / 3, 1 / 3])],
)
def test_one_step_by_hand(one_sample, state, q):
    """The gradients by the bias are q_0 (-.5, .5) and q_1 (-.25, .25)."""
    update, after = train(one_sample, state)
    np.testing.assert_allclose(after.arrays["pi"], q, atol=1e-6)
    np.testing.assert_allclose(
        update.deltas["expert0"]["head/bias"], np.multiply(q[0], [0.5, -0.5]), atol=1e-6
    )
    np.testing.assert_allclose(
        update.deltas["expert1"]["head/bias"], np.multiply(q[1], [0.25, -0.25]), atol=1e-6
    )
    assert update.metrics["loss"] == pytest.approx(q[0] * np.log(2) + q[1] * np.log(4 / 3), abs=1e-6)


def test_mixture_weights_are_not_in_the_update(one_sample):
    update, after = train(one_sample, ClientState())
    assert update.metrics.keys() == {"loss"}
    assert all(delta.keys() == one_sample.start.keys() for delta in update.deltas.values())
    assert after.arrays.keys() == {"pi"}


def test_server_averages_each_component():
    algorithm = make_algorithm("fedem", None, {"num_experts": 2})
    zero = {"w": np.zeros(1, np.float32)}
    state = ServerState(round=1, phase=PHASE_FEDERATE, models={"expert0": zero, "expert1": zero})

    def make_update(client, samples, first, second):
        return Update(
            client_id=client,
            round=1,
            num_samples=samples,
            deltas={"expert0": {"w": np.float32([first])}, "expert1": {"w": np.float32([second])}},
        )

    after = algorithm.aggregate(state, [make_update("a", 1, 4, 0), make_update("b", 3, 0, 8)])
    assert [after.models[f"expert{k}"]["w"].tolist() for k in range(2)] == [[1], [6]]


def test_client_without_state_estimates_its_weights(one_sample):
    """One EM step from uniform pi gives (.4, .6). The mixture has log (.4 / 2 + .6 * 3/4) = log .65."""
    algorithm = one_sample.make_algorithm("fedem", num_experts=2, final_steps=1)
    mixture, _ = algorithm.personalize(
        Broadcast(round=2, phase=PHASE_PERSONALIZE, models=make_components(one_sample)),
        ClientState(),
        one_sample.shard,
        derive_rng(1, 2, "a"),
    )
    shares = [mixture.weights[f"responsibility/{k}"].item() for k in range(2)]
    np.testing.assert_allclose(shares, [0.4, 0.6], atol=1e-6)
    assert mixture.diagnostics["assignment"] == 1


def test_clients_with_opposite_labels_use_other_components():
    labels = [[0, 1, 2], [2, 1, 0]]
    shards = {f"c{i}": make_permuted_shard(i, labels[i % 2], 0.5) for i in range(6)}
    options = complete_algorithm_options("fedem", {"num_experts": 2, "learning_rate": 0.05})
    spec = softmax_spec("fedem", inputs=4, features=4, classes=3, options=options)
    config = FederationConfig(rounds=15, algorithm="fedem", options=options)
    end = simulate_softmax(spec, shards, config)
    accuracies = [metrics["accuracy_mixture"] for metrics in end.metrics.values()]
    assert np.mean(accuracies) > 0.85
    largest = [int(mixture.diagnostics["assignment"]) for mixture in end.mixtures.values()]
    assert largest == [largest[0], 1 - largest[0]] * 3


def test_invalid_option_is_an_error():
    with pytest.raises(ConfigError, match="num_experts is 0, expected 1 or more"):
        make_algorithm("fedem", None, {"num_experts": 0})

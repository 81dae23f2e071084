"""Communication cost of unchanged models: stopped models of AEM and pruned experts of FedMix."""

from dataclasses import replace

import numpy as np

from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.protocol.wire.tensors import encode_models, encode_weights
from edgefl.simulation.communication_cost import CommunicationCost
from tests.support.numpy_learner.softmax import softmax_spec


def count_model_bytes_down(communication_cost, broadcast, client_id):
    """Return the bytes of the models in a broadcast.

    The second call counts only the bytes of the task, because the client has the models by then.
    """
    return communication_cost.count_bytes_down(broadcast, client_id) - communication_cost.count_bytes_down(
        broadcast, client_id
    )


def test_stopped_aem_model_is_not_sent_again():
    algorithm = make_algorithm("aem", None, {"num_experts": 2, "patience": 1, "validation_share": 0.1})
    communication_cost = CommunicationCost()
    weights = {"w": np.random.default_rng(7).normal(0, 0.5, (10, 10)).astype(np.float32)}
    state = algorithm.init(weights, derive_rng(1, 0, "init"))
    size = len(encode_weights(weights))

    def aggregate_round(state, *updates):
        rows = [
            Update(
                client_id=f"c{i}",
                round=state.round,
                num_samples=1,
                deltas={f"expert{k}": {"w": np.full((10, 10), step, np.float32)}},
                metrics={"loss": 1.0, "expert": float(k), "validation_loss": loss},
            )
            for i, (k, step, loss) in enumerate(updates)
        ]
        after = algorithm.aggregate(state, rows)
        communication_cost.close_round(after.models)
        return after

    assert list(algorithm.broadcast(state, "a").models) == ["expert0", "expert1"]
    assert count_model_bytes_down(communication_cost, algorithm.broadcast(state, "a"), "a") == 2 * size
    state = aggregate_round(state, (0, 1.0, 0.5), (1, 2.0, 0.5))
    assert count_model_bytes_down(communication_cost, algorithm.broadcast(state, "a"), "a") == 2 * size
    state = aggregate_round(state, (1, 1.0, 0.4))
    assert count_model_bytes_down(communication_cost, algorithm.broadcast(state, "a"), "a") == size, (
        "nobody trained expert0: it is not sent again"
    )
    state = aggregate_round(state, (0, 1.0, 0.6), (1, 1.0, 0.3))
    assert list(algorithm.broadcast(state, "a").models) == ["expert1"], "expert0 has stopped"
    assert count_model_bytes_down(communication_cost, algorithm.broadcast(state, "a"), "a") == size
    assert count_model_bytes_down(communication_cost, algorithm.broadcast(state, "b"), "b") == size, (
        "nor does it go to who comes later"
    )
    end = replace(state, phase=PHASE_PERSONALIZE)
    assert sorted(algorithm.broadcast(end, "a").models) == ["expert0", "expert1", "local"]
    assert count_model_bytes_down(communication_cost, algorithm.broadcast(end, "a"), "a") == size, (
        "the last step of expert0: local begins as that did"
    )
    assert count_model_bytes_down(communication_cost, algorithm.broadcast(end, "a"), "a") == 0


def test_pruned_fedmix_expert_is_not_sent_in_either_direction():
    spec = softmax_spec("fedmix", inputs=4, features=3, classes=3, options={"num_experts": 3, "prune": 0.6})
    algorithm = make_algorithm("fedmix", None, {"num_experts": 3, "prune": 0.6})
    communication_cost = CommunicationCost()
    initial = {
        s.name: np.random.default_rng(7).normal(0, 0.5, s.shape).astype(np.float32) for s in spec.weights
    }
    state = algorithm.init(initial, derive_rng(1, 0, "init"))
    sizes = {name: len(encode_weights(weights)) for name, weights in state.models.items()}
    assert count_model_bytes_down(communication_cost, algorithm.broadcast(state, "a"), "a") == sum(
        sizes.values()
    )

    trained = {
        name: {key: np.ones_like(array) for key, array in state.models[name].items()}
        for name in ("expert0", "phi")
    }
    update = Update(
        client_id="a",
        round=1,
        num_samples=30,
        deltas=trained,
        metrics={"loss": 1.0, "q/0": 0.8, "q/1": 0.15, "q/2": 0.05},
    )
    assert len(encode_models(update.deltas)) < sizes["expert0"] + sizes["phi"] + 400
    state = algorithm.aggregate(state, [update])
    communication_cost.close_round(state.models)
    assert set(algorithm.broadcast(state, "a").models) == {"expert0", "phi"}, (
        "a told that it uses expert0 alone"
    )
    assert (
        count_model_bytes_down(communication_cost, algorithm.broadcast(state, "a"), "a")
        == sizes["expert0"] + sizes["phi"]
    )
    assert count_model_bytes_down(communication_cost, algorithm.broadcast(state, "b"), "b") == sum(
        sizes.values()
    )
    again = algorithm.aggregate(state, [replace(update, client_id="c", round=2)])
    communication_cost.close_round(again.models)
    assert (
        count_model_bytes_down(communication_cost, algorithm.broadcast(again, "b"), "b")
        == sizes["expert0"] + sizes["phi"]
    ), "what nobody trained it holds"

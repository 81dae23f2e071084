"""Only what changed is sent: bytes of models after the first round, for AEM's stopped ones and for those that
FedMix prunes.
"""

from dataclasses import replace

import numpy as np

from edgefl.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.rng import derive_rng
from edgefl.simulation.communication_cost import CommunicationCost
from edgefl.types import Update
from edgefl.wire.tensors import encode_models, encode_weights
from tests.support.numpy_learner.softmax import softmax_spec


def models_down(traffic, broadcast, client_id):
    """Return the bytes without those of the task: asked a second time it is the task alone."""
    return traffic.count_bytes_down(broadcast, client_id) - traffic.count_bytes_down(broadcast, client_id)


def test_a_stopped_model_of_aem_costs_nothing_and_at_the_end_nothing_again():
    algorithm = make_algorithm("aem", None, {"num_experts": 2, "patience": 1})
    traffic = CommunicationCost()
    weights = {"w": np.random.default_rng(7).normal(0, 0.5, (10, 10)).astype(np.float32)}
    state = algorithm.init(weights, derive_rng(1, 0, "init"))
    size = len(encode_weights(weights))

    def play(state, *updates):
        rows = [
            Update(
                f"c{i}",
                state.round,
                1,
                {f"expert{k}": {"w": np.full((10, 10), step, np.float32)}},
                {"loss": 1.0, "expert": float(k), "validation_loss": loss},
            )
            for i, (k, step, loss) in enumerate(updates)
        ]
        after = algorithm.aggregate(state, rows)
        traffic.close_round(after.models)
        return after

    assert list(algorithm.broadcast(state, "a").models) == ["expert0", "expert1"]
    assert models_down(traffic, algorithm.broadcast(state, "a"), "a") == 2 * size
    state = play(state, (0, 1.0, 0.5), (1, 2.0, 0.5))
    assert models_down(traffic, algorithm.broadcast(state, "a"), "a") == 2 * size
    state = play(state, (1, 1.0, 0.4))
    assert models_down(traffic, algorithm.broadcast(state, "a"), "a") == size, (
        "nobody trained expert0: it is not sent again"
    )
    state = play(state, (0, 1.0, 0.6), (1, 1.0, 0.3))
    assert list(algorithm.broadcast(state, "a").models) == ["expert1"], "expert0 has stopped"
    assert models_down(traffic, algorithm.broadcast(state, "a"), "a") == size
    assert models_down(traffic, algorithm.broadcast(state, "b"), "b") == size, (
        "nor does it go to who comes later"
    )
    end = replace(state, phase=PHASE_PERSONALIZE)
    assert sorted(algorithm.broadcast(end, "a").models) == ["expert0", "expert1", "local"]
    assert models_down(traffic, algorithm.broadcast(end, "a"), "a") == size, (
        "the last step of expert0: local begins as that did"
    )
    assert models_down(traffic, algorithm.broadcast(end, "a"), "a") == 0


def test_what_fedmix_prunes_costs_nothing_either_way():
    spec = softmax_spec("fedmix", inputs=4, features=3, classes=3, options={"num_experts": 3, "prune": 0.6})
    algorithm = make_algorithm("fedmix", None, {"num_experts": 3, "prune": 0.6})
    traffic = CommunicationCost()
    initial = {
        s.name: np.random.default_rng(7).normal(0, 0.5, s.shape).astype(np.float32) for s in spec.weights
    }
    state = algorithm.init(initial, derive_rng(1, 0, "init"))
    sizes = {name: len(encode_weights(weights)) for name, weights in state.models.items()}
    assert models_down(traffic, algorithm.broadcast(state, "a"), "a") == sum(sizes.values())

    trained = {
        name: {key: np.ones_like(array) for key, array in state.models[name].items()}
        for name in ("expert0", "phi")
    }
    update = Update("a", 1, 30, trained, {"loss": 1.0, "q/0": 0.8, "q/1": 0.15, "q/2": 0.05})
    assert len(encode_models(update.deltas)) < sizes["expert0"] + sizes["phi"] + 400
    state = algorithm.aggregate(state, [update])
    traffic.close_round(state.models)
    assert set(algorithm.broadcast(state, "a").models) == {"expert0", "phi"}, (
        "a told that it uses expert0 alone"
    )
    assert models_down(traffic, algorithm.broadcast(state, "a"), "a") == sizes["expert0"] + sizes["phi"]
    assert models_down(traffic, algorithm.broadcast(state, "b"), "b") == sum(sizes.values())
    again = algorithm.aggregate(state, [replace(update, client_id="c", round=2)])
    traffic.close_round(again.models)
    assert models_down(traffic, algorithm.broadcast(again, "b"), "b") == sizes["expert0"] + sizes["phi"], (
        "what nobody trained it holds"
    )

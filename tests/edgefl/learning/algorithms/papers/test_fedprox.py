"""FedProx: two steps by hand, mu = 0, and equal code in the page on writing an algorithm."""

from pathlib import Path

import numpy as np
import pytest

from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState
from edgefl.learning.algorithms import PHASE_FEDERATE, make_algorithm
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def test_two_steps_by_hand(one_sample):
    """mu is .5 and the rate is 1.

    Step 1: bias (.5, -.5). Step 2: p = .880797, gradient -.119203 + .5 * .5 = .130797, loss .126928 + .25.
    """
    update, _ = one_sample.train(
        one_sample.make_algorithm("fedprox", mu=0.5, epochs=2), ClientState(), one_sample.start
    )
    delta = update.deltas["global"]
    np.testing.assert_allclose(delta["head/bias"], [0.369203, -0.369203], atol=1e-6)
    np.testing.assert_allclose(delta["head/kernel"], [[0.369203, -0.369203]], atol=1e-6)
    np.testing.assert_allclose(delta["trunk/kernel"], [[0.119203]], atol=1e-6)
    assert update.metrics["loss"] == pytest.approx(0.376928, abs=1e-6)
    assert update.metrics["distance"] == pytest.approx(np.sqrt(4 * 0.369203**2 + 0.119203**2), abs=1e-6)


def make_model():
    rng = np.random.default_rng(7)
    return {
        "trunk/kernel": rng.normal(0, 0.5, (4, 3)).astype(np.float32),
        "head/kernel": rng.normal(0, 0.5, (3, 3)).astype(np.float32),
        "head/bias": np.zeros(3, np.float32),
    }


def train_client(name, shard, **options):
    learner = SoftmaxLearner(softmax_spec(name, inputs=4, features=3, classes=3, options=options))
    algorithm = make_algorithm(name, learner, options)
    return algorithm.local_update(
        Broadcast(round=1, phase=PHASE_FEDERATE, models={"global": make_model()}),
        ClientState(),
        shard,
        "a",
        derive_rng(1, 1, "a"),
    )[0]


def test_fedprox_without_penalty_equals_fedavg(shards):
    plain = train_client("fedavg", shards["pi-1"])
    prox = train_client("fedprox", shards["pi-1"], mu=0.0)
    assert all(
        np.array_equal(plain.deltas["global"][name], prox.deltas["global"][name]) for name in make_model()
    )


def test_larger_penalty_gives_smaller_distance(shards):
    distances = [
        train_client("fedprox", shards["pi-1"], mu=mu).metrics["distance"] for mu in (0.0, 0.1, 1.0, 10.0)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < distances[0] / 3


def test_documentation_page_contains_the_code_of_fedprox():
    root = Path(__file__).parents[5]
    page = (root / "docs/how-to/write-your-own-algorithm.md").read_text()
    code = page.partition("```python\n# proximal.py\n")[2].partition("```\n")[0]
    assert code == (root / "edgefl/learning/algorithms/papers/fedprox.py").read_text()

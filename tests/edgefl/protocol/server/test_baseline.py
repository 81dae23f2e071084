import numpy as np

from edgefl.base.config import FederationConfig, PersonalizationConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.names import GLOBAL, LOCAL_EPOCHS, LOCAL_START
from edgefl.protocol.server.baseline import with_baseline
from tests.support.numpy_learner.softmax import softmax_spec

CONFIG = FederationConfig(rounds=6, personalization=PersonalizationConfig(epochs=4))
INITIAL = {
    "trunk/kernel": np.ones((2, 2), np.float32),
    "head/kernel": np.zeros((2, 2), np.float32),
    "head/bias": np.zeros(2, np.float32),
}


def build_algorithm(algorithm="fedavg", **personalization):
    spec = softmax_spec(algorithm, inputs=2, features=2, classes=2, options={"epochs": 3})
    spec = type(spec)(**{**vars(spec), "personalization": personalization})
    return with_baseline(make_algorithm(algorithm, None, {}), CONFIG, spec)


def test_last_broadcast_holds_initial_weights_and_epochs_of_all_rounds():
    algorithm = build_algorithm(baseline=True)
    state = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
    assert set(algorithm.broadcast(state, "a").models) == {GLOBAL}
    delta = {name: np.ones_like(array) for name, array in INITIAL.items()}
    after = algorithm.aggregate(
        state, [Update(client_id="a", round=1, num_samples=5, deltas={GLOBAL: delta}, metrics={"loss": 1.0})]
    )
    last = algorithm.broadcast(type(after)(7, PHASE_PERSONALIZE, after.models), "a")
    assert last.scalars[LOCAL_EPOCHS] == 6 * 3
    for name, array in INITIAL.items():
        np.testing.assert_array_equal(last.models[LOCAL_START][name], array)
        np.testing.assert_array_equal(last.models[GLOBAL][name], array + 1)


def test_algorithm_without_baseline_is_unchanged():
    algorithm = build_algorithm(baseline=False)
    state = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
    assert set(state.models) == {GLOBAL}
    last = algorithm.broadcast(type(state)(2, PHASE_PERSONALIZE, state.models), "a")
    assert LOCAL_START not in last.models
    assert LOCAL_EPOCHS not in last.scalars

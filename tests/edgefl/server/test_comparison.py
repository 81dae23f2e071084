"""The server's part of the comparison of models: what the last round asks, and what the last broadcast
tells.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from edgefl.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.algorithms.names import COMPARE_SCALAR, GLOBAL, LOCAL_EPOCHS, LOCAL_START
from edgefl.config import FederationConfig, PersonalizationConfig, PrivacyConfig
from edgefl.rng import derive_rng
from edgefl.server.baseline import with_baseline
from edgefl.server.comparison import rank_models, should_compare_models, with_comparison
from edgefl.storage.checkpoint import decode_server_state, encode_server_state
from edgefl.types import Update
from tests.support.numpy_learner.softmax import softmax_spec

CONFIG = FederationConfig(rounds=2)
INITIAL = {
    "trunk/kernel": np.ones((2, 2), np.float32),
    "head/kernel": np.zeros((2, 2), np.float32),
    "head/bias": np.zeros(2, np.float32),
}


def spec_of(algorithm="fedavg", **personalization):
    spec = softmax_spec(algorithm, inputs=2, features=2, classes=2)
    return type(spec)(
        **{**vars(spec), "personalization": {"select": True, "baseline": True, **personalization}}
    )


def made(config=CONFIG, spec=None):
    spec = spec or spec_of()
    return with_comparison(with_baseline(make_algorithm("fedavg", None, {}), config, spec), config, spec)


def update(client_id, round_number, **metrics):
    delta = {name: np.zeros_like(array) for name, array in INITIAL.items()}
    return Update(client_id, round_number, 5, {GLOBAL: delta}, {"loss": 1.0, **metrics})


def test_the_last_round_asks_for_scores_and_holds_what_a_local_model_starts_from():
    algorithm = made()
    first = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
    sent = algorithm.broadcast(first, "a")
    assert COMPARE_SCALAR not in sent.scalars and set(sent.models) == {GLOBAL}
    last = algorithm.aggregate(first, [update("a", 1)])
    sent = algorithm.broadcast(last, "a")
    assert sent.scalars[COMPARE_SCALAR] == 1 and sent.scalars[LOCAL_EPOCHS] == 2
    assert set(sent.models) == {GLOBAL, LOCAL_START}
    assert (sent.round, sent.phase) == (2, last.phase)


def test_the_last_broadcast_tells_the_order_of_the_models():
    algorithm = made()
    first = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
    last = algorithm.aggregate(first, [update("a", 1, score_local=0.9, score_mixture=0.1)])
    after = algorithm.aggregate(
        last,
        [
            update("a", 2, score_local=0.5, score_mixture=0.75),
            update("b", 2, score_local=0.25, score_mixture=0.75),
            update("c", 2),
            update("d", 2, score_local=1e9, score_mixture=float("nan")),  # lacks a model
        ],
    )
    after = decode_server_state(encode_server_state(replace(after, phase=PHASE_PERSONALIZE)))
    sent = algorithm.broadcast(after, "a")
    ranks = {name: value for name, value in sent.scalars.items() if name.startswith("rank_")}
    assert ranks == {"rank_mixture": 0, "rank_local": 1}
    assert COMPARE_SCALAR not in sent.scalars
    json.dumps(dict(sent.scalars))


def test_the_order_is_that_of_the_mean_scores():
    # means .6 and .65
    assert rank_models([{"local": 0.5, "mixture": 0.8}, {"local": 0.7, "mixture": 0.5}]) == [
        "mixture",
        "local",
    ]
    equal = {"local": 0.5, "federated": 0.9, "mixture": 0.9, "fine_tuned": 0.7}
    assert rank_models([equal] * 3) == ["federated", "mixture", "fine_tuned", "local"]
    assert rank_models([]) == rank_models([{}]) == []


def test_only_devices_with_all_models_count_in_the_order():
    assert rank_models([{"local": 0.5}, {"mixture": 0.7}]) == []
    both = {"local": 0.5, "mixture": 0.6}
    assert rank_models([both, {"local": 0.9}]) == ["mixture", "local"]


def test_the_models_are_those_without_a_comparison():
    plain = with_baseline(make_algorithm("fedavg", None, {}), CONFIG, spec_of())
    for algorithm in (plain, made()):
        state = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
        for number in (1, 2):
            state = algorithm.aggregate(state, [update("a", number, score_local=0.5)])
        assert set(state.models) == {GLOBAL, LOCAL_START} and state.round == 3
        np.testing.assert_array_equal(state.models[GLOBAL]["trunk/kernel"], INITIAL["trunk/kernel"])


@pytest.mark.parametrize(
    ("change", "spec"),
    [
        ({"share_scores": False}, spec_of()),
        ({"evaluate": False}, spec_of()),
        ({"privacy": PrivacyConfig(secure_aggregation=True)}, spec_of()),
        ({"privacy": PrivacyConfig(1.0, 0.5, population=4, delta=1e-2)}, spec_of()),
        ({"personalization": PersonalizationConfig(select=False)}, spec_of(select=False)),
    ],
)
def test_no_score_travels_where_no_accuracy_may(change, spec):
    config = replace(CONFIG, **change)
    assert should_compare_models(CONFIG, spec_of()) and not should_compare_models(config, spec)
    algorithm = made(config, spec)
    state = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
    state = algorithm.aggregate(state, [update("a", 1)])
    assert COMPARE_SCALAR not in algorithm.broadcast(state, "a").scalars
    state = algorithm.aggregate(state, [update("a", 2, score_local=0.5)])
    assert not state.scalars

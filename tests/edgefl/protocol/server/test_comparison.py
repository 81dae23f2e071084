"""The server's part of the comparison of models: scores in the last round, ranking in the last broadcast."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig, PersonalizationConfig, PrivacyConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.names import COMPARE_SCALAR, GLOBAL, LOCAL_EPOCHS, LOCAL_START
from edgefl.learning.checkpoint import decode_server_state, encode_server_state
from edgefl.protocol.server.baseline import with_baseline
from edgefl.protocol.server.comparison import (
    average_shares,
    rank_models,
    should_compare_models,
    with_comparison,
)
from tests.support.numpy_learner.softmax import softmax_spec

CONFIG = FederationConfig(rounds=2)
INITIAL = {
    "trunk/kernel": np.ones((2, 2), np.float32),
    "head/kernel": np.zeros((2, 2), np.float32),
    "head/bias": np.zeros(2, np.float32),
}


def make_spec(algorithm="fedavg", **personalization):
    spec = softmax_spec(algorithm, inputs=2, features=2, classes=2)
    return type(spec)(
        **{**vars(spec), "personalization": {"select": True, "baseline": True, **personalization}}
    )


def build_algorithm(config=CONFIG, spec=None):
    spec = spec or make_spec()
    return with_comparison(with_baseline(make_algorithm("fedavg", None, {}), config, spec), config, spec)


def make_update(client_id, round_number, **metrics):
    delta = {name: np.zeros_like(array) for name, array in INITIAL.items()}
    return Update(
        client_id=client_id,
        round=round_number,
        num_samples=5,
        deltas={GLOBAL: delta},
        metrics={"loss": 1.0, **metrics},
    )


def test_last_round_requests_scores_and_sends_local_start_weights():
    algorithm = build_algorithm()
    first = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
    sent = algorithm.broadcast(first, "a")
    assert COMPARE_SCALAR not in sent.scalars and set(sent.models) == {GLOBAL}
    last = algorithm.aggregate(first, [make_update("a", 1)])
    sent = algorithm.broadcast(last, "a")
    assert sent.scalars[COMPARE_SCALAR] == 1 and sent.scalars[LOCAL_EPOCHS] == 2
    assert set(sent.models) == {GLOBAL, LOCAL_START}
    assert (sent.round, sent.phase) == (2, last.phase)


def test_last_broadcast_contains_the_model_ranking():
    algorithm = build_algorithm()
    first = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
    last = algorithm.aggregate(first, [make_update("a", 1, score_local=0.9, score_mixture=0.1)])
    after = algorithm.aggregate(
        last,
        [
            make_update("a", 2, score_local=0.5, score_mixture=0.75),
            make_update("b", 2, score_local=0.25, score_mixture=0.75),
            make_update("c", 2),
            make_update("d", 2, score_local=1e9, score_mixture=float("nan")),  # lacks a model
        ],
    )
    after = decode_server_state(encode_server_state(replace(after, phase=PHASE_PERSONALIZE)))
    sent = algorithm.broadcast(after, "a")
    ranks = {name: value for name, value in sent.scalars.items() if name.startswith("rank_")}
    assert ranks == {"rank_mixture": 0, "rank_local": 1}
    assert COMPARE_SCALAR not in sent.scalars
    json.dumps(dict(sent.scalars))


def test_last_broadcast_contains_the_mean_shares():
    algorithm = build_algorithm()
    first = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
    last = algorithm.aggregate(first, [make_update("a", 1, blend_local=1.0)])
    updates = [
        make_update("a", 2, blend_local=0.5, blend_federated=0.5),
        make_update("b", 2, blend_local=0.25, blend_federated=0.75),
        make_update("c", 2, blend_local=0.25, blend_federated=0.75),
        make_update("d", 2),
    ]
    after = algorithm.aggregate(last, updates)
    after = decode_server_state(encode_server_state(replace(after, phase=PHASE_PERSONALIZE)))
    scalars = algorithm.broadcast(after, "a").scalars
    shares = {name: value for name, value in scalars.items() if name.startswith("blend_")}
    assert shares == {"blend_local": pytest.approx(1 / 3), "blend_federated": pytest.approx(2 / 3)}


def test_shares_of_a_device_count_as_parts_of_their_sum():
    """The parts of `local` are 1, .5 and 0, and those of `mixture` are 0, .5 and 1."""
    devices = [{"local": 0.2}, {"local": 1.0, "mixture": 1.0}, {"mixture": 0.9, "local": 0.0}]
    assert average_shares(devices) == {"local": 0.5, "mixture": 0.5}
    assert average_shares([]) == average_shares([{}, {"local": 0.0}]) == {}


def test_devices_that_prefer_different_models_keep_all_of_them():
    """The medians would give the local model everything: .3, 0, 0 and 0, divided by their sum."""
    others = ["fine_tuned", "federated", "mixture"]
    shares = average_shares([{"local": 0.3, name: 0.7} for name in others])
    assert shares == {"local": pytest.approx(0.3), **{name: pytest.approx(0.7 / 3) for name in others}}


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["local", "federated", "mixture"]), st.floats(0, 1)),
        min_size=1,
        max_size=4,
    )
)
def test_a_device_moves_a_share_by_at_most_its_part(hostile):
    honest = [{"local": 0.3 + i / 100, "fine_tuned": 0.7 - i / 100} for i in range(5)]
    before, after = average_shares(honest), average_shares([*honest, *hostile])
    assert sum(after.values()) == pytest.approx(1)
    part = len(hostile) / (len(honest) + len(hostile))
    for name in {*before, *after}:
        assert abs(after.get(name, 0.0) - before.get(name, 0.0)) <= part + 1e-9


def test_models_are_ranked_by_the_median_difference_from_the_mean_of_a_device():
    """The differences of `mixture` from the means .65, .6 and .5 are .15, -.1 and .1."""
    devices = [
        {"local": 0.5, "mixture": 0.8},
        {"local": 0.7, "mixture": 0.5},
        {"local": 0.4, "mixture": 0.6},
    ]
    assert rank_models(devices) == ["mixture", "local"]
    equal = {"local": 0.5, "federated": 0.9, "mixture": 0.9, "fine_tuned": 0.7}
    assert rank_models([equal] * 3) == ["federated", "mixture", "fine_tuned", "local"]
    assert rank_models([]) == rank_models([{}]) == []


def test_only_devices_with_all_models_count_in_the_ranking():
    assert rank_models([{"local": 0.5}, {"mixture": 0.7}]) == []
    both = {"local": 0.5, "mixture": 0.6}
    assert rank_models([both, {"local": 0.9}]) == ["mixture", "local"]


@given(
    hostile=st.lists(
        st.dictionaries(
            st.sampled_from(["local", "federated", "fine_tuned", "mixture"]), st.floats(0.0, 1.0)
        ),
        max_size=4,
    )
)
@example(hostile=[{"federated": 1.0, "local": 0.0, "mixture": 1.0}] * 4)
def test_fewer_than_half_of_the_devices_change_no_order(hostile):
    """A device that reports a further model is not the only one that counts."""
    honest = [{"local": 0.5 + i / 100, "fine_tuned": 0.6 + i / 50, "mixture": 0.8} for i in range(5)]
    assert rank_models([*honest, *hostile]) == ["mixture", "fine_tuned", "local"] == rank_models(honest)


def test_comparison_does_not_change_the_models():
    plain = with_baseline(make_algorithm("fedavg", None, {}), CONFIG, make_spec())
    for algorithm in (plain, build_algorithm()):
        state = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
        for number in (1, 2):
            state = algorithm.aggregate(state, [make_update("a", number, score_local=0.5)])
        assert set(state.models) == {GLOBAL, LOCAL_START} and state.round == 3
        np.testing.assert_array_equal(state.models[GLOBAL]["trunk/kernel"], INITIAL["trunk/kernel"])


@pytest.mark.parametrize(
    ("change", "spec"),
    [
        ({"share_scores": False}, make_spec()),
        ({"evaluate": False}, make_spec()),
        ({"privacy": PrivacyConfig(secure_aggregation=True)}, make_spec()),
        ({"privacy": PrivacyConfig(clip=1.0, noise_multiplier=0.5, population=4, delta=1e-2)}, make_spec()),
        ({"personalization": PersonalizationConfig(select=False)}, make_spec(select=False)),
    ],
)
def test_scores_are_not_requested_where_sharing_is_disabled(change, spec):
    config = replace(CONFIG, **change)
    assert should_compare_models(CONFIG, make_spec()) and not should_compare_models(config, spec)
    algorithm = build_algorithm(config, spec)
    state = algorithm.init(INITIAL, derive_rng(1, 0, "init"))
    state = algorithm.aggregate(state, [make_update("a", 1)])
    assert COMPARE_SCALAR not in algorithm.broadcast(state, "a").scalars
    state = algorithm.aggregate(state, [make_update("a", 2, score_local=0.5)])
    assert not state.records

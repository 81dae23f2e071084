"""An update that cannot be aggregated is left out with its client, and the round closes for all others."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig
from edgefl.base.errors import StateError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import REGISTRY, TrainedModels, complete_algorithm_options, make_algorithm
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, fedavg
from edgefl.learning.checkpoint import encode_server_state
from edgefl.protocol.server.faulty_updates import aggregate_usable
from edgefl.protocol.server.plausibility import list_left_out_clients, read_left_out_rounds
from edgefl.protocol.server.server_algorithm import build_server_algorithm
from tests.support.numpy_learner.softmax import softmax_spec

CONFIG = FederationConfig(rounds=1)
FEDAVG = fedavg(None, FedAvgOptions())
START = FEDAVG.init({"w": np.zeros(2, np.float32)}, derive_rng(1, 0, "init"))


def make_update(client_id, **models):
    return Update(
        client_id=client_id,
        round=1,
        num_samples=1,
        deltas={name: {"w": np.array(value, np.float32)} for name, value in models.items()},
    )


def make_reader(updates):
    """Return a function that reads the updates of some clients."""
    return lambda client_ids: (update for update in updates if update.client_id in client_ids)


def aggregate(updates, algorithm=FEDAVG, state=START):
    clients = [update.client_id for update in updates]
    return aggregate_usable(algorithm, state, clients, make_reader(updates))


def test_round_without_faults_is_the_algorithms_own():
    updates = [make_update("a", **{"global": [1, 2]}), make_update("b", **{"global": [3, 4]})]
    assert encode_server_state(aggregate(updates)) == encode_server_state(FEDAVG.aggregate(START, updates))


def test_update_without_the_model_is_left_out_and_its_client_is_named(caplog):
    updates = [
        make_update("a", **{"global": [1, 2]}),
        make_update("b", start=[9, 9]),
        make_update("c", **{"global": [3, 4]}),
    ]
    with caplog.at_level(logging.WARNING):
        after = aggregate(updates)
    np.testing.assert_array_equal(after.models["global"]["w"], [2, 3])
    assert (after.round, read_left_out_rounds(after)) == (2, {"b": 1})
    assert "the update of b cannot be aggregated (KeyError: 'global')" in caplog.text


def test_update_that_only_fails_beside_others_is_found():
    median = fedavg(None, FedAvgOptions(mean="median"))
    other_shape = replace(make_update("b"), deltas={"global": {"w": np.zeros(3, np.float32)}})
    updates = [make_update("a", **{"global": [1, 2]}), other_shape, make_update("c", **{"global": [3, 4]})]
    after = aggregate(updates, median)
    np.testing.assert_array_equal(after.models["global"]["w"], [2, 3])
    assert list_left_out_clients(after) == {"b"}


def test_round_that_fails_without_a_culprit_changes_no_model(caplog):
    def fail_for_several(state, updates):
        if len(list(updates)) > 1:
            raise ValueError("too many")
        return replace(state, round=state.round + 1)

    updates = [make_update(name, **{"global": [1, 2]}) for name in "abcd"]
    after = aggregate(updates, replace(FEDAVG, aggregate=fail_for_several))
    assert (after.round, list_left_out_clients(after)) == (2, frozenset())
    np.testing.assert_array_equal(after.models["global"]["w"], [0, 0])
    assert "no single client is the reason" in caplog.text


def test_disk_that_fails_blames_no_client():
    def fail(client_ids):
        raise StateError("cannot read the journal")

    with pytest.raises(StateError, match="cannot read the journal"):
        aggregate_usable(FEDAVG, START, ["a"], fail)


def test_rules_of_the_trained_models():
    rule = TrainedModels(required=("phi",), choices=("expert0", "expert1"), min_choices=1, max_choices=2)
    assert rule.find_problem({"phi", "expert0"}) == "" == rule.find_problem({"phi", "expert0", "expert1"})
    assert rule.find_problem(()) == "it holds no model, expected phi and 1 to 2 of expert0, expert1"
    assert rule.find_problem({"expert0"}) == "it holds expert0, expected phi and 1 to 2 of expert0, expert1"
    assert rule.find_problem({"phi"}) and rule.find_problem({"phi", "expert0", "expert2"})
    one = TrainedModels(required=(), choices=("expert0", "expert1"), min_choices=1, max_choices=1)
    assert one.find_problem({"expert0"}) == ""
    assert one.find_problem({"expert0", "expert1"}) == (
        "it holds expert0, expert1, expected 1 of expert0, expert1"
    )
    assert TrainedModels(required=()).find_problem(()) == ""
    assert (
        TrainedModels(required=()).find_problem({"global"})
        == "it holds the model 'global', expected no model"
    )


def make_honest_update(algorithm, state, client_id):
    sent = algorithm.broadcast(state, client_id).models
    names = [*algorithm.trained.required, *algorithm.trained.choices[: algorithm.trained.min_choices]]
    deltas = {name: {key: np.full_like(array, 0.01) for key, array in sent[name].items()} for name in names}
    return Update(client_id=client_id, round=state.round, num_samples=5, deltas=deltas, metrics={"loss": 1.0})


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_any_subset_of_the_models_ends_no_round(name):
    settings = {"select": True, "baseline": True}
    options = complete_algorithm_options(name, {})
    spec = softmax_spec(name, inputs=4, features=3, classes=3, options=options, personalization=settings)
    algorithm = build_server_algorithm(make_algorithm(name, None, options), CONFIG, spec, key=b"")
    initial = {each.name: np.full(each.shape, 0.5, np.float32) for each in spec.weights}
    state = algorithm.init(initial, derive_rng(1, 0, "init"))
    honest = [make_honest_update(algorithm, state, client_id) for client_id in ("a", "b", "c")]
    sent = algorithm.broadcast(state, "d").models
    subsets = [(), tuple(sent), *((model,) for model in sent)]
    for models in subsets:
        deltas = {model: {key: 0 * array for key, array in sent[model].items()} for model in models}
        hostile = Update(
            client_id="d", round=state.round, num_samples=5, deltas=deltas, metrics={"loss": 1.0}
        )
        after = aggregate([*honest, hostile], algorithm, state)
        assert after.round == 2
        assert list_left_out_clients(after) <= {"d"}

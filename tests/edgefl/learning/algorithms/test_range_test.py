"""The range test: which rates a client tries, which it votes for, and what all of them find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import DataError, StateError
from edgefl.base.types import ClientState, Shard, Update
from edgefl.learning.algorithms.range_test import (
    DEFAULT,
    FACTORS,
    LOSSES,
    MAX_CLIENTS,
    START,
    UNTRIED,
    ChosenRate,
    RangeTestOptions,
    choose_rate,
    draw_test_clients,
    list_rates,
    make_range_test,
    prepare_range_test,
    try_rates,
    with_chosen_rate,
)
from edgefl.learning.algorithms.registry import REGISTRY, complete_algorithm_options, has_range_test
from edgefl.program.plan.spec import Plan
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

U = UNTRIED


@pytest.mark.parametrize(
    ("losses", "tried", "vote"),
    [
        # 3 is clearly better and low enough
        ({1.0: 1.0, 3.0: 0.25}, [1, 3], 3),
        # 3 is no better, and neither is 0.3: the rate of the algorithm stays
        ({1.0: 1.0, 3.0: 0.96, 0.3: 1.2}, [1, 3, 0.3], 1),
        # 3 is clearly better, 10 diverges
        ({1.0: 1.0, 3.0: 0.5, 10.0: U}, [1, 3, 10], 3),
        # 10 is better than 3, but not clearly: the smaller one is enough
        ({1.0: 1.0, 3.0: 0.5, 10.0: 0.48}, [1, 3, 10], 3),
        ({1.0: 1.0, 3.0: 0.5, 10.0: 0.4}, [1, 3, 10], 10),
        # the rate of the algorithm diverges
        ({1.0: U, 0.3: 1.0, 0.1: 2.0}, [1, 0.3, 0.1], 0.3),
        ({1.0: U, 0.3: U}, [1, 0.3], 1),
        ({1.0: U, 0.3: 0.2}, [1, 0.3], 0.3),
        ({1.0: 0.0, 3.0: 0.0, 0.3: 0.0}, [1, 3, 0.3], 1),
    ],
)
def test_client_climbs_from_the_rate_of_the_algorithm(losses, tried, vote):
    seen = []

    def train(index):
        seen.append(FACTORS[index])
        return losses[FACTORS[index]]

    assert FACTORS[choose_rate(try_rates(train, enough=0.3))] == vote
    assert seen == tried


def make_votes(*factors):
    """Return updates whose losses vote for these factors."""
    for number, factor in enumerate(factors):
        losses = np.full(len(FACTORS), UNTRIED, np.float32)
        losses[DEFAULT] = 1.0
        losses[FACTORS.index(factor)] = 0.5 if factor != 1 else 1.0
        yield Update(client_id=f"pi-{number}", round=1, num_samples=5, deltas={LOSSES: {LOSSES: losses}})


def aggregate(updates):
    algorithm = make_range_test(None, RangeTestOptions())
    state = algorithm.init({}, np.random.default_rng(0))
    return FACTORS[algorithm.aggregate(state, updates).read_record(ChosenRate).index]


@pytest.mark.parametrize(
    ("votes", "found"), [((1, 3, 10), 3), ((1, 3), 1), ((1, 3, 3, 10), 3), ((10,), 10), ((0.1, 1, 10, 10), 1)]
)
def test_the_lower_median_of_the_votes_is_found(votes, found):
    assert aggregate(make_votes(*votes)) == found


@given(
    st.lists(st.sampled_from(FACTORS), min_size=2, max_size=9),
    st.lists(st.floats(width=32), min_size=5, max_size=5),
)
def test_hostile_minority_does_not_leave_the_span_of_the_honest_votes(votes, losses):
    hostile = [
        Update(
            client_id=f"evil-{i}",
            round=1,
            num_samples=5,
            deltas={LOSSES: {LOSSES: np.array(losses, np.float32)}},
        )
        for i in range(len(votes) - 1)
    ]
    found = aggregate([*make_votes(*votes), *hostile])
    assert min(votes) <= found <= max(votes)


def test_no_client_is_an_error_with_the_line_to_write():
    with pytest.raises(DataError, match=r"set learning_rate in \[algorithm\].*range_test = false"):
        aggregate([])


def make_plan(algorithm="fedavg"):
    options = {"learning_rate": 0.02, "epochs": 3, "momentum": 0.9, "mean": "weighted"}
    return Plan(
        spec=softmax_spec(algorithm, inputs=4, features=4, classes=3, options=options),
        program=b"",
        template=b"",
    )


def make_shard():
    rng = np.random.default_rng(1)
    y = rng.integers(3, size=24)
    x = (3 * np.eye(4)[y] + 0.1 * rng.normal(size=(24, 4))).astype(np.float32)
    return Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=3)


def test_plan_of_the_test_has_the_recipe_of_the_federation():
    plan = make_plan()
    initial = {spec.name: np.zeros(spec.shape, np.float32) for spec in plan.spec.weights}
    tested, _, state = prepare_range_test(plan, initial, 1)
    assert tested.spec.options == {"epochs": 3, "learning_rate": 0.02, "momentum": 0.9}
    assert list_rates(tested.spec) == (0.002, 0.006, 0.02, 0.06, 0.2)
    assert set(state.models) == {START, LOSSES}
    assert set(state.models[START]) == set(initial)


def test_client_finds_that_a_linear_model_learns_faster_with_three_times_the_rate():
    """All draws are the same with each rate, and the start stays unchanged."""
    plan = make_plan()
    rng = np.random.default_rng(2)
    initial = {spec.name: 0.1 * rng.normal(size=spec.shape).astype(np.float32) for spec in plan.spec.weights}
    before = {name: array.copy() for name, array in initial.items()}
    tested, algorithm, state = prepare_range_test(plan, initial, 1)
    learner = SoftmaxLearner(tested.spec)
    client = make_range_test(learner, RangeTestOptions(**tested.spec.options))
    shard = make_shard()

    def report():
        return client.local_update(
            algorithm.broadcast(state, "pi-1"), ClientState(), shard, "pi-1", np.random.default_rng(3)
        )[0]

    update = report()
    losses = update.deltas[LOSSES][LOSSES]
    assert losses[2] > losses[3] >= 0
    assert losses[[0, 1, 4]].tolist() == [UNTRIED] * 3
    np.testing.assert_array_equal(report().deltas[LOSSES][LOSSES], losses)
    assert all(np.array_equal(initial[name], before[name]) for name in initial)
    after = algorithm.aggregate(state, [update])
    with pytest.raises(StateError, match="no result of a range test; run the range test again"):
        with_chosen_rate(plan, state)
    assert with_chosen_rate(plan, after).spec.options["learning_rate"] == 0.06
    assert with_chosen_rate(plan, after).spec.options["momentum"] == 0.9


def test_rate_that_diverges_counts_as_the_highest_loss():
    plan = make_plan()
    initial = {spec.name: np.full(spec.shape, 1e30, np.float32) for spec in plan.spec.weights}
    tested, algorithm, state = prepare_range_test(plan, initial, 1)
    client = make_range_test(SoftmaxLearner(tested.spec), RangeTestOptions(**tested.spec.options))
    update, _ = client.local_update(
        algorithm.broadcast(state, "pi-1"), ClientState(), make_shard(), "pi-1", np.random.default_rng(3)
    )
    assert (update.deltas[LOSSES][LOSSES] == UNTRIED).all()
    assert with_chosen_rate(plan, algorithm.aggregate(state, [update])).spec.options["learning_rate"] == 0.02


@pytest.mark.parametrize("name", REGISTRY)
def test_every_algorithm_has_a_range_test_that_runs_or_none(name):
    options = complete_algorithm_options(name, {})
    plan = Plan(
        spec=softmax_spec(name, inputs=4, features=4, classes=3, options=options), program=b"", template=b""
    )
    assert has_range_test(plan.spec) == (name not in {"fedem", "fedmix", "fedmix-permutation", "fedrod"})
    if not has_range_test(plan.spec):
        return
    initial = {spec.name: np.zeros(spec.shape, np.float32) for spec in plan.spec.weights}
    tested, algorithm, state = prepare_range_test(plan, initial, 1)
    client = make_range_test(SoftmaxLearner(plan.spec), RangeTestOptions(**tested.spec.options))
    update, _ = client.local_update(
        algorithm.broadcast(state, "pi-1"), ClientState(), make_shard(), "pi-1", np.random.default_rng(3)
    )
    assert update.deltas[LOSSES][LOSSES][DEFAULT] < 2


def test_few_clients_are_drawn_by_the_seed():
    clients = [f"pi-{i}" for i in range(40)]
    drawn = draw_test_clients(reversed(clients), 7)
    assert len(drawn) == MAX_CLIENTS and set(drawn) < set(clients) and drawn == tuple(sorted(drawn))
    assert drawn == draw_test_clients(clients, 7) != draw_test_clients(clients, 8)
    assert draw_test_clients(["b", "a"], 7) == ("a", "b")

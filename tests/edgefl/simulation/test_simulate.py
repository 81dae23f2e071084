"""The simulator: one round worked by hand, cohorts, and errors."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ServerState, Shard
from edgefl.learning.algorithms import PHASE_CLUSTER, PHASE_FEDERATE
from edgefl.learning.algorithms.base import with_assignments
from edgefl.learning.algorithms.cohort import choose_cohort
from edgefl.learning.checkpoint import encode_mixture, encode_server_state
from edgefl.program.plan.spec import Plan
from edgefl.simulation.engines.processes import choose_local_engine
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def make_plan(name, **options):
    return Plan(
        spec=replace(softmax_spec(name, inputs=4, features=4, classes=3), options=options),
        program=b"",
        template=b"",
    )


def make_weights():
    return {
        "trunk/kernel": np.eye(4, dtype=np.float32),
        "head/kernel": np.zeros((4, 3), np.float32),
        "head/bias": np.zeros(3, np.float32),
    }


def test_one_round_of_two_clients_matches_hand_calculation():
    """With logits 0, a step moves the bias of the label by +2/3 lr and the others by -1/3 lr.

    The mean weighs clients by their number of samples.
    """
    x = np.zeros((1, 4), np.float32)
    x2 = np.zeros((3, 4), np.float32)
    shards = {
        "a": Shard(x_train=x, y_train=np.array([0]), x_test=x, y_test=np.array([0]), num_classes=3),
        "b": Shard(
            x_train=x2, y_train=np.array([1, 1, 1]), x_test=x2, y_test=np.array([1, 1, 1]), num_classes=3
        ),
    }
    built_plan = make_plan("fedavg", epochs=1, learning_rate=0.3, momentum=0.0)
    end = simulate(
        built_plan,
        make_weights(),
        shards,
        FederationConfig(rounds=1),
        open_learner=lambda plan: SoftmaxLearner(built_plan.spec),
    )
    np.testing.assert_allclose(
        end.state.models["global"]["head/bias"], [-0.1 + 0.3 / 4, 0.2 - 0.3 / 4, -0.1], atol=1e-7
    )


def test_federation_and_personalization_learn(shards):
    built_plan = make_plan("pfl-mfe", epochs=2, learning_rate=0.1, adapt_learning_rate=0.05)
    seen = []
    end = simulate(
        built_plan,
        make_weights(),
        shards,
        FederationConfig(rounds=4),
        open_learner=lambda plan: SoftmaxLearner(built_plan.spec),
        progress=lambda state, record: seen.append((state.round, record.loss)),
    )
    assert [number for number, _ in seen] == [2, 3, 4, 5]
    assert seen[-1][1] < seen[0][1]
    assert end.state.phase == "done"
    for metrics in end.metrics.values():
        assert metrics["accuracy_shipped"] == metrics["accuracy_mixture"] > 0.5
        assert metrics["accuracy_mixture"] >= metrics["accuracy_federated"] - 0.1


def test_a_client_without_rounds_is_personalized_and_changes_no_round(shards):
    """The rounds are those of a federation without the client."""
    built_plan = make_plan("pfl-mfe", epochs=2, learning_rate=0.1)
    *early, late = sorted(shards)
    seen = []
    both, alone = (
        simulate(
            built_plan,
            make_weights(),
            {client_id: shards[client_id] for client_id in clients},
            FederationConfig(rounds=3),
            open_learner=lambda plan: SoftmaxLearner(built_plan.spec),
            progress=lambda state, record: seen.append(sorted(record.updates)),
            without_rounds=without,
        )
        for clients, without in ((shards, [late]), (early, []))
    )
    assert seen == 6 * [early]
    assert encode_server_state(both.state) == encode_server_state(alone.state)
    assert set(both.results) == set(shards)
    assert {client_id: both.metrics[client_id] for client_id in early} == alone.metrics


def test_equal_seeds_give_equal_results_and_other_seeds_differ(shards):
    built_plan = make_plan("pfl-mf")
    ends = [
        simulate(
            built_plan,
            make_weights(),
            shards,
            FederationConfig(rounds=2, seed=seed, clients_per_round=2),
            open_learner=lambda plan: SoftmaxLearner(built_plan.spec),
        )
        for seed in (1, 1, 2)
    ]
    states = [encode_server_state(end.state) for end in ends]
    mixtures = [b"".join(encode_mixture(m) for m in end.mixtures.values()) for end in ends]
    assert states[0] == states[1] != states[2]
    assert mixtures[0] == mixtures[1] != mixtures[2]


@given(
    seed=st.integers(0, 2**32),
    round=st.integers(1, 10_000),
    count=st.integers(0, 12),
    total=st.integers(1, 12),
)
def test_cohort_is_a_sorted_subset_for_any_order_of_ids(seed, round, count, total):
    ids = [f"pi-{i}" for i in range(total)]
    state = ServerState(round=round, phase=PHASE_FEDERATE, models={})
    cohort = choose_cohort(seed, state, ids, count)
    assert cohort == choose_cohort(seed, state, reversed(ids), count)
    assert list(cohort) == sorted(cohort)
    assert len(set(cohort)) == (total if count in (0, *range(total, 13)) else count)


def test_cohort_is_drawn_per_cluster_and_includes_all_when_clustering():
    ids = [f"pi-{i}" for i in range(9)]
    state = with_assignments(
        ServerState(round=5, phase=PHASE_FEDERATE, models={}),
        {name: i // 3 for i, name in enumerate(ids[:8])},
    )
    cohort = choose_cohort(1, state, ids, 2)
    groups = (ids[:3], ids[3:6], ids[6:8], ["pi-8"])  # pi-8 has no cluster yet
    assert [sum(name in cohort for name in group) for group in groups] == [2, 2, 2, 1]
    assert choose_cohort(1, replace(state, phase=PHASE_CLUSTER), ids, 2) == tuple(ids)


def test_random_draws_depend_on_seed_round_and_client():
    assert (
        derive_rng(1, 2, "pi-1").integers(0, 2**31, 3).tolist()
        == derive_rng(1, 2, "pi-1").integers(0, 2**31, 3).tolist()
    )
    others = [
        derive_rng(*key).integers(0, 2**31)
        for key in [(1, 2, "pi-1"), (1, 2, "pi-2"), (1, 3, "pi-1"), (2, 2, "pi-1")]
    ]
    assert len(set(others)) == 4


def test_no_shards_is_an_error():
    with pytest.raises(ConfigError, match="no shards"):
        simulate(make_plan("fedavg"), make_weights(), {}, FederationConfig())


def test_a_learner_of_this_process_cannot_run_in_many_processes(shards):
    built_plan = make_plan("fedavg")
    with pytest.raises(ConfigError, match=r"sent to 2 processes .* expected a function of a module"):
        simulate(
            built_plan,
            make_weights(),
            shards,
            FederationConfig(),
            open_engine=choose_local_engine(2),
            open_learner=lambda plan: SoftmaxLearner(built_plan.spec),
        )


def test_number_of_processes_does_not_change_results(tiny, tiny_config, digits):
    built_plan, weights = tiny
    x, y = digits
    shards = {
        f"pi-{i}": Shard(
            x_train=x[i::3][:60],
            y_train=y[i::3][:60],
            x_test=x[i::3][60:90],
            y_test=y[i::3][60:90],
            num_classes=10,
        )
        for i in range(3)
    }
    one, two = (
        simulate(built_plan, weights, shards, tiny_config, open_engine=choose_local_engine(n)) for n in (1, 2)
    )
    assert encode_server_state(one.state) == encode_server_state(two.state)
    assert [encode_mixture(m) for m in one.mixtures.values()] == [
        encode_mixture(m) for m in two.mixtures.values()
    ]
    assert one.metrics == two.metrics

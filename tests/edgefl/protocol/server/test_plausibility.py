"""Absurd updates are skipped and honest updates are not: worked cases, invariants, and every algorithm."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig
from edgefl.base.config.schema import PrivacyConfig
from edgefl.base.errors import ConfigError, StateError
from edgefl.base.types import ServerState, Shard, Update
from edgefl.learning.algorithms import REGISTRY, complete_algorithm_options, make_algorithm
from edgefl.learning.algorithms.server_optimizer import OptimizerSlots
from edgefl.learning.checkpoint import encode_server_state
from edgefl.program.plan.spec import Plan
from edgefl.protocol.server.plausibility import (
    LeftOutClients,
    compute_step_limit,
    find_problem,
    list_left_out_clients,
    with_plausibility_check,
)
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

ABSURD = np.float32(3.4e38)


def make_state(**weights):
    return ServerState(
        round=3,
        phase="federate",
        models={"global": {name: np.array(value, np.float32) for name, value in weights.items()}},
    )


def make_update(client_id, value, samples=10, size=2):
    return Update(
        client_id=client_id,
        round=3,
        num_samples=samples,
        deltas={"global": {"w": np.full(size, value, np.float32)}},
        metrics={"loss": 1.0},
    )


PLAIN = FederationConfig()


def aggregate_updates(caplog, state, updates, config=PLAIN, **options):
    """Return the state after a round, and what was logged about it."""
    caplog.clear()
    algorithm = with_plausibility_check(make_algorithm("fedavg", None, options), config)
    return algorithm.aggregate(state, updates), caplog.messages


def test_step_limit_matches_hand_calculation():
    """|w| = 5, m = 1, n = 2: 10 (5 + 1) + sqrt(2) = 61.41."""
    before = make_state(w=[3, 4])
    median = 1.0
    assert compute_step_limit(before.models["global"], before.models["global"], median) == pytest.approx(
        60 + math.sqrt(2)
    )
    assert find_problem(before, make_state(w=[3, 4 + 61.4]), median) == ""
    assert "global would move by 61.5 (L2 norm), expected 61.4 at most" in find_problem(
        before, make_state(w=[3, 4 + 61.5]), median
    )
    assert find_problem(before, make_state(w=[3, 4 + 61.5]), median, finite_only=True) == ""


def test_new_model_is_measured_from_zero_and_slots_must_be_finite():
    before = make_state(w=[0, 0])
    # sqrt(2) = 1.41 ...
    assert (
        find_problem(before, replace(before, models={"cluster0": {"w": np.float32([1.0, 1.0])}}), 0.0) == ""
    )
    # ... and 1.49
    assert "cluster0" in find_problem(
        before, replace(before, models={"cluster0": {"w": np.float32([1.1, 1.0])}}), 0.0
    )
    assert "/v/w would hold 1 NaN or infinite values" in find_problem(
        before, before.with_record(OptimizerSlots({"v": {"w": np.float32([1, np.inf])}})), 0.0
    )


def test_record_with_a_value_of_another_type_blames_no_client():
    """The aggregator refuses the record when it stores the state."""
    state = make_state(w=[0, 0])
    after = state.with_record(LeftOutClients({"pi-1": np.float32(1.5)}))
    assert find_problem(state, after, 0.0) == ""
    assert find_problem(state, state.with_record(LeftOutClients({"pi-1": np.str_("x")})), 0.0) == ""
    with pytest.raises(StateError, match=r"LeftOutClients.*pi-1.* is '1\.5' .float32., expected int"):
        encode_server_state(after)


@pytest.mark.parametrize("value", [ABSURD, -ABSURD, np.float32(1e6)])
@pytest.mark.parametrize("samples", [10, 100_000])
def test_absurd_update_skips_the_round_and_excludes_its_client(value, samples, caplog):
    state = make_state(w=[1, 1])
    honest = [make_update(f"pi-{i}", 0.1) for i in range(9)]
    after, lines = aggregate_updates(caplog, state, [make_update("bad", value, samples), *honest])
    assert (
        after.models["global"] is state.models["global"] and after.round == 4 and after.phase == state.phase
    )
    assert list_left_out_clients(after) == {"bad"}
    [line] = lines
    assert line.startswith("round 3: skipped") and "bad" in line and "pi-" not in line
    # the next round succeeds, and the client stays excluded
    after, lines = aggregate_updates(caplog, after, [replace(each, round=4) for each in honest])
    np.testing.assert_allclose(after.models["global"]["w"], 1.1, rtol=1e-6)
    assert (after.round, list_left_out_clients(after), lines) == (5, {"bad"}, [])


def test_honest_client_beside_an_absurd_client_is_not_excluded(caplog):
    """The lower median of two updates belongs to the honest client."""
    after, _ = aggregate_updates(
        caplog, make_state(w=[1, 1]), [make_update("a", 0.1), make_update("bad", ABSURD)]
    )
    assert list_left_out_clients(after) == {"bad"}


def test_updates_overflowing_together_are_skipped_without_excluding_clients(caplog):
    after, [line] = aggregate_updates(
        caplog, make_state(w=[2e38, 2e38]), [make_update(f"pi-{i}", 2e38) for i in range(3)]
    )
    assert (
        list_left_out_clients(after) == frozenset()
        and np.isfinite(after.models["global"]["w"]).all()
        and "robust mean" in line
    )


def test_masked_or_noisy_updates_exclude_no_client(caplog):
    """Masks hide single updates. With `[privacy]`, only NaN and infinite values count."""
    masked = FederationConfig(privacy=PrivacyConfig(secure_aggregation=True))
    after, [line] = aggregate_updates(caplog, make_state(w=[1, 1]), [make_update("", 1e6)], masked)
    assert (list_left_out_clients(after), after.round) == (frozenset(), 4) and "would move by" in line
    noisy = FederationConfig(privacy=PrivacyConfig(clip=1.0, noise_multiplier=1.0, population=10, delta=1e-5))
    assert noisy.privacy.is_on
    after, lines = aggregate_updates(caplog, make_state(w=[1, 1]), [make_update("", 1e6)], noisy)
    assert lines == [] and after.models["global"]["w"][0] > 1e5


@given(
    st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=8),
    st.floats(0, 5, width=32),
    st.sampled_from(["", "adam", "yogi"]),
)
def test_updates_as_large_as_the_model_are_never_skipped(values, scale, optimizer):
    state = make_state(w=[scale, -scale])
    options = {"server_optimizer": optimizer} if optimizer else {}
    algorithm = make_algorithm("fedavg", None, options)
    first = algorithm.init(state.models["global"], np.random.default_rng(0))
    first = replace(first, round=3)
    after = with_plausibility_check(algorithm, FederationConfig()).aggregate(
        first, [make_update(f"c{i}", v) for i, v in enumerate(values)]
    )
    plain = algorithm.aggregate(first, [make_update(f"c{i}", v) for i, v in enumerate(values)])
    assert after.round == plain.round
    assert all(
        np.array_equal(after.models[name][key], array)
        for name, each in plain.models.items()
        for key, array in each.items()
    )


def make_shard(seed):
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(3), rng.integers(0, 3, 37)])
    x = (np.eye(3, 4)[y] * 2 + rng.normal(0, 0.7, (40, 4))).astype(np.float32)
    return Shard(x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:], num_classes=3)


@pytest.mark.parametrize("algorithm", sorted(REGISTRY))
def test_honest_training_stays_within_the_step_limit(algorithm, caplog):
    """Honest rounds of an algorithm log no skipped round."""
    if algorithm == "fedmix-permutation":
        pytest.importorskip("scipy")
    options = complete_algorithm_options(
        algorithm, {"epochs": 2} if "epochs" in REGISTRY[algorithm].defaults else {}
    )
    plan = Plan(
        spec=softmax_spec(algorithm, inputs=4, features=4, classes=3, options=options),
        program=b"",
        template=b"",
    )
    rng = np.random.default_rng(3)
    initial = {spec.name: rng.normal(0, 0.1, spec.shape).astype(np.float32) for spec in plan.spec.weights}
    config = FederationConfig(rounds=4, algorithm=algorithm, options=options)
    states = []
    shards = {f"pi-{i}": make_shard(i) for i in range(4)}
    simulate(
        plan,
        initial,
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(plan.spec),
        progress=lambda state, record: states.append(state),
    )
    # in four rounds the loss of fedmix hardly falls
    expected = ["training has had no effect"] if algorithm == "fedmix" else []
    assert [line.partition(":")[0] for line in caplog.messages] == expected and len(states) >= 1


def test_simulator_refuses_a_client_above_max_samples():
    plan = Plan(
        spec=softmax_spec(
            "fedavg", inputs=4, features=4, classes=3, options=complete_algorithm_options("fedavg", {})
        ),
        program=b"",
        template=b"",
    )
    initial = {spec.name: np.zeros(spec.shape, np.float32) for spec in plan.spec.weights}
    with pytest.raises(ConfigError, match=r"pi-0 has 30 samples, expected 29 at most; raise max_samples"):
        simulate(
            plan,
            initial,
            {"pi-0": make_shard(0)},
            FederationConfig(max_samples=29),
            open_learner=lambda plan: SoftmaxLearner(plan.spec),
        )

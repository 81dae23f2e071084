"""Simulation in virtual time: the results of the simulator without delays, and fleets with outages."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, FleetConfig
from edgefl.base.errors import ConfigError, RoundError
from edgefl.base.types import Shard
from edgefl.learning.algorithms import complete_algorithm_options
from edgefl.learning.checkpoint import encode_server_state
from edgefl.program.plan.spec import Plan
from edgefl.protocol.server.divergence import explain_no_progress
from edgefl.protocol.wire.divergence_message import FederationDivergedError
from edgefl.simulation.clients import SimulatedFederation
from edgefl.simulation.engines.base import SerialEngine
from edgefl.simulation.simulate import simulate
from edgefl.simulation.virtual_time import EngineTrainer, simulate_fleet
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

IDS = tuple(f"c{i}" for i in range(6))
ALGORITHMS = {
    "fedavg": {},
    "fedprox": {},
    "ditto": {},
    "ifca": {"num_experts": 2},
    "cfl": {},
    "clustered": {},
    "fedap": {"pretrain_rounds": 1},
    "fedem": {"num_experts": 2},
    "pfl-mfe": {},
    "fedmix": {"num_experts": 2},
}


def make_plan(algorithm, **options):
    values = complete_algorithm_options(algorithm, {"epochs": 2, **options})
    return Plan(
        spec=softmax_spec(algorithm, inputs=4, features=4, classes=3, options=values),
        program=b"",
        template=b"",
    )


def make_weights(plan, scale=0.1):
    rng = np.random.default_rng(3)
    return {each.name: rng.normal(0, scale, each.shape).astype(np.float32) for each in plan.spec.weights}


def make_shard(seed, count):
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(3), rng.integers(0, 3, count + 7)])
    x = (np.eye(3, 4)[y] * 2 + rng.normal(0, 0.7, (count + 10, 4))).astype(np.float32)
    return Shard(x_train=x[:count], y_train=y[:count], x_test=x[count:], y_test=y[count:], num_classes=3)


@dataclass
class Run:
    state: object
    figures: object
    records: list
    trainer: object
    lines: list


def play(config, algorithm="fedavg", options=None, ids=IDS, weight_scale=0.1, can_lower_rate=False):
    plan = make_plan(algorithm, **(options or {}))
    shards = {client_id: make_shard(i, 20 + 5 * i) for i, client_id in enumerate(ids)}
    learner = SoftmaxLearner(plan.spec)
    trainer = EngineTrainer(
        plan,
        SerialEngine(
            SimulatedFederation(plan=plan, seed=config.seed, shards=shards, open_learner=lambda plan: learner)
        ),
        {client_id: len(shard.y_train) for client_id, shard in shards.items()},
    )
    lines = []
    initial = make_weights(plan, weight_scale)
    records = []
    state, figures = simulate_fleet(
        plan,
        initial,
        config,
        shards,
        trainer,
        log=lambda hours, line: lines.append((hours, line)),
        progress=lambda state, record: records.append(record),
        can_lower_rate=can_lower_rate,
    )
    run = Run(state=state, figures=figures, records=records, trainer=trainer, lines=lines)
    return run, (plan, initial, shards, learner)


def make_config(fleet=None, **changes):
    values = {"rounds": 4, "min_clients": len(IDS), "seed": 5, "deadline_s": 600.0, "grace_s": 1.0} | changes
    return FederationConfig(**values, fleet=fleet or FleetConfig())


@pytest.mark.parametrize("codec", ["fp32", "int8"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fleet_without_delays_equals_the_simulator(algorithm, codec):
    config = make_config(clients_per_round=3, codec=codec)
    run, (plan, initial, shards, learner) = play(config, algorithm, ALGORITHMS[algorithm])
    end = simulate(plan, initial, shards, replace(config, fleet=None), open_learner=lambda plan: learner)
    assert encode_server_state(run.state) == encode_server_state(end.state)
    for client_id, result in end.results.items():
        fleet_result = run.trainer.results[client_id]
        assert fleet_result.metrics == pytest.approx(result.metrics, nan_ok=True, rel=0, abs=0)
        for name, array in result.mixture.weights.items():
            assert fleet_result.mixture.weights[name].tobytes() == array.tobytes()
    updates = sum(len(record.updates) for record in run.records)
    assert run.figures.acknowledged == run.figures.accepted == updates + len(IDS)


def test_the_round_server_warns_once_of_training_without_effect():
    run, (plan, *_) = play(make_config(rounds=3), options={"learning_rate": 1e-9}, weight_scale=0.0)
    warning = explain_no_progress([record.loss for record in run.records], plan.spec.num_classes)
    assert warning is not None
    assert [line for _, line in run.lines].count(warning) == 1


def test_the_round_server_stops_training_without_effect_only_if_the_rate_can_be_lowered():
    settings = {"options": {"learning_rate": 0.5}, "weight_scale": 0.0}
    with pytest.raises(FederationDivergedError, match=r"no effect until round 6: .* of round 1, 1\.11"):
        play(make_config(rounds=8), **settings, can_lower_rate=True)
    assert len(play(make_config(rounds=8), **settings)[0].records) == 8


def test_a_fleet_that_learns_has_no_warning():
    run, _ = play(make_config(rounds=3), options={"learning_rate": 0.1})
    assert not [line for _, line in run.lines if "no effect" in line]


def test_a_short_federation_that_diverges_is_stopped_after_its_last_round():
    with pytest.raises(FederationDivergedError, match="diverged in round 2"):
        play(make_config(rounds=2), options={"learning_rate": 20.0})


def test_runs_with_the_same_seed_are_identical():
    fleet = FleetConfig(samples_per_s=1.0, speed_spread=0.5, outages_per_day=500.0, message_loss=0.1)
    first, second = (play(make_config(fleet, quorum=0.5))[0] for _ in range(2))
    assert repr(first.records) == repr(second.records)
    assert encode_server_state(first.state) == encode_server_state(second.state)


def test_a_round_lasts_as_long_as_its_slowest_client():
    """The largest of six equally fast clients trains one epoch over 45 samples at one sample per second."""
    config = make_config(FleetConfig(samples_per_s=1.0), rounds=1)
    run, _ = play(config, options={"epochs": 1})
    assert run.records[0].hours * 3600 == pytest.approx(45.0, abs=0.2)


def test_over_selection_uses_the_fastest_clients():
    fleet = FleetConfig(samples_per_s=1.0, speed_spread=1.0)
    settings = {"clients_per_round": 2, "rounds": 3}
    plain, _ = play(make_config(fleet, **settings))
    over, _ = play(make_config(fleet, **settings, over_selection=3.0))
    assert [len(record.updates) for record in over.records] == [2, 2, 2]
    assert over.records[2].hours < plain.records[2].hours


def test_late_updates_count_in_asynchronous_mode():
    fleet = FleetConfig(samples_per_s=1.0, speed_spread=1.0)
    run, _ = play(make_config(fleet, mode="async", buffer=2, max_staleness=5, rounds=8))
    assert run.figures.late > 0
    assert len(run.records) == 8


def test_lost_messages_and_outages_lose_no_update():
    fleet = FleetConfig(
        samples_per_s=2.0, speed_spread=0.5, outages_per_day=1000.0, outage_s=20.0, message_loss=0.2
    )
    run, _ = play(make_config(fleet, rounds=6, quorum=1.0))
    assert run.figures.lost_messages > 5
    assert run.figures.outages > 5
    assert run.figures.acknowledged <= run.figures.accepted
    assert run.figures.dropped == 0


def test_devices_go_offline_outside_their_daily_hours():
    fleet = FleetConfig(samples_per_s=0.01, hours_per_day=8.0)
    run, _ = play(make_config(fleet, rounds=2, min_clients=2, quorum=0.5, deadline_s=20_000.0))
    assert run.figures.hours > 1
    assert run.figures.outages >= 1


def test_outages_count_as_online_hours():
    """In 12 hours a device has 12 outages of an hour per 24 online hours, which are 6 a day, and one end."""
    fleet = FleetConfig(samples_per_s=5e-5, hours_per_day=12.0, outages_per_day=24.0, outage_s=3600.0)
    run, _ = play(make_config(fleet, rounds=1, deadline_s=1e6), options={"epochs": 1})
    days = run.figures.hours / 24
    assert run.figures.outages / days / len(IDS) == pytest.approx(7, abs=0.5)


def test_federation_with_a_lost_fleet_ends_with_a_reason():
    with pytest.raises(RoundError, match=r"lost|no device came online|did not end|updates, expected"):
        play(make_config(FleetConfig(samples_per_s=1e-4, lost_per_day=1.0), rounds=50))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"fleet": None}, r"\[fleet\]"), ({"budget_s": 1.0}, "budget_s")],
)
def test_settings_unsupported_in_virtual_time_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        config = replace(make_config(), **changes)
        simulate_fleet(make_plan("fedavg"), {}, config, IDS, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples_per_s": 0.0}, "samples_per_s is 0, expected"),
        ({"hours_per_day": 25.0}, "hours_per_day is 25, expected"),
        ({"message_loss": math.nan}, "message_loss is nan, expected"),
    ],
)
def test_impossible_fleet_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=rf"\[fleet\] {message}"):
        FleetConfig(**changes)

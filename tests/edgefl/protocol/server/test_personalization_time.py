"""How long the aggregator waits for devices that personalize."""

import math
from dataclasses import replace

import pytest

from edgefl.base.config import FederationConfig, PersonalizationConfig
from edgefl.protocol.server.personalization_time import (
    RoundTime,
    count_personalization_epochs,
    estimate_personalization_s,
)
from tests.support.numpy_learner.softmax import softmax_spec

# 160 samples in batches of 16 are 10 steps an epoch: 200 steps are 20 epochs, more than the 10 of `epochs`
SAMPLES = 160
# twice: three times 100 rounds x 2 epochs and 20 for the local model, 20 for the fine-tuning, 20 for the gate
EPOCHS = 2 * (3 * (200 + 20) + 20 + 20)
SETTINGS = FederationConfig(algorithm="pfl-mfe", rounds=100, deadline_s=600.0)
SPEC = softmax_spec(
    "pfl-mfe",
    inputs=2,
    features=2,
    classes=2,
    options={"epochs": 2, "gate_epochs": 10},
    personalization={"select": True, "epochs": 10, "least_steps": 200, "batch_size": 16},
)


def compute_deadline(*times, config=SETTINGS):
    return estimate_personalization_s(config, SPEC, times)


def make_time(seconds, *, client="a", epochs=2.0, samples=SAMPLES):
    return RoundTime(client_id=client, seconds=seconds, epochs=epochs, samples=samples)


def test_personalization_epochs_match_hand_calculation():
    assert count_personalization_epochs(SETTINGS, SPEC, SAMPLES) == EPOCHS == 1400
    # 16,000 samples are 1,000 steps an epoch, so that the 10 epochs stay
    assert count_personalization_epochs(SETTINGS, SPEC, 16_000) == 2 * (3 * (200 + 10) + 10 + 10)


@pytest.mark.parametrize(("kind", "local"), [("regression", 3 * (200 + 20)), ("anomaly", 200 + 20)])
def test_other_tasks_train_local_models_with_larger_steps_unless_they_find_anomalies(kind, local):
    spec = replace(SPEC, task={"kind": kind})
    assert count_personalization_epochs(SETTINGS, spec, SAMPLES) == 2 * (local + 20 + 20)


def test_deadline_follows_from_the_round_times():
    """Without round times, a dead device delays a federation of 100 rounds of 600 s by 60,000 s."""
    # a round of two epochs takes 5 s: 2.5 s an epoch, 1400 epochs, twice for safety
    assert compute_deadline(make_time(5.0)) == 2 * 1400 * 2.5 == 7000.0


def test_deadline_uses_the_median_of_the_slowest_client():
    times = [
        make_time(5.0, client="a"),
        make_time(500.0, client="a"),
        make_time(6.0, client="a"),
        make_time(8.0, client="b"),
    ]
    assert compute_deadline(*times) == 2 * 1400 * 4.0


def test_deadline_uses_time_per_trained_epoch():
    assert compute_deadline(make_time(5.0, epochs=1.0)) == 2 * 1400 * 5.0


def test_deadline_is_bounded():
    assert compute_deadline(make_time(0.01)) == 600.0
    assert compute_deadline(make_time(600.0)) == 2 * 100 * 600.0
    assert compute_deadline(make_time(math.inf)) == 2 * 100 * 600.0


@pytest.mark.parametrize(
    "times", [(), (make_time(math.nan),), (make_time(0.0),), (make_time(5.0, epochs=0.0),)]
)
def test_deadline_without_usable_times_is_the_largest(times):
    assert compute_deadline(*times) == 2 * 100 * 600.0


def test_configured_deadline_takes_precedence():
    config = FederationConfig(rounds=100, personalization=PersonalizationConfig(deadline_s=90.0))
    assert compute_deadline(make_time(5.0), config=config) == 90.0

"""Clipping, noise and withheld weights, each by hand, then over a round of FedAvg."""

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState
from edgefl.learning.algorithms import PHASE_FEDERATE, make_algorithm
from edgefl.learning.algorithms.names import GLOBAL, LOCAL_ROUND
from edgefl.learning.algorithms.robust import l2_norm
from edgefl.learning.algorithms.update_sanitization import UpdateSanitizer, has_suffix
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

DELTA = {
    "fc/kernel": np.array([[3.0, 0.0]], np.float32),
    "fc/bias": np.array([0.0, 4.0], np.float32),
    "bn/moving_variance": np.array([0.5], np.float32),
}


def test_weights_are_withheld_before_clipping():
    """With the bias and the statistics withheld, |d| is 3. Clipping to 1.5 halves it."""
    sent = UpdateSanitizer(clip_update=1.5, withhold=("bias", "moving_variance")).apply(
        DELTA, set(DELTA), derive_rng(1, 1)
    )
    np.testing.assert_array_equal(sent["fc/kernel"], [[1.5, 0.0]])
    np.testing.assert_array_equal(sent["fc/bias"], [0.0, 0.0])
    np.testing.assert_array_equal(sent["bn/moving_variance"], [0.0])
    assert DELTA["fc/bias"][1] == 4.0


def test_noise_has_configured_deviation_and_skips_frozen_and_withheld_weights():
    delta = {name: np.zeros(20_000, np.float32) for name in ("a", "b/bias", "frozen", "bn/moving_mean")}
    sanitizer = UpdateSanitizer(clip_update=2.0, noise_multiplier=0.25, withhold=("bias",))
    sent = sanitizer.apply(delta, {"a", "b/bias", "bn/moving_mean"}, derive_rng(1, 1))
    assert sent["a"].std() == pytest.approx(0.5, rel=0.02)
    assert abs(sent["a"].mean()) < 0.02
    for name in ("b/bias", "frozen", "bn/moving_mean"):
        assert not sent[name].any(), name
    again = sanitizer.apply(delta, {"a", "b/bias", "bn/moving_mean"}, derive_rng(1, 1))
    np.testing.assert_array_equal(sent["a"], again["a"])


def test_suffix_matches_whole_parts_of_a_name():
    assert has_suffix("fc3/bias", ["bias"])
    assert has_suffix("net/fc3/bias", ["fc3/bias"])
    assert not has_suffix("fc13/bias", ["3/bias"])
    assert not has_suffix("fc3/unbias", ["bias"])


def start_fedavg(shards, **options):
    spec = softmax_spec("fedavg", inputs=4, features=3, classes=3)
    rng = np.random.default_rng(7)
    initial = {w.name: rng.normal(0, 0.5, w.shape).astype(np.float32) for w in spec.weights}
    algorithm = make_algorithm("fedavg", SoftmaxLearner(spec), options)
    return algorithm, initial, shards["pi-1"]


def compute_sent_delta(shards, round=1, **options):
    algorithm, initial, shard = start_fedavg(shards, **options)
    update, _ = algorithm.local_update(
        Broadcast(round=round, phase=PHASE_FEDERATE, models={GLOBAL: initial}),
        ClientState(),
        shard,
        "pi-1",
        derive_rng(1, 1, "pi-1"),
    )
    return update.deltas[GLOBAL]


def test_sanitization_changes_the_update_of_fedavg(shards):
    plain = compute_sent_delta(shards)
    withheld = compute_sent_delta(shards, withhold="head/bias")
    assert plain["head/bias"].any()
    assert not withheld["head/bias"].any()
    np.testing.assert_array_equal(withheld["head/kernel"], plain["head/kernel"])
    clipped = compute_sent_delta(shards, clip_update=0.01)
    assert l2_norm(clipped) == pytest.approx(0.01, rel=1e-5)
    noisy = compute_sent_delta(shards, clip_update=0.01, noise_multiplier=1.0)
    assert not np.array_equal(noisy["trunk/kernel"], clipped["trunk/kernel"])


def test_local_round_is_not_sanitized(shards):
    options = {"clip_update": 0.01, "noise_multiplier": 1.0, "withhold": "head/bias"}
    plain = compute_sent_delta(shards, LOCAL_ROUND)
    sanitized = compute_sent_delta(shards, LOCAL_ROUND, **options)
    assert all(np.array_equal(plain[name], sanitized[name]) for name in plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"noise_multiplier": 1.0}, "expected a norm"), ({"withhold": "head/bais"}, "did you mean 'head/bias'")],
)
def test_sanitization_without_effect_is_an_error(shards, options, message):
    with pytest.raises(ConfigError, match=message):
        algorithm, initial, _ = start_fedavg(shards, **options)
        algorithm.init(initial, derive_rng(1, 0, "init"))

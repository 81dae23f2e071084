"""The layers around an algorithm on the server, in their order."""

import numpy as np
import pytest

from edgefl.algorithms import PHASE_FEDERATE, make_algorithm
from edgefl.config import FederationConfig, PrivacyConfig
from edgefl.errors import ConfigError, RoundError
from edgefl.server.plausibility import list_implausible_clients
from edgefl.server.server_algorithm import build_server_algorithm
from edgefl.types import ServerState, Update
from tests.support.numpy_learner.softmax import softmax_spec

SPEC = softmax_spec("fedavg", inputs=1, features=1, classes=2, options={})
KEY = bytes(32)


def state(round=5):
    return ServerState(
        round,
        PHASE_FEDERATE,
        {"global": {each.name: np.zeros(each.shape, np.float32) for each in SPEC.weights}},
    )


def update(client_id, bias, round=5, num_samples=1):
    deltas = {each.name: np.zeros(each.shape, np.float32) for each in SPEC.weights}
    deltas["head/bias"] = np.float32([bias, 0])
    return Update(client_id, round, num_samples, {"global": deltas})


def stack(config, cohort_of=None):
    algorithm = make_algorithm("fedavg", None, {})
    return build_server_algorithm(algorithm, config, SPEC, key=KEY, draw_cohort=cohort_of)


def test_a_late_update_is_scaled_before_it_is_clipped():
    """Three rounds old, 4 counts as 2 and is clipped to 1; over q N = 2: 0.5. Clipped first it is 0.25."""
    privacy = PrivacyConfig(clip=1.0, noise_multiplier=1e-9, population=2)
    after = stack(FederationConfig(privacy=privacy)).aggregate(state(), iter([update("a", 4.0, round=2)]))
    assert after.models["global"]["head/bias"] == pytest.approx([0.5, 0], abs=1e-6)


def test_a_late_update_is_judged_by_what_it_counts(caplog):
    """The bound is 10 m + sqrt(n) = 12.2, for n = 5 weights and m = 1, the lower median of the norms. A fresh
    update of 24 moves the model by 23.5; three rounds old it counts as 12.
    """
    others = [update("b", 1.0), update("c", 1.0)]
    plain = stack(FederationConfig())
    assert list_implausible_clients(
        plain.aggregate(state(), iter([update("a", 24.0, num_samples=100), *others]))
    ) == {"a"}
    assert len(caplog.messages) == 1
    after = plain.aggregate(state(), iter([update("a", 24.0, round=2, num_samples=100), *others]))
    assert not list_implausible_clients(after)
    assert after.models["global"]["head/bias"][0] == pytest.approx((100 * 12 + 2) / 102)


def test_masked_sums_are_played_for_the_cohort_of_the_state_and_only_by_a_simulator():
    config = FederationConfig(privacy=PrivacyConfig(secure_aggregation=True))
    cohorts = {5: ("a", "b", "c"), 6: ("a", "b")}
    masked = stack(config, lambda state: cohorts[state.round])
    updates = [update("a", 0.1), update("b", 0.2), update("c", 0.6)]
    plain = stack(FederationConfig()).aggregate(state(), iter(updates))
    assert plain.models["global"]["head/bias"] == pytest.approx([0.3, 0])
    summed = masked.aggregate(state(), iter(updates))
    np.testing.assert_allclose(summed.models["global"]["head/bias"], [0.3, 0], atol=1e-6)
    with pytest.raises(RoundError, match="a masked sum has 2 clients"):
        masked.aggregate(state(6), iter([]))
    means = stack(config).aggregate(state(), iter([update("", 0.3)]))  # over MQTT the devices masked
    assert means.models["global"]["head/bias"] == pytest.approx([0.3, 0])


def test_what_cannot_be_private_or_masked_is_refused_before_any_round():
    clustered = make_algorithm("clustered", None, {})
    privacy = PrivacyConfig(clip=1.0, noise_multiplier=1.0, population=2)
    with pytest.raises(ConfigError, match=r"\[privacy\] does not work with clustered"):
        build_server_algorithm(clustered, FederationConfig(privacy=privacy), SPEC, key=KEY)
    secure = FederationConfig(privacy=PrivacyConfig(secure_aggregation=True))
    with pytest.raises(ConfigError, match="secure_aggregation does not work with clustered"):
        build_server_algorithm(clustered, secure, SPEC, key=KEY, draw_cohort=lambda state: ())

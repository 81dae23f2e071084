"""The layers around an algorithm on the server, in their order."""

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, PrivacyConfig
from edgefl.base.errors import ConfigError, RoundError
from edgefl.base.types import ServerState, Update
from edgefl.learning.algorithms import PHASE_FEDERATE, make_algorithm
from edgefl.protocol.server.plausibility import list_left_out_clients
from edgefl.protocol.server.server_algorithm import build_server_algorithm
from tests.support.numpy_learner.softmax import softmax_spec

SPEC = softmax_spec("fedavg", inputs=1, features=1, classes=2, options={})
KEY = bytes(32)


def make_state(round=5):
    return ServerState(
        round=round,
        phase=PHASE_FEDERATE,
        models={"global": {each.name: np.zeros(each.shape, np.float32) for each in SPEC.weights}},
    )


def make_update(client_id, bias, round=5, num_samples=1):
    deltas = {each.name: np.zeros(each.shape, np.float32) for each in SPEC.weights}
    deltas["head/bias"] = np.float32([bias, 0])
    return Update(client_id=client_id, round=round, num_samples=num_samples, deltas={"global": deltas})


def build_algorithm(config, cohort_of=None):
    algorithm = make_algorithm("fedavg", None, {})
    return build_server_algorithm(algorithm, config, SPEC, key=KEY, draw_cohort=cohort_of)


def test_a_late_update_is_scaled_before_it_is_clipped():
    """An update of 4, three rounds late, counts as 2 and is clipped to 1. Divided by q N = 2 that is 0.5."""
    privacy = PrivacyConfig(clip=1.0, noise_multiplier=1e-9, population=2)
    after = build_algorithm(FederationConfig(privacy=privacy)).aggregate(
        make_state(), iter([make_update("a", 4.0, round=2)])
    )
    assert after.models["global"]["head/bias"] == pytest.approx([0.5, 0], abs=1e-6)


def test_late_update_is_checked_with_its_reduced_weight(caplog):
    """The limit is 10 m + sqrt(n) = 12.2, for n = 5 weights and m = 1, the lower median of the norms.

    A fresh update of 24 moves the model by 23.5. Three rounds late it counts as 12.
    """
    others = [make_update("b", 1.0), make_update("c", 1.0)]
    plain = build_algorithm(FederationConfig())
    assert list_left_out_clients(
        plain.aggregate(make_state(), iter([make_update("a", 24.0, num_samples=100), *others]))
    ) == {"a"}
    assert len(caplog.messages) == 1
    after = plain.aggregate(make_state(), iter([make_update("a", 24.0, round=2, num_samples=100), *others]))
    assert not list_left_out_clients(after)
    assert after.models["global"]["head/bias"][0] == pytest.approx((100 * 12 + 2) / 102)


def test_only_simulator_masks_updates_of_the_drawn_cohort():
    config = FederationConfig(privacy=PrivacyConfig(secure_aggregation=True))
    cohorts = {5: ("a", "b", "c"), 6: ("a", "b")}
    masked = build_algorithm(config, lambda state: cohorts[state.round])
    updates = [make_update("a", 0.1), make_update("b", 0.2), make_update("c", 0.6)]
    plain = build_algorithm(FederationConfig()).aggregate(make_state(), iter(updates))
    assert plain.models["global"]["head/bias"] == pytest.approx([0.3, 0])
    summed = masked.aggregate(make_state(), iter(updates))
    np.testing.assert_allclose(summed.models["global"]["head/bias"], [0.3, 0], atol=1e-6)
    with pytest.raises(RoundError, match="a masked sum has 2 clients"):
        masked.aggregate(make_state(6), iter([]))
    means = build_algorithm(config).aggregate(
        make_state(), iter([make_update("", 0.3)])
    )  # over MQTT the devices masked
    assert means.models["global"]["head/bias"] == pytest.approx([0.3, 0])


def test_unsupported_privacy_or_masking_is_refused_before_any_round():
    clustered = make_algorithm("clustered", None, {})
    privacy = PrivacyConfig(clip=1.0, noise_multiplier=1.0, population=2)
    with pytest.raises(ConfigError, match=r"\[privacy\] does not work with clustered"):
        build_server_algorithm(clustered, FederationConfig(privacy=privacy), SPEC, key=KEY)
    secure = FederationConfig(privacy=PrivacyConfig(secure_aggregation=True))
    with pytest.raises(ConfigError, match="secure_aggregation does not work with clustered"):
        build_server_algorithm(clustered, secure, SPEC, key=KEY, draw_cohort=lambda state: ())

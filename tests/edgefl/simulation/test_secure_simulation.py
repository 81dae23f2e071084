"""Secure aggregation in the simulator: the plain result except for rounding, determinism, and refusals."""

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, PrivacyConfig, parse_config
from edgefl.base.errors import ConfigError, RoundError
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.checkpoint import encode_server_state
from edgefl.protocol.security.secagg.masked_aggregation import check_secure_aggregation
from edgefl.protocol.security.secagg.masking import choose_threshold
from tests.support.numpy_learner.softmax import softmax_spec
from tests.support.softmax_federation import simulate_softmax

SECURE = PrivacyConfig(secure_aggregation=True)


def play(name, shards, privacy=SECURE, **changes):
    spec = softmax_spec(
        name,
        inputs=4,
        features=4,
        classes=3,
        options={"num_experts": 2} if name in ("ifca", "aem") else {"epochs": 1},
    )
    config = FederationConfig(rounds=3, privacy=privacy, **changes)
    records = []
    end = simulate_softmax(
        spec,
        shards,
        config,
        seed=3,
        scale=0.3,
        progress=lambda state, record: records.append(record),
    )
    return end.state, records[0]


@pytest.mark.parametrize("name", ["fedavg", "pfl-mfe", "lg-fedavg", "ditto", "ifca", "aem"])
def test_masked_federation_matches_the_plain_federation(name, shards):
    masked = play(name, shards)[0]
    plain = play(name, shards, PrivacyConfig())[0]
    # the bits are the same although new keys are drawn
    assert encode_server_state(masked) == encode_server_state(play(name, shards)[0])
    for model, weights in plain.models.items():
        for weight, array in weights.items():
            np.testing.assert_allclose(masked.models[model][weight], array, atol=1e-5)
    assert encode_server_state(masked) != encode_server_state(plain)


def test_masked_communication_cost_matches_hand_calculation(shards):
    """The model has 31 weights, so a masked vector is 8 x 32 bytes and a plain update 4 x 31 bytes.

    Each of 3 clients also sends 96 bytes of keys, 64 bytes of agreement, and for each client 224 sealed and
    66 revealed bytes. It receives 96 + 224 bytes of each client and two agreements.
    """
    masked = play("fedavg", shards, evaluate=False)[1]
    plain = play("fedavg", shards, PrivacyConfig(), evaluate=False)[1]
    assert masked.bytes_up - plain.bytes_up == 3 * (8 * 32 - 4 * 31 + 96 + 64 + 3 * (224 + 66))
    assert masked.bytes_down - plain.bytes_down == 3 * (3 * (96 + 224) + 2 * 64)


@pytest.mark.parametrize("name", ["cfl", "clustered", "fedap", "fedmix", "fedmix-permutation"])
def test_algorithms_that_need_single_updates_are_refused(name):
    with pytest.raises(ConfigError, match=f"secure_aggregation does not work with {name}"):
        check_secure_aggregation(make_algorithm(name, None, {}), FederationConfig(privacy=SECURE))


def test_unsupported_secure_settings_are_refused(shards):
    with pytest.raises(ConfigError, match="clients_per_round is 2, expected 3"):
        play("fedavg", shards, clients_per_round=2)
    with pytest.raises(ConfigError, match="expected 'fp32' for secure_aggregation"):
        play("fedavg", shards, codec="int8")
    with pytest.raises(RoundError, match="a masked sum has 2 clients"):
        play("fedavg", dict(list(shards.items())[:2]))
    with pytest.raises(ConfigError, match="expected one of them"):
        parse_config("[privacy]\nclip = 1\nnoise_multiplier = 1\npopulation = 4\nsecure_aggregation = true")
    assert [choose_threshold(count) for count in (3, 4, 5, 6, 10)] == [2, 3, 4, 4, 7]

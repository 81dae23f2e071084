"""Options that are derived from a configuration: worked by hand, and read from the plan."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.algorithms import REGISTRY, complete_algorithm_options, resolve_algorithm_options
from edgefl.config import FederationConfig, PartitionConfig, with_simulated_clients


def config_of(algorithm: str, rounds: int = 20, clients: int = 10, **options: object) -> FederationConfig:
    return FederationConfig(algorithm=algorithm, rounds=rounds, min_clients=clients, options=options)


@pytest.mark.parametrize(
    ("rounds", "options", "pretrain", "decay"),
    [
        (20, {}, 5, 14),  # 5 rounds of FedAvg, 1 of clustering, 14 in clusters
        (3, {}, 1, 1),
        (10, {"pretrain_rounds": 4}, 4, 5),
        (20, {"decay_rounds": 9}, 5, 9),
        (1320, {"pretrain_rounds": 40, "decay_rounds": 1280}, 40, 1280),  # the paper's
        (20, {"clustering": False}, 0, 20),
    ],
)
def test_the_phases_of_fedap_follow_from_the_rounds(rounds, options, pretrain, decay):
    resolved = resolve_algorithm_options(config_of("fedap", rounds, **options))
    assert (resolved["pretrain_rounds"], resolved["decay_rounds"]) == (pretrain, decay)


@given(rounds=st.integers(3, 5000))
def test_fedap_trains_in_clusters_in_a_federation_of_three_rounds_or_more(rounds):
    resolved = resolve_algorithm_options(config_of("fedap", rounds))
    assert 1 <= resolved["pretrain_rounds"] <= rounds - 2
    assert resolved["pretrain_rounds"] + 1 + resolved["decay_rounds"] == rounds


@pytest.mark.parametrize(
    ("rounds", "options", "rate", "phi_rate"),
    [
        (20, {}, 0.015, 0.2),  # .3 / 20 and 4 / 20
        (3, {}, 0.1, 1.0),  # 4 / 3 exceeds the maximum rate
        (2000, {}, 0.001, 0.002),
        (100_000, {}, 0.001, 0.001),
        (20, {"server_learning_rate": 0.5}, 0.5, 0.5),
        (20, {"server_learning_rate": 0.001, "phi_learning_rate": 0.01}, 0.001, 0.01),
        (20, {"server_optimizer": "none"}, 1.0, 1.0),
    ],
)
def test_the_rates_of_fedmix_follow_from_the_rounds(rounds, options, rate, phi_rate):
    resolved = resolve_algorithm_options(config_of("fedmix", rounds, **options))
    assert (resolved["server_learning_rate"], resolved["phi_learning_rate"]) == pytest.approx(
        (rate, phi_rate)
    )


def test_the_rate_of_fedmix_permutation_follows_from_the_rounds():
    resolved = resolve_algorithm_options(config_of("fedmix-permutation", 100))
    assert resolved["server_learning_rate"] == pytest.approx(0.003)


@pytest.mark.parametrize(
    ("name", "most"), [("ifca", 6), ("aem", 6), ("fedmix", 4), ("fedmix-permutation", 4)]
)
def test_at_most_one_expert_per_client_unless_the_option_is_set(name, most):
    def count(**changes: object) -> int:
        return int(resolve_algorithm_options(replace(config_of(name), **changes))["num_experts"])

    assert count() == most
    assert count(min_clients=2) == 2
    assert count(min_clients=2, clients=("a", "b", "c")) == 3
    assert count(min_clients=2, clients_per_round=5) == min(5, most)
    assert count(min_clients=2, options={"num_experts": 5}) == 5


def test_the_simulator_expects_the_clients_of_its_partition():
    config = replace(config_of("fedmix", clients=2), partition=PartitionConfig(num_clients=3))
    assert resolve_algorithm_options(with_simulated_clients(config))["num_experts"] == 3


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_resolved_options_are_options_and_do_not_change(name):
    config = config_of(name, rounds=7, clients=3)
    resolved = resolve_algorithm_options(config)
    assert complete_algorithm_options(name, resolved) == resolved
    assert resolve_algorithm_options(replace(config, options=resolved)) == resolved

"""Options that are derived from a configuration: worked by hand, and read from the plan."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import MIXTURE_ONLY, FederationConfig, PartitionConfig, with_simulated_clients
from edgefl.learning.algorithms import REGISTRY, complete_algorithm_options, resolve_algorithm_options


def make_config(algorithm: str, rounds: int = 20, clients: int = 10, **options: object) -> FederationConfig:
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
def test_fedap_phases_follow_from_the_number_of_rounds(rounds, options, pretrain, decay):
    resolved = resolve_algorithm_options(make_config("fedap", rounds, **options))
    assert (resolved["pretrain_rounds"], resolved["decay_rounds"]) == (pretrain, decay)


@given(rounds=st.integers(3, 5000))
def test_fedap_has_clustered_rounds_from_three_rounds_on(rounds):
    resolved = resolve_algorithm_options(make_config("fedap", rounds))
    assert 1 <= resolved["pretrain_rounds"] <= rounds - 2
    assert resolved["pretrain_rounds"] + 1 + resolved["decay_rounds"] == rounds


@pytest.mark.parametrize(
    ("rounds", "options", "rate", "phi_rate"),
    [
        (20, {}, 0.015, 0.2),  # .3 / 20 and 4 / 20
        (3, {}, 0.03, 1.0),  # .3 / 3 and 4 / 3 exceed the maximum rates
        (2000, {}, 0.001, 0.002),
        (100_000, {}, 0.001, 0.001),
        (20, {"server_learning_rate": 0.5}, 0.5, 0.5),
        (20, {"server_learning_rate": 0.001, "phi_learning_rate": 0.01}, 0.001, 0.01),
        (20, {"server_optimizer": "none"}, 1.0, 1.0),
    ],
)
def test_fedmix_rates_follow_from_the_number_of_rounds(rounds, options, rate, phi_rate):
    resolved = resolve_algorithm_options(make_config("fedmix", rounds, **options))
    assert (resolved["server_learning_rate"], resolved["phi_learning_rate"]) == pytest.approx(
        (rate, phi_rate)
    )


def test_fedmix_permutation_rate_follows_from_the_number_of_rounds():
    for rounds, rate in ((100, 0.003), (3, 0.03)):
        resolved = resolve_algorithm_options(make_config("fedmix-permutation", rounds))
        assert resolved["server_learning_rate"] == pytest.approx(rate)


@pytest.mark.parametrize(
    ("name", "most"), [("ifca", 6), ("aem", 6), ("fedem", 3), ("fedmix", 4), ("fedmix-permutation", 4)]
)
def test_at_most_one_expert_per_client_unless_the_option_is_set(name, most):
    def count_experts(**changes: object) -> int:
        return int(resolve_algorithm_options(replace(make_config(name), **changes))["num_experts"])

    assert count_experts() == most
    assert count_experts(min_clients=2) == 2
    assert count_experts(min_clients=2, clients=("a", "b", "c")) == 3
    assert count_experts(min_clients=2, clients_per_round=5) == min(5, most)
    assert count_experts(min_clients=2, options={"num_experts": 5}) == 5


def test_simulator_counts_the_clients_of_its_partition():
    config = replace(make_config("fedmix", clients=2), partition=PartitionConfig(num_clients=3))
    assert resolve_algorithm_options(with_simulated_clients(config))["num_experts"] == 3


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_resolved_options_are_valid_and_resolve_to_themselves(name):
    config = make_config(name, rounds=7, clients=3)
    resolved = resolve_algorithm_options(config)
    assert complete_algorithm_options(name, resolved) == resolved
    assert resolve_algorithm_options(replace(config, options=resolved)) == resolved


def test_aem_measures_a_tuned_model_where_clients_do_not_select():
    selecting = make_config("aem")
    alone = replace(selecting, personalization=MIXTURE_ONLY)
    assert selecting.personalization.select
    for config, expected in ((selecting, False), (alone, True)):
        assert resolve_algorithm_options(config)["baselines"] is expected
        for value in (False, True):
            chosen = replace(config, options={"baselines": value})
            assert resolve_algorithm_options(chosen)["baselines"] is value

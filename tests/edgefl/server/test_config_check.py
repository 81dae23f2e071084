"""Configurations that cannot work are refused, doubtful ones get a warning, and defaults get neither."""

from dataclasses import replace

import pytest

from edgefl.algorithms import REGISTRY
from edgefl.config import FederationConfig, PersonalizationConfig, PrivacyConfig
from edgefl.errors import ConfigError
from edgefl.server.config_check import check_config


def config_of(algorithm: str, rounds: int = 20, clients: int = 4, **options: object) -> FederationConfig:
    return FederationConfig(algorithm=algorithm, rounds=rounds, min_clients=clients, options=options)


@pytest.mark.parametrize("name", sorted(REGISTRY))
@pytest.mark.parametrize(("rounds", "clients"), [(20, 2), (20, 4), (10, 10), (3, 2), (200, 50)])
def test_the_defaults_of_every_algorithm_pass_without_a_warning(name, rounds, clients):
    assert check_config(config_of(name, rounds, clients)) == ()
    assert check_config(config_of(name, rounds, clients), clients) == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (config_of("fedap", pretrain_rounds=40), r"rounds is 20, expected 42 or more: 40 of FedAvg"),
        (config_of("fedap", pretrain_rounds=20), r"lower pretrain_rounds, raise rounds"),
        (config_of("fedap", pretrain_rounds=19), r"rounds is 20, expected 21 or more"),
        (config_of("fedap", rounds=2), r"rounds is 2, expected 3 or more"),
        (config_of("clustered", rounds=1), r"rounds is 1, expected 2 or more: 1 that clusters the clients"),
        (config_of("fedavg", epochs=0), r"epochs is 0, expected above 0: no client trains"),
        (config_of("aem", learning_rate=0), r"learning_rate is 0, expected above 0: no model moves"),
        (config_of("fedavg", momentum=1), r"momentum is 1, expected below 1"),
        (config_of("pfl-mfe", adapt_momentum=1.5), r"adapt_momentum is 1.5, expected below 1"),
        (config_of("fedprox", mu=30, learning_rate=0.1), r"mu x learning_rate is 3, expected below 2"),
        (config_of("ditto", penalty=200), r"penalty x personal_learning_rate is 2, expected below 2"),
        (config_of("fedavg", weight_decay=100), r"learning_rate x weight_decay is 1, expected below 1"),
        (config_of("fedmix", condition="side", num_sides=1), r"num_sides is 1, expected 2 or more"),
        (
            replace(config_of("fedavg", mean="krum"), clients_per_round=4),
            r"4 clients take part .* expected 5",
        ),
        (
            replace(config_of("fedavg", mean="krum", krum_faults=2), clients=("a", "b", "c", "d")),
            r"4 clients take part in a round, expected 7 or more",
        ),
        (replace(config_of("fedavg", mean="median"), clients_per_round=2), r"2 clients .* expected 3"),
        (
            replace(
                config_of("fedavg", clients=2),
                clients=("a", "b"),
                privacy=PrivacyConfig(secure_aggregation=True),
            ),
            r"secure_aggregation has 2 clients, expected 3 or more",
        ),
        (replace(config_of("fedmix"), late="keep"), r"late = 'keep' does not work with fedmix"),
        (
            replace(config_of("fedmix"), privacy=PrivacyConfig(secure_aggregation=True)),
            r"secure_aggregation does not work with fedmix",
        ),
    ],
)
def test_what_cannot_work_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        check_config(config)


@pytest.mark.parametrize(
    ("config", "clients", "message"),
    [
        (config_of("fedavg", learning_rate=100), None, "learning_rate is 100, expected below 10"),
        (config_of("ditto", personal_learning_rate=10, penalty=0), None, "personal_learning_rate is 10"),
        (config_of("aem", gate_learning_rate=1), None, "gate_learning_rate is 1, expected below 1"),
        (config_of("fedavg", server_optimizer="adam", server_learning_rate=1), None, "expected below 1"),
        (
            config_of("fedavg", server_optimizer="adam"),
            None,
            "server_learning_rate x rounds is 0.02",
        ),
        (config_of("fedmix", server_learning_rate=0.001), None, "stay near their first weights; try 0.015"),
        (
            replace(config_of("fedavg"), personalization=PersonalizationConfig(learning_rate=1.0)),
            None,
            "[personalization] learning_rate is 1, expected below 1",
        ),
        (config_of("fedavg", rounds=2, epochs=1), None, "rounds x epochs is 2, expected 3 or more"),
        (config_of("aem", num_experts=6), None, "num_experts is 6, expected at most 4, the smallest number"),
        (config_of("aem", num_experts=6), 5, "num_experts is 6, expected at most 5, the number of clients"),
        (config_of("fedap", num_clusters=5), 4, "num_clusters is 5, expected at most 4"),
        (config_of("clustered", mixing=1), None, "mixing is 1, expected below 1"),
        (config_of("clustered", threshold=1), None, "threshold is 1, expected below 1"),
        (config_of("aem", epsilon=1), None, "epsilon is 1, expected below 1"),
        (config_of("fedavg", mean="krum", clients=8), None, "a round may close with 4 updates, expected 5"),
        (replace(config_of("fedavg"), clients_per_round=9), 4, "clients_per_round is 9, expected at most 4"),
    ],
)
def test_what_hardly_works_gets_one_warning(config, clients, message):
    (warning,) = check_config(config, clients)
    assert message in warning


@pytest.mark.parametrize(
    ("config", "clients"),
    [
        (config_of("fedavg", learning_rate=9.9), None),
        (config_of("fedavg", server_learning_rate=1), None),  # the plain mean
        (config_of("fedap", pretrain_rounds=18), None),
        (config_of("fedavg", rounds=100, server_optimizer="yogi"), None),
        (config_of("fedap", rounds=1, clustering=False, epochs=3), None),
        (config_of("clustered", rounds=2), None),
        (config_of("aem", num_experts=4), 4),
        (config_of("fedavg", mean="krum", clients=10), 10),
        (replace(config_of("fedavg", mean="krum", clients=5), quorum=1.0), None),
        (config_of("fedavg", mean="median"), 3),
        (config_of("fedprox", mu=1, learning_rate=0.5), None),
    ],
)
def test_the_other_side_of_each_bound_passes(config, clients):
    assert check_config(config, clients) == ()

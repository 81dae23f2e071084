"""Configurations that cannot work are refused, doubtful ones get a warning, and defaults get neither."""

from dataclasses import replace

import pytest

from edgefl.base.config import FederationConfig, PersonalizationConfig, PrivacyConfig
from edgefl.base.errors import ConfigError
from edgefl.learning.algorithms import REGISTRY
from edgefl.protocol.server.config_check import check_config


def make_config(algorithm: str, rounds: int = 20, clients: int = 4, **options: object) -> FederationConfig:
    return FederationConfig(algorithm=algorithm, rounds=rounds, min_clients=clients, options=options)


@pytest.mark.parametrize("name", sorted(REGISTRY))
@pytest.mark.parametrize(("rounds", "clients"), [(20, 2), (20, 4), (10, 10), (3, 2), (200, 50)])
def test_the_defaults_of_every_algorithm_pass_without_a_warning(name, rounds, clients):
    assert check_config(make_config(name, rounds, clients)) == ()
    if name == "cfl" and clients == 2:  # no two parts of two clients
        return
    assert check_config(make_config(name, rounds, clients), clients) == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (make_config("fedap", pretrain_rounds=40), r"rounds is 20, expected 42 or more: 40 of FedAvg"),
        (make_config("fedap", pretrain_rounds=20), r"lower pretrain_rounds, raise rounds"),
        (make_config("fedap", pretrain_rounds=19), r"rounds is 20, expected 21 or more"),
        (make_config("fedap", rounds=2), r"rounds is 2, expected 3 or more"),
        (make_config("clustered", rounds=1), r"rounds is 1, expected 2 or more: 1 that clusters the clients"),
        (make_config("fedavg", epochs=0), r"epochs is 0, expected above 0: no client trains"),
        (make_config("aem", learning_rate=0), r"learning_rate is 0, expected above 0: no model moves"),
        (make_config("fedavg", momentum=1), r"momentum is 1, expected below 1"),
        (make_config("pfl-mfe", adapt_momentum=1.5), r"adapt_momentum is 1.5, expected below 1"),
        (make_config("fedprox", mu=30, learning_rate=0.1), r"mu x learning_rate is 3, expected below 2"),
        (make_config("ditto", penalty=200), r"penalty x personal_learning_rate is 2, expected below 2"),
        (make_config("fedavg", weight_decay=100), r"learning_rate x weight_decay is 1, expected below 1"),
        (make_config("fedmix", condition="side", num_sides=1), r"num_sides is 1, expected 2 or more"),
        (
            replace(make_config("fedavg", mean="krum"), clients_per_round=4),
            r"4 clients take part .* expected 5",
        ),
        (
            replace(make_config("fedavg", mean="krum", krum_faults=2), clients=("a", "b", "c", "d")),
            r"4 clients take part in a round, expected 7 or more",
        ),
        (replace(make_config("fedavg", mean="median"), clients_per_round=2), r"2 clients .* expected 3"),
        (
            replace(
                make_config("fedavg", clients=2),
                clients=("a", "b"),
                privacy=PrivacyConfig(secure_aggregation=True),
            ),
            r"secure_aggregation has 2 clients, expected 3 or more",
        ),
        (replace(make_config("fedmix"), late="keep"), r"late = 'keep' does not work with fedmix"),
        (
            replace(make_config("fedmix"), privacy=PrivacyConfig(secure_aggregation=True)),
            r"secure_aggregation does not work with fedmix",
        ),
    ],
)
def test_impossible_configuration_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        check_config(config)


@pytest.mark.parametrize(
    ("config", "clients", "message"),
    [
        (make_config("fedavg", learning_rate=100), None, "learning_rate is 100, expected below 10"),
        (make_config("ditto", personal_learning_rate=10, penalty=0), None, "personal_learning_rate is 10"),
        (make_config("aem", gate_learning_rate=1), None, "gate_learning_rate is 1, expected below 1"),
        (make_config("fedavg", server_optimizer="adam", server_learning_rate=1), None, "expected below 1"),
        (
            make_config("fedavg", server_optimizer="adam"),
            None,
            "server_learning_rate x rounds is 0.02",
        ),
        (make_config("fedmix", server_learning_rate=0.001), None, "stay near their first weights; try 0.015"),
        (make_config("fedmix", rounds=3, server_learning_rate=0.02), None, "first weights; try 0.03"),
        (
            replace(make_config("fedavg"), personalization=PersonalizationConfig(learning_rate=1.0)),
            None,
            "[personalization] learning_rate is 1, expected below 1",
        ),
        (make_config("fedavg", rounds=2, epochs=1), None, "rounds x epochs is 2, expected 3 or more"),
        (
            make_config("aem", num_experts=6),
            None,
            "num_experts is 6, expected at most 4, the smallest number",
        ),
        (make_config("aem", num_experts=6), 5, "num_experts is 6, expected at most 5, the number of clients"),
        (make_config("fedap", num_clusters=5), 4, "num_clusters is 5, expected at most 4"),
        (make_config("cfl", pretrain_rounds=20), None, "pretrain_rounds is 20, expected below 20"),
        (make_config("cfl", rounds=1), None, "pretrain_rounds is 1, expected below 1"),
        (make_config("cfl"), 3, "3 clients take part in a round, expected 4 or more"),
        (replace(make_config("cfl"), clients_per_round=3), 9, "3 clients take part in a round, expected 4"),
        (make_config("cfl", min_cluster_size=3), 5, "expected 6 or more: a split makes two parts"),
        (make_config("cfl", eps1=0), None, "eps1 is 0, expected above 0"),
        (make_config("cfl", eps2=1), None, "eps2 is 1, expected below 1"),
        (make_config("clustered", mixing=1), None, "mixing is 1, expected below 1"),
        (make_config("clustered", threshold=1), None, "threshold is 1, expected below 1"),
        (make_config("aem", epsilon=1), None, "epsilon is 1, expected below 1"),
        (make_config("fedavg", mean="krum", clients=8), None, "a round may close with 4 updates, expected 5"),
        (
            replace(make_config("fedavg"), clients_per_round=9),
            4,
            "clients_per_round is 9, expected at most 4",
        ),
    ],
)
def test_doubtful_configuration_gets_one_warning(config, clients, message):
    (warning,) = check_config(config, clients)
    assert message in warning


@pytest.mark.parametrize(
    ("config", "clients"),
    [
        (make_config("fedavg", learning_rate=9.9), None),
        (make_config("fedavg", server_learning_rate=1), None),  # the plain mean
        (make_config("fedap", pretrain_rounds=18), None),
        (make_config("fedavg", rounds=100, server_optimizer="yogi"), None),
        (make_config("fedap", rounds=1, clustering=False, epochs=3), None),
        (make_config("clustered", rounds=2), None),
        (make_config("cfl", pretrain_rounds=19), 4),
        (make_config("cfl", min_cluster_size=1), 2),
        (make_config("cfl", eps2=1.6, relative=False), 4),
        (make_config("cfl", min_cluster_size=9), None),
        (make_config("aem", num_experts=4), 4),
        (make_config("fedavg", mean="krum", clients=10), 10),
        (replace(make_config("fedavg", mean="krum", clients=5), quorum=1.0), None),
        (make_config("fedavg", mean="median"), 3),
        (make_config("fedprox", mu=1, learning_rate=0.5), None),
    ],
)
def test_values_just_within_each_bound_pass(config, clients):
    assert check_config(config, clients) == ()


@pytest.mark.parametrize("name", ["measurement", "range-test"])
def test_measurements_are_no_algorithm_of_a_federation(name):
    with pytest.raises(ConfigError, match=rf"'{name}', which runs before round 1.* range_test = true"):
        check_config(FederationConfig(algorithm=name))

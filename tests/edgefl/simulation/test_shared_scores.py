"""Clients that choose a model by the scores of all clients, in whole federations."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, PersonalizationConfig
from edgefl.base.types import Shard
from edgefl.learning.algorithms import REGISTRY
from edgefl.learning.client.comparison import ValidationScores
from edgefl.learning.client.selection import COMPARED_MODELS, SHIPPED_MODELS
from edgefl.protocol.server.comparison import average_shares, rank_models
from edgefl.simulation.simulate import Checkpoint
from tests.support.numpy_learner.softmax import softmax_spec
from tests.support.softmax_federation import simulate_softmax

SETTINGS = PersonalizationConfig(least_steps=20, ship="one")
BLENDED = PersonalizationConfig(least_steps=20)
OPTIONS = {"aem": {"local_epochs": 5, "gate_epochs": 5, "num_experts": 2}, "fedap": {"pretrain_rounds": 1}}


def make_shard(seed):
    rng = np.random.default_rng(seed)
    y = np.arange(40) % 3
    x = (np.eye(3, 4)[y] * 2 + rng.normal(0, 1, (40, 4))).astype(np.float32)
    return Shard(x_train=x[:25], y_train=y[:25], x_test=x[25:], y_test=y[25:], num_classes=3)


def simulate_federation(name, shards, settings=SETTINGS, **changes):
    """Simulate three rounds. Return the end, the last states of the clients, and the records of rounds."""
    options = REGISTRY[name].defaults | OPTIONS.get(name, {})
    spec = softmax_spec(
        name, inputs=4, features=3, classes=3, options=options, personalization=asdict(settings)
    )
    config = FederationConfig(rounds=3, algorithm=name, options=options, personalization=settings)
    states, records = {}, []
    end = simulate_softmax(
        spec,
        shards,
        replace(config, **changes),
        checkpoint=Checkpoint(clients=states),
        progress=lambda state, record: records.append(record),
    )
    return end, states, records


@pytest.mark.parametrize("name", ["aem", "clustered", "fedap", "fedavg", "fedmix", "pfl-mfe"])
def test_score_sharing_changes_only_the_shipped_model(name):
    shards = {f"pi-{i}": make_shard(i) for i in range(4)}
    with_scores, states, records = simulate_federation(name, shards)
    without, _, _ = simulate_federation(name, shards, share_scores=False)
    for client_id, mixture in with_scores.mixtures.items():
        other = without.mixtures[client_id]
        assert mixture.peers.keys() == other.peers.keys()
        for model, peer in mixture.peers.items():
            for key, array in peer.weights.items():
                np.testing.assert_array_equal(array, other.peers[model].weights[key])
    scores = [
        {key for key in figures if key.startswith("score_")}
        for record in records
        for figures in record.updates.values()
    ]
    assert scores[:8] == [set()] * 8
    assert scores[8:] == [{f"score_{model}" for model in COMPARED_MODELS}] * 4
    assert not [state for state in states.values() if ValidationScores.__name__ in state.records]


@pytest.mark.parametrize("name", ["fedavg", "pfl-mfe"])
def test_all_blends_have_the_mean_shares(name):
    shards = {f"pi-{i}": make_shard(i) for i in range(4)}
    end, _, records = simulate_federation(name, shards, BLENDED)
    models = [model for model in COMPARED_MODELS if name != "fedavg" or model != "mixture"]
    reported = [
        {model: figures[f"blend_{model}"] for model in models} for figures in records[-1].updates.values()
    ]
    assert [sum(shares.values()) for shares in reported] == [pytest.approx(1)] * 4
    assert not [
        key
        for record in records[:-1]
        for figures in record.updates.values()
        for key in figures
        if "blend" in key
    ]
    expected = average_shares(reported)
    for metrics in end.metrics.values():
        assert {model: metrics[f"share_{model}"] for model in models} == pytest.approx(expected)
        assert SHIPPED_MODELS[int(metrics["shipped"])] == "blend"


def test_blends_have_equal_shares_if_scores_are_not_shared():
    shards = {f"pi-{i}": make_shard(i) for i in range(4)}
    end, _, records = simulate_federation("fedavg", shards, BLENDED, share_scores=False)
    assert not [key for figures in records[-1].updates.values() for key in figures if "blend" in key]
    for metrics in end.metrics.values():
        shares = [metrics[f"share_{model}"] for model in ("local", "federated", "fine_tuned")]
        assert shares == [pytest.approx(1 / 3)] * 3


def test_client_without_validation_samples_ships_overall_best_model():
    """It cannot compare its own models, so the best model of all clients is the best guess."""
    shards = {f"pi-{i}": make_shard(i) for i in range(4)}
    one = make_shard(9)
    shards["one sample"] = replace(one, x_train=one.x_train[:1], y_train=one.y_train[:1])
    end, _, records = simulate_federation("fedavg", shards)
    reported = [figures for name, figures in records[-1].updates.items() if name != "one sample"]
    order = rank_models([{m: figures[f"score_{m}"] for m in COMPARED_MODELS} for figures in reported])
    assert COMPARED_MODELS[int(end.metrics["one sample"]["shipped"])] == order[0]
    assert not [key for key in records[-1].updates["one sample"] if key.startswith("score_")]


def test_client_absent_from_the_last_round_compares_models_itself():
    shards = {f"pi-{i}": make_shard(i) for i in range(4)}
    end, _, _ = simulate_federation("fedavg", shards, clients_per_round=2)
    assert end.mixtures.keys() == shards.keys()
    for mixture in end.mixtures.values():
        assert {f"validation/{model}" for model in COMPARED_MODELS} <= mixture.diagnostics.keys()

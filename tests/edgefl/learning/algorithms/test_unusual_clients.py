"""Every algorithm serves unusual clients.

They have one class, an exclusive class, very few samples, or no test samples.
"""

import math
import warnings
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from edgefl.base.config import MIXTURE_ONLY, FederationConfig, PersonalizationConfig
from edgefl.base.types import Shard, Weights
from edgefl.learning.algorithms import PHASE_PERSONALIZE, REGISTRY
from edgefl.learning.algorithms.names import BLEND_MODEL, FEDERATED_MODEL, LOCAL_MODEL, MIXTURE_MODEL
from edgefl.learning.client.selection import COMPARED_MODELS, PREFERRED_ORDER, SHIPPED_MODELS
from edgefl.protocol.server.comparison import ModelOrder
from edgefl.simulation.simulate import Simulation
from tests.support.numpy_learner.softmax import softmax_spec
from tests.support.softmax_federation import simulate_softmax

PHASES = {  # all phases within three rounds
    "aem": {"local_epochs": 5, "gate_epochs": 5, "num_experts": 2},
    "fedap": {"pretrain_rounds": 1, "decay_rounds": 2},
}
DEFAULT = replace(PersonalizationConfig(), least_steps=20)
"""The default personalization with fewer steps, to save time."""
SMALL_SHARDS = {"one sample": 1, "two samples": 2, "three samples": 3}


def draw_samples(seed: int, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    noise = np.random.default_rng(seed).normal(0, 0.7, (len(labels), 4))
    return (np.eye(4)[labels] * 2 + noise).astype(np.float32), labels.astype(np.int64)


def make_shard(seed: int, labels: np.ndarray, test_count: int = 12) -> Shard:
    x, y = draw_samples(seed, labels)
    x_test, y_test = draw_samples(seed + 100, np.resize(labels, test_count))
    return Shard(x_train=x, y_train=y, x_test=x_test, y_test=y_test, num_classes=4)


@pytest.fixture
def unusual_shards() -> dict[str, Shard]:
    """Return shards of four classes. Only `own class` has class 3."""
    common = np.arange(30) % 3
    shards = {
        "usual": make_shard(1, common),
        "usual too": make_shard(2, common),
        "one class": make_shard(3, np.full(20, 1)),
        "own class": make_shard(4, np.resize([3, 3, 0], 30)),
        "own class alone": make_shard(5, np.full(20, 3)),
        "no test": make_shard(6, common, test_count=0),
    }
    return shards | {name: make_shard(7 + count, common[:count]) for name, count in SMALL_SHARDS.items()}


def simulate_three_rounds(
    name: str, shards: dict[str, Shard], settings: PersonalizationConfig, **options: Any
) -> tuple[Simulation, list[set[str]]]:
    """Return the result of three simulated rounds, and the clients of each round."""
    phases = PHASES.get(name, {})
    spec = softmax_spec(
        name,
        inputs=4,
        features=3,
        classes=4,
        options=REGISTRY[name].defaults | phases,
        personalization=asdict(settings) if settings.select else {},
    )
    config = FederationConfig(rounds=3, algorithm=name, options=phases, personalization=settings)
    rounds: list[set[str]] = []
    end = simulate_softmax(
        spec,
        shards,
        config,
        progress=lambda state, record: rounds.append(set(record.updates)),
        **options,
    )
    return end, rounds


@pytest.mark.parametrize("settings", [MIXTURE_ONLY, DEFAULT], ids=["mixture", "default"])
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_unusual_clients_complete_the_federation(
    name: str,
    settings: PersonalizationConfig,
    unusual_shards: dict[str, Shard],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a division by zero, or a mean of no values
        end, rounds = simulate_three_rounds(name, unusual_shards, settings)
    assert rounds == [set(unusual_shards)] * 3
    for weights in [*end.state.models.values(), *(mixture.weights for mixture in end.mixtures.values())]:
        assert all(np.isfinite(array).all() for array in weights.values())
    assert end.state.phase in (PHASE_PERSONALIZE, "done")
    for client_id, metrics in end.metrics.items():
        accuracy = {key: value for key, value in metrics.items() if key.startswith("accuracy_")}
        assert accuracy
        assert all(math.isnan(value) == (client_id == "no test") for value in accuracy.values()), accuracy
    assert "is left out" not in caplog.text
    if not settings.select:
        assert {int(metrics["shipped"]) for metrics in end.metrics.values()} == {
            COMPARED_MODELS.index(MIXTURE_MODEL)
        }
        return
    candidates = {LOCAL_MODEL, MIXTURE_MODEL} if name == "local" else set(COMPARED_MODELS)
    for client_id, metrics in end.metrics.items():
        compared = {
            key.removeprefix("validation/"): float(np.asarray(value).item())
            for key, value in end.mixtures[client_id].diagnostics.items()
            if key.startswith("validation/")
        }
        shipped = SHIPPED_MODELS[int(metrics["shipped"])]
        shares = {key.removeprefix("share_") for key in metrics if key.startswith("share_")}
        assert {f"accuracy_{model}" for model in candidates} <= metrics.keys()
        assert have_equal_bits(
            end.mixtures[client_id].weights, end.mixtures[client_id].peers[shipped].weights
        )
        assert metrics["n_train"] + metrics["n_validation"] == len(unusual_shards[client_id].y_train)
        if client_id == "one sample":
            assert (metrics["n_validation"], compared) == (0, {})
            order = (*end.state.read_record(ModelOrder).models, *PREFERRED_ORDER)
            alone = end.mixtures[client_id].single or shipped
            assert alone == next(model for model in order if model in (shares or candidates))
        else:
            assert metrics["n_validation"] >= 1
            assert compared.keys() == candidates
        assert shipped in candidates if name == "local" else shipped == BLEND_MODEL
    assert "one sample: no sample to compare models on" in caplog.text


def have_equal_bits(first: Weights, second: Weights) -> bool:
    """Return whether two sets of weights have the same bits."""
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"local"}))
def test_client_whose_training_diverges_ships_a_finite_model(
    name: str, unusual_shards: dict[str, Shard]
) -> None:
    """The client's values are so large that all its trainings diverge. It joins after the rounds."""
    usual = unusual_shards["usual"]
    shards = {
        "usual": usual,
        "large values": replace(usual, x_train=usual.x_train * np.float32(1e20)),
    }
    end, rounds = simulate_three_rounds(name, shards, DEFAULT, without_rounds={"large values"})
    assert rounds == [{"usual"}] * 3
    metrics = end.metrics["large values"]
    assert not {"accuracy_local", "accuracy_fine_tuned"} & metrics.keys()
    shares = {key.removeprefix("share_") for key in metrics if key.startswith("share_")}
    shipped = SHIPPED_MODELS[int(metrics["shipped"])]
    assert shares == {FEDERATED_MODEL, MIXTURE_MODEL} if shipped == BLEND_MODEL else not shares
    assert shipped in (FEDERATED_MODEL, MIXTURE_MODEL, BLEND_MODEL)
    assert math.isfinite(metrics["accuracy_shipped"])
    assert all(np.isfinite(array).all() for array in end.mixtures["large values"].weights.values())

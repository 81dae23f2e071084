"""A client whose training diverges for one of its models ships another one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgefl.base.config import PersonalizationConfig
from edgefl.base.errors import DivergedError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, Mixture, Shard, Weights
from edgefl.learning.algorithms import PHASE_PERSONALIZE, Algorithm, make_algorithm
from edgefl.learning.algorithms.names import (
    FEDERATED_MODEL,
    FINE_TUNED_MODEL,
    LOCAL_EPOCHS,
    LOCAL_MODEL,
    LOCAL_START,
    MIXTURE_MODEL,
)
from edgefl.learning.client.personalization import choose_personal_model, make_candidates
from edgefl.learning.client.selection import COMPARED_MODELS
from edgefl.learning.client.validation import hold_out_validation
from edgefl.program.plan.spec import TRAIN_SINGLE
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


class FailingLearner(SoftmaxLearner):
    """Trains a single model with the step of `train`, and diverges for the named signatures.

    `local` and `fine_tuned` name the training of a single model. `local` starts with a bias of zeros, and
    `fine_tuned` with another bias.
    """

    def __init__(self, failing: set[str]) -> None:
        super().__init__(softmax_spec("pfl-mfe", inputs=4, features=3, classes=3))
        single = replace(self.spec.find_signature("train"), name=TRAIN_SINGLE)
        self.spec = replace(self.spec, signatures=(*self.spec.signatures, single))
        self.failing = failing

    def fit(self, signature: str, weights: Weights, *data: Any, **options: Any) -> tuple[Weights, float]:
        name = signature
        if signature == TRAIN_SINGLE:
            name = FINE_TUNED_MODEL if weights["head/bias"].any() else LOCAL_MODEL
        if name in self.failing:
            raise DivergedError(f"{name}: the loss is nan, expected a finite number")
        return super().fit("train" if signature == TRAIN_SINGLE else signature, weights, *data, **options)


@pytest.fixture
def shard() -> Shard:
    y = np.arange(40) % 3
    x = (np.eye(3, 4)[y] * 2 + np.random.default_rng(1).normal(0, 0.5, (40, 4))).astype(np.float32)
    return Shard(x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:], num_classes=3)


def make_broadcast(learner: SoftmaxLearner) -> Broadcast:
    rng = np.random.default_rng(2)
    start = {w.name: rng.normal(0, 0.3, w.shape).astype(np.float32) for w in learner.spec.weights}
    local = {**start, "head/bias": np.zeros(3, np.float32)}
    return Broadcast(
        round=3,
        phase=PHASE_PERSONALIZE,
        models={"global": start, LOCAL_START: local},
        scalars={LOCAL_EPOCHS: 2.0},
    )


def make_models(
    failing: set[str], shard: Shard, settings: PersonalizationConfig
) -> tuple[set[str], Mapping[str, str]]:
    learner = FailingLearner(failing)
    algorithm = make_algorithm("pfl-mfe", learner, {})
    candidates = make_candidates(
        algorithm,
        learner,
        make_broadcast(learner),
        ClientState(),
        shard,
        settings,
        lambda name: derive_rng(1, 3, name),
    )
    return set(candidates.models), candidates.failures


@pytest.mark.parametrize(
    ("failing", "missing"),
    [
        (set(), set()),
        ({"train_gate"}, {MIXTURE_MODEL}),
        ({LOCAL_MODEL}, {LOCAL_MODEL}),
        ({FINE_TUNED_MODEL}, {FINE_TUNED_MODEL}),
        ({LOCAL_MODEL, FINE_TUNED_MODEL, "train_head"}, {LOCAL_MODEL, FINE_TUNED_MODEL, MIXTURE_MODEL}),
    ],
)
def test_a_model_that_cannot_be_trained_is_left_out(
    failing: set[str], missing: set[str], shard: Shard
) -> None:
    models, failures = make_models(failing, shard, PersonalizationConfig())
    assert models == set(COMPARED_MODELS) - missing
    assert failures.keys() == missing
    assert all("the loss is nan" in reason for reason in failures.values())


def ship_model(
    failing: set[str], shard: Shard, algorithm: Algorithm | None = None, **settings: Any
) -> tuple[Mixture, Any]:
    learner = FailingLearner(failing)
    mixture, _, metrics = choose_personal_model(
        algorithm or make_algorithm("pfl-mfe", learner, {}),
        learner,
        make_broadcast(learner),
        ClientState(),
        shard,
        hold_out_validation(shard, 0.2, 1, "pi-1"),
        PersonalizationConfig(**settings),
        "pi-1",
        lambda name: derive_rng(1, 3, name),
    )
    return mixture, metrics


@pytest.mark.parametrize("select", [True, False])
def test_a_client_without_its_mixture_ships_another_model(select: bool, shard: Shard, caplog: Any) -> None:
    mixture, metrics = ship_model({"train_gate"}, shard, select=select, ship="one")
    assert COMPARED_MODELS[int(metrics["shipped"])] in (LOCAL_MODEL, FEDERATED_MODEL, FINE_TUNED_MODEL)
    assert "accuracy_mixture" not in metrics
    assert np.isfinite(metrics["accuracy_shipped"])
    assert mixture.signature == "predict"
    assert "pi-1: the model mixture is left out: train_gate: the loss is nan" in caplog.text


def test_federated_model_replaces_the_mixture_without_selection(shard: Shard) -> None:
    _, metrics = ship_model({"train_gate"}, shard, select=False)
    assert COMPARED_MODELS[int(metrics["shipped"])] == FEDERATED_MODEL


def test_client_without_any_model_reports_the_reason(shard: Shard) -> None:
    learner = FailingLearner({LOCAL_MODEL, "train_gate"})
    algorithm = replace(make_algorithm("pfl-mfe", learner, {}), current=lambda *arguments: None)
    with pytest.raises(DivergedError, match="train_gate: the loss is nan"):
        ship_model({LOCAL_MODEL, "train_gate"}, shard, algorithm)

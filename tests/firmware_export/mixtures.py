"""Real mixtures of every kind on every data set.

A short federation of two clients trains each mixture. The first client's mixture and its int8 model are
used. The fixture `mixture_of(kind, data)` of conftest.py makes each mixture once per test run, for all
processes that run the tests. It skips the test if the data are missing.
"""

import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from edgefl.base.config import (
    MIXTURE_ONLY,
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PersonalizationConfig,
)
from edgefl.base.types import Mixture, Shard
from edgefl.data import load_data, make_shards
from edgefl.data.dataset import Dataset
from edgefl.program.plan.spec import Plan
from edgefl.simulation.simulate import simulate
from tests.support.plans import read_or_make

DATA = ("fashion-mnist", "cifar10", "uci-har")
MODELS: Mapping[str, ModelConfig] = {
    "fashion-mnist": ModelConfig(name="lenet5", input_shape=(28, 28, 1), num_classes=10),
    "cifar10": ModelConfig(
        name="lenet5", input_shape=(32, 32, 3), num_classes=10, options={"filters1": 8, "filters2": 16}
    ),
    "uci-har": ModelConfig(
        name="cnn1d",
        input_shape=(128, 9),
        num_classes=6,
        options={"filters1": 16, "filters2": 32, "hidden": 32},
    ),
}
GATES: Mapping[str, dict[str, Any]] = {
    "fashion-mnist": {"gate": "cnn"},
    "cifar10": {"gate": "cnn"},
    "uci-har": {"gate": "cnn1d", "gate_options": {"filters1": 8, "filters2": 8, "hidden": 8}},
}
_STEP = {"batch_size": 32, "learning_rate": 0.05}
_CLUSTERS = {"num_experts": 2, "epochs": 2, **_STEP}
_BLENDED = PersonalizationConfig(epochs=3, least_steps=30)
_PERSONAL = {"epochs": 3, "adapt_epochs": 3, **_STEP}
OPTIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "aem": ("aem", {**_CLUSTERS, "local_epochs": 6, "local_learning_rate": 1e-3, "gate_epochs": 10}),
    "ensemble": ("aem", {**_CLUSTERS, "local_epochs": 6, "local_learning_rate": 1e-3, "gate_epochs": 10}),
    "ifca": ("ifca", _CLUSTERS),
    "fedmix": (
        "fedmix",
        {"num_experts": 3, "epochs": 3, "batch_size": 32, "server_learning_rate": 0.01, "gate_epochs": 5},
    ),
    "pfl-mf": ("pfl-mf", {**_PERSONAL, "gate_epochs": 5}),
    "pfl-mfe": ("pfl-mfe", {**_PERSONAL, "gate_epochs": 5}),
    "single": ("fedavg", {"epochs": 2, **_STEP}),
    "pfl-ft": ("pfl-ft", _PERSONAL),
    "blend": ("fedavg", {"epochs": 2, **_STEP}),
    "blend-of-mixture": ("pfl-mfe", {**_PERSONAL, "gate_epochs": 5}),
}
"""Algorithm and options of each kind. The blends have the local, the fine-tuned and the federated model, and
the second one also a mixture. aem has a convolutional gate and three experts: two of the clusters,
and the local one.
"""
ROUNDS = {("aem", "fashion-mnist"): 3, ("fedmix", "uci-har"): 4}
"""Rounds of a kind on a data set, by default 2. The mixture learns enough, and its softmax does not become
too steep for int8.
"""
KINDS = tuple(OPTIONS)
FAST = ("aem", "pfl-mfe", "single", "blend")
ON_PICTURES = (("aem", "fashion-mnist"), ("pfl-mfe", "cifar10"))
MIXTURES = [
    pytest.param(
        (kind, data),
        id=f"{kind}-{data}",
        marks=() if kind in FAST and data == "uci-har" else pytest.mark.slow,
    )
    for kind, data in (*((kind, "uci-har") for kind in KINDS), *ON_PICTURES)
]
"""Kinds of mixtures and their data sets, as parameters of tests. It takes seconds to train each of them."""


@dataclass(frozen=True)
class Made:
    """A mixture with its int8 model.

    Attributes:
        model: the int8 .tflite.
        model_float: the filled template from which it was made.
        report: the report of the export.
    """

    kind: str
    data: str
    plan: Plan
    mixture: Mixture
    shard: Shard
    model: bytes
    model_float: bytes
    report: Any


@cache
def load_dataset(data: str) -> Dataset:
    """Return up to 1,600 training and 2,400 test samples.

    Raises:
        DataError: the data set is not on this machine.
    """
    return load_data(DataConfig(name=data, num_train=1600, num_test=2400), 1)


@cache
def federate(kind: str, data: str) -> tuple[Plan, Mixture, Shard]:
    """Return plan, mixture and shard of the first of two clients after a few rounds."""
    from edgefl.learning.algorithms.plans import build_plan

    algorithm, options = OPTIONS[kind]
    gate_options = GATES[data] if algorithm == "aem" else {}
    config = FederationConfig(
        rounds=ROUNDS.get((algorithm, data), 2),
        algorithm=algorithm,
        options={**options, **gate_options},
        model=MODELS[data],
        personalization=_BLENDED if kind.startswith("blend") else MIXTURE_ONLY,
    )
    shards = list(
        make_shards(load_dataset(data), PartitionConfig(name="dirichlet", num_clients=2), 1).values()
    )
    plan, initial = build_plan(config)
    made = simulate(plan, initial, {f"client{i}": shard for i, shard in enumerate(shards)}, config)
    return plan, made.mixtures["client0"], shards[0]


@cache
def share(kind: str, data: str, directory: Path) -> Made:
    """Return the mixture with its int8 model, made by one of the processes that share a directory."""
    content = read_or_make(directory / f"{kind}-{data}.pickle", lambda: pickle.dumps(make(kind, data)))
    made: Made = pickle.loads(content)  # noqa: S301 - a process of this run has written it
    return made


def make(kind: str, data: str) -> Made:
    """Return the mixture with its int8 model."""
    from firmware_export.quantize.quantize import export_mixture

    plan, mixture, shard = federate("aem" if kind == "ensemble" else kind, data)
    if kind == "ensemble":
        mixture = Mixture(weights=mixture.peers["ensemble"].weights)
    with tempfile.TemporaryDirectory() as out:
        report = export_mixture(plan, mixture, shard, Path(out))
        model, model_float = (Path(out, name).read_bytes() for name in ("model.tflite", "model_float.tflite"))
    return Made(
        kind=kind,
        data=data,
        plan=plan,
        mixture=mixture,
        shard=shard,
        model=model,
        model_float=model_float,
        report=report,
    )

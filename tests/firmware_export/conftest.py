"""Real mixtures for the export tests.

FedAvg and PFL-MFE train LeNet-5 with the plan itself, on two clients of Fashion-MNIST. mixtures.py has the
other kinds and data sets.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, PartitionConfig
from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, Mixture, Shard, Weights
from edgefl.data import make_shards
from edgefl.data.dataset import Dataset, subsample
from edgefl.learning.algorithms import make_algorithm
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import Plan

ROOT = Path(__file__).parents[2]


def load_module(name):
    """Import a module from the folder of this file."""
    key = f"edgefl_export_tests_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, Path(__file__).with_name(f"{name}.py"))
        sys.modules[key] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[key])
    return sys.modules[key]


mixtures = load_module("mixtures")
hand_model = load_module("hand_model")


@pytest.fixture(scope="session")
def hand():
    """A handwritten model with the interface of model.h.

    It has FILES, and compute_outputs(inputs) in numpy.
    """
    return hand_model


@pytest.fixture(scope="session")
def compiled():
    """The module compiled.py, for generated C on the host and tflite-micro."""
    return load_module("compiled")


@pytest.fixture(scope="session")
def graphs():
    """The module graphs.py, for models with a few operators."""
    return load_module("graphs")


@pytest.fixture(scope="session")
def random_models():
    """The module random_models.py, for models with every kernel."""
    return load_module("random_models")


@pytest.fixture(scope="session")
def mixture_of(tmp_path_factory):
    """A function that returns the `mixtures.Made` of a kind and a data set.

    Kinds are in `mixtures.KINDS`, data sets in `mixtures.DATA`.
    """
    pytest.importorskip("tensorflow")

    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # its parent is the directory of all processes
        directory = directory.parent

    def make(kind, data):
        try:
            return mixtures.share(kind, data, directory)
        except DataError as error:
            pytest.skip(str(error))

    return make


@dataclass(frozen=True)
class Trained:
    """A client's mixture with its plan and its shard."""

    plan: Plan
    mixture: Mixture
    shard: Shard


@pytest.fixture(scope="session")
def lenet() -> tuple[Plan, Weights]:
    """The plan of LeNet-5 with PFL-MFE, and its initial weights."""
    pytest.importorskip("tensorflow")
    from edgefl.learning.algorithms.plans import build_plan

    return build_plan(FederationConfig(algorithm="pfl-mfe"))


def train(plan: Plan, initial: Weights, dataset: Dataset) -> Trained:
    """Run two rounds of one client, and return its mixture."""
    shard = make_shards(dataset, PartitionConfig(name="dirichlet", num_clients=2), 1)["client-000"]
    algorithm = make_algorithm("pfl-mfe", LiteRTLearner(plan), {})
    model = initial
    for number in (1, 2):
        received = Broadcast(round=number, phase="federate", models={"global": model})
        update, _ = algorithm.local_update(
            received, ClientState(), shard, "pi-1", derive_rng(1, number, "pi-1")
        )
        model = {name: model[name] + delta for name, delta in update.deltas["global"].items()}
    mixture, _ = algorithm.personalize(
        Broadcast(round=3, phase="personalize", models={"global": model}),
        ClientState(),
        shard,
        derive_rng(1, 3, "pi-1"),
    )
    return Trained(plan, mixture, shard)


@pytest.fixture(scope="session")
def fashion(lenet: tuple[Plan, Weights]) -> Trained:
    from edgefl.data.datasets import fashion_mnist

    try:
        dataset = fashion_mnist.load()
    except DataError as error:
        pytest.skip(str(error))
    return train(*lenet, subsample(dataset, 1500, 800, 1))


@pytest.fixture(scope="session")
def digits(lenet: tuple[Plan, Weights]) -> Trained:
    pytest.importorskip("sklearn")
    from edgefl.data.datasets import digits as source

    return train(*lenet, subsample(source.load(), 800, 300, 1))


@pytest.fixture(scope="session")
def bundle(digits, tmp_path_factory) -> Path:
    """An export for a Cortex-M4, with a certificate for 30 samples."""
    pytest.importorskip("tflite_micro")
    from firmware_export.certificate.budget import Budget
    from firmware_export.certificate.bundle import write_bundle
    from firmware_export.certificate.certificate import ExportRequest
    from firmware_export.certificate.golden import choose_golden_samples
    from firmware_export.firmware.firmware import explain_not_runnable
    from firmware_export.firmware.targets import TARGETS
    from firmware_export.quantize.quantize import export_mixture

    if reason := explain_not_runnable(TARGETS["cortex-m4"]) or explain_not_runnable(TARGETS["host"]):
        pytest.skip(reason)
    out = tmp_path_factory.mktemp("bundle")
    export_mixture(digits.plan, digits.mixture, digits.shard, out, client_id="pi-1")
    write_bundle(
        out,
        *choose_golden_samples(digits.shard, 30, 1),
        ExportRequest(target="cortex-m4", budget=Budget(64 << 10, 256 << 10)),
    )
    return out


@pytest.fixture
def copy(bundle, tmp_path) -> Path:
    """A copy of that export, which a test may damage."""
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


@pytest.fixture(scope="session")
def micro_environment(
    packages: Path, pip: Callable[..., None], lock_installation: Callable[[], AbstractContextManager[None]]
) -> dict[str, str]:
    """Environment variables with which this Python finds tflite-micro."""
    home = packages / "tflite-micro"
    with lock_installation():
        if not (home / "ready").exists():
            pip("--pre", "--no-deps", "--upgrade", "--target", str(home), "tflite-micro")
            (home / "ready").touch()
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(home), str(ROOT)])}


ForeignRun = Callable[[bytes, np.ndarray], np.ndarray]

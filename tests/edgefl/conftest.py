"""Two small federations: random points for the numpy learner, and 8x8 digits with a network compiled once."""

import time

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.types import Shard


def draw_blobs(seed: int, count: int, classes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = np.array([[2.0, 0.0, 0.0, 1.0], [0.0, 2.0, 0.0, -1.0], [0.0, 0.0, 2.0, 0.0]])
    y = rng.choice(classes, count)
    return (centres[y] + rng.normal(0, 0.7, (count, 4))).astype(np.float32), y.astype(np.int64)


@pytest.fixture
def until():
    """Return a function that waits for the first event of a link that satisfies a condition."""

    def wait(link, wanted, timeout_s=40.0):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            event = link.get(deadline - time.monotonic())
            if event is not None and wanted(event):
                return event
        raise AssertionError("it did not come in time")

    return wait


@pytest.fixture
def shards() -> dict[str, Shard]:
    kinds = {"pi-1": (0, 1), "pi-2": (1, 2), "pi-3": (0, 1, 2)}
    shards_by_client = {}
    for i, (client_id, classes) in enumerate(kinds.items()):
        x, y = draw_blobs(i, 45 + 10 * i, classes)
        x_test, y_test = draw_blobs(100 + i, 30, classes)
        shards_by_client[client_id] = Shard(x_train=x, y_train=y, x_test=x_test, y_test=y_test, num_classes=3)
    return shards_by_client


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory):
    keras = pytest.importorskip("keras", reason="the aggregator extra is not installed")
    layers = keras.layers
    # A fixed seed: near the kink of a ReLU, two runtimes may give different results.
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu", name="conv"),
            layers.MaxPooling2D(2, name="pool"),
            layers.Flatten(name="flatten"),
            layers.Dense(16, activation="relu", name="fc1"),
            layers.Dropout(0.25, name="drop"),
            layers.Dense(10, name="fc2"),
        ]
    )
    path = tmp_path_factory.mktemp("model") / "tiny.keras"
    model.save(path)
    options = {
        "epochs": 1,
        "learning_rate": 0.1,
        "batch_size": 8,
        "adapt_learning_rate": 0.02,
        "adapt_batch_size": 16,
    }
    return FederationConfig(
        rounds=2,
        algorithm="pfl-mfe",
        options=options,
        model=ModelConfig(name=str(path), input_shape=(8, 8, 1), num_classes=10),
    )


@pytest.fixture(scope="session")
def tiny(tiny_config):
    """Return (plan, initial weights)."""
    from edgefl.learning.algorithms.plans import build_plan

    return build_plan(tiny_config)


@pytest.fixture(scope="session")
def digits():
    """Return 400 real digits, x float32[400, 8, 8, 1] in [0, 1] and y int64[400]."""
    sklearn = pytest.importorskip("sklearn.datasets", reason="the aggregator extra is not installed")
    data = sklearn.load_digits()
    return (data.images[:400, :, :, None] / 16).astype("float32"), data.target[:400].astype("int64")

"""A small federation that every algorithm can be run on in milliseconds: three clients, two features, three classes."""

import numpy as np
import pytest

from edgefl.types import Shard


def blobs(seed: int, count: int, classes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = np.array([[2.0, 0.0, 0.0, 1.0], [0.0, 2.0, 0.0, -1.0], [0.0, 0.0, 2.0, 0.0]])
    y = rng.choice(classes, count)
    return (centres[y] + rng.normal(0, 0.7, (count, 4))).astype(np.float32), y.astype(np.int64)


@pytest.fixture
def shards() -> dict[str, Shard]:
    kinds = {"pi-1": (0, 1), "pi-2": (1, 2), "pi-3": (0, 1, 2)}
    made = {}
    for i, (client_id, classes) in enumerate(kinds.items()):
        x, y = blobs(i, 45 + 10 * i, classes)
        x_test, y_test = blobs(100 + i, 30, classes)
        made[client_id] = Shard(x, y, x_test, y_test, 3)
    return made

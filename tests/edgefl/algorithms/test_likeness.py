"""How alike clients were is told as the algorithm compared them."""

import numpy as np

from edgefl.algorithms.base import with_assignments
from edgefl.algorithms.likeness import comparable, likeness, likeness_of
from edgefl.algorithms.registry import full_options
from edgefl.types import ServerState, Update

START = {"conv/kernel": np.ones((1, 1, 1, 1), np.float32), "fc/bias": np.zeros(1, np.float32), "fc/kernel": np.zeros((1, 1), np.float32)}


def delta(x: float, y: float) -> dict[str, np.ndarray]:
    """A model of which the dense layer is the vector (y, x): bias before kernel."""
    return {
        "conv/kernel": np.full((1, 1, 1, 1), 9, np.float32),
        "fc/bias": np.full(1, y, np.float32),
        "fc/kernel": np.full((1, 1), x, np.float32),
    }


VECTORS = {"a": (1, 0), "b": (0.98, 0.199), "c": (0.6, 0.8), "d": (0, 1)}
AFTER = ServerState(2, "federate", {}, scalars={"cut/at": 0.1})


def test_dense_layers_by_cosine():
    """The vectors of clustered learning's oracle: a and b are alike by .98, a and c by .6, a and d not at all."""
    updates = [Update(client, 1, 10, {"global": delta(*vector)}) for client, vector in VECTORS.items()]
    state = ServerState(1, "cluster", {"global": START})
    told = likeness_of(
        "clustered", full_options("clustered", {}), state, updates, with_assignments(AFTER, {"a": 0, "b": 0, "c": 1, "d": 2})
    )
    assert told["clients"] == list("abcd")
    assert told["matrix"][0] == [1.0, 0.98, 0.6, 0.0]
    assert told["linkage"][0][:2] == [0, 1]
    assert (told["round"], told["cut"], told["layer"]) == (1, 0.1, "the weights of fc")
    assert told["assignment"] == {"a": 0, "b": 0, "c": 1, "d": 2}


def test_whole_models_by_wards_method():
    """Ward on (0, 0), (1, 0), (4, 0), (4, 3) merges at 1, 3 and 5.385165."""
    vectors = {str(i): np.array(v, np.float32) for i, v in enumerate(((0, 0), (1, 0), (4, 0), (4, 3)))}
    told = likeness("fedap", "", vectors, with_assignments(AFTER, {"0": 0}))
    np.testing.assert_allclose([row[2] for row in told["linkage"]], [1, 3, 5.385165], atol=1e-6)
    name, found = comparable("fedap", {}, START, {**delta(1, 2), "bn/moving_mean": np.ones(5, np.float32)})
    assert name == "what training changed in the whole model"
    assert found.tolist() == [9, 2, 1]


def test_of_whom_nothing_is_told():
    some = {str(i): np.ones(2, np.float32) for i in range(101)}
    placed = with_assignments(AFTER, {"0": 0})
    assert likeness("clustered", "", some, placed) is None
    assert likeness("clustered", "", {}, placed) is None
    assert likeness("clustered", "", {"0": np.ones(2, np.float32)}, AFTER) is None
    assert comparable("fedavg", {}, START, delta(1, 2)) is None

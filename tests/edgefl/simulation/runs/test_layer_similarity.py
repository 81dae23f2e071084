"""How clearly layers show the true clusters of clients."""

import numpy as np
import pytest

from edgefl.simulation.runs.layer_similarity import measure_layer_gaps


def test_gap_is_the_similarity_within_clusters_minus_between_them():
    """Two clusters of two clients: .9 within, .1 between in the dense layer, and .5 everywhere before it."""
    dense = [[1, 0.9, 0.1, 0.1], [0.9, 1, 0.1, 0.1], [0.1, 0.1, 1, 0.9], [0.1, 0.1, 0.9, 1]]
    flat = [[1 if i == j else 0.5 for j in range(4)] for i in range(4)]
    layers = {
        "epochs": [1, 2],
        "truth": [0, 0, 1, 1],
        "dense": ["fc"],
        "compared": [flat, dense],
        "layers": {"conv1": [flat, flat], "conv2": [dense, flat], "fc": [flat, dense]},
    }
    gaps = measure_layer_gaps(layers)
    assert gaps["dense"] == pytest.approx({"1": 0.0, "2": 0.8})
    assert gaps["others"] == pytest.approx({"1": 0.4, "2": 0.0})
    assert gaps["dense_relative"] == pytest.approx({"1": 0.0, "2": 0.8 / 0.9})
    assert gaps["others_relative"] == pytest.approx({"1": 0.4 / 0.9, "2": 0.0})
    assert gaps["dense_between"] == pytest.approx({"1": 0.5, "2": 0.1})


@pytest.mark.parametrize("truth", [[0, 0, 0, 0], [0, 1, 2, 3]], ids=["one cluster", "no pair"])
def test_gaps_without_two_clusters_of_pairs_are_not_finite(truth):
    layers = {"epochs": [1], "truth": truth, "dense": ["fc"], "compared": np.ones((1, 4, 4)), "layers": {}}
    gaps = measure_layer_gaps(layers)
    assert np.isnan([gaps["dense"]["1"], gaps["dense_relative"]["1"]]).all()


def test_relative_gap_of_equal_clients_is_zero():
    equal = np.ones((1, 4, 4))
    layers = {"epochs": [1], "truth": [0, 0, 1, 1], "dense": ["fc"], "compared": equal}
    assert measure_layer_gaps(layers | {"layers": {"fc": equal}})["dense_relative"] == {"1": 0.0}

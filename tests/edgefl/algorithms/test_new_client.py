"""A client without labels, by hand."""

import numpy as np

from edgefl.algorithms.new_client import ClientGate, marginal_gate


def test_the_gate_of_a_client_without_labels_by_hand():
    """Two clients of 1 and 3 samples, gates (1/2, 1/2) and (1/4, 3/4) whatever is seen: (.3125, .6875)."""
    none, q = np.zeros((1, 2), np.float32), np.array([0.5, 0.5])
    gates = [ClientGate(none, np.zeros(2, np.float32), q, 1), ClientGate(none, np.log([1, 3]).astype(np.float32), q, 3)]
    np.testing.assert_allclose(marginal_gate(np.ones((2, 1, 1), np.float32), gates), [[0.3125, 0.6875]], atol=1e-6)

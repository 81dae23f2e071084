"""Draws further initial weights of a model, for algorithms with several models. This module imports
TensorFlow.
"""

from collections.abc import Callable

import numpy as np

from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Weights
from edgefl.program.compiler.network import Network

MAX_SEED = 1 << 31


def draw_weights(
    initial: Weights, count: int, seed: int, make_network: Callable[[int], Network]
) -> dict[int, dict[str, Array]]:
    """Return further draws of a model's initial weights.

    A weight that is equal in two builds of the model is not random: it comes from a file or starts as a
    constant. If the whole head is equal, the model is pretrained. A draw then has the trunk of the model, and
    the initializers of the head draw its kernels and biases again.

    Args:
        initial: the model's initial weights by name, float32.
        seed: the configuration's seed.
        make_network: builds the model with a random seed.

    Returns:
        The weights by name, float32, by index of the draw from 1.
    """
    draws: dict[int, dict[str, Array]] = {}
    pretrained: Network | None = None
    for index in range(1, count + 1):
        rng = derive_rng(seed, index, "draw")
        network = pretrained or make_network(int(rng.integers(MAX_SEED)))
        weights = {name: array for name, array in network.read_weights().items() if name in initial}
        if pretrained is None and all(np.array_equal(weights[name], initial[name]) for name in weights):
            pretrained = network  # Every build has these weights, so no other build is needed
        if all(np.array_equal(weights[name], initial[name]) for name in network.head_names):
            weights |= network.draw_head(rng)
        draws[index] = weights
    return draws

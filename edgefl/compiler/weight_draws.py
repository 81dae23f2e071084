"""Further draws of a model's first weights, for algorithms with several models. Imports TensorFlow."""

from collections.abc import Callable

import numpy as np

from edgefl.compiler.network import Network
from edgefl.rng import derive_rng
from edgefl.types import Array, Weights

MAX_SEED = 1 << 31


def draw_weights(
    initial: Weights, count: int, seed: int, make_network: Callable[[int], Network]
) -> dict[int, dict[str, Array]]:
    """Return `count` further draws of a model's initial weights, by index from 1 on.

    A weight that is the same in another build of the model was not drawn. It comes from a file or starts as
    a constant. If the whole head is the same, the model is pretrained: a draw keeps its trunk, and the
    head's initializers draw kernels and biases again.

    Args:
        initial: the model's own initial weights.
        count: number of draws.
        seed: the configuration's seed.
        make_network: builds the model with a random seed.
    """
    draws: dict[int, dict[str, Array]] = {}
    pretrained: Network | None = None
    for index in range(1, count + 1):
        rng = derive_rng(seed, index, "draw")
        network = pretrained or make_network(int(rng.integers(MAX_SEED)))
        weights = {name: array for name, array in network.read_weights().items() if name in initial}
        if pretrained is None and all(np.array_equal(weights[name], initial[name]) for name in weights):
            pretrained = network  # every build gives these weights: one is enough
        if all(np.array_equal(weights[name], initial[name]) for name in network.head_names):
            weights |= network.draw_head(rng)
        draws[index] = weights
    return draws

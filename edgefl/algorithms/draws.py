"""The first weights of algorithms with several models: the initial weights, and further draws of them.

Whoever builds the plan draws them with the model's own initializers (`edgefl.compiler.weight_draws`) and
passes them on among the initial weights, as `draw:1/conv1/kernel`. They are no part of the plan. Where there
are none, `redraw` makes them of the initial weights.
"""

from collections.abc import Mapping

import numpy as np

from edgefl.algorithms.arithmetic import redraw
from edgefl.algorithms.names import with_prefix
from edgefl.types import Array, Weights

_DRAW = "draw:"


def format_draw_prefix(index: int) -> str:
    """Return the prefix of a further draw's names; index counts from 1."""
    return f"{_DRAW}{index}"


def with_draws(initial: Weights, draws: Mapping[int, Weights]) -> dict[str, Array]:
    """Return the initial weights with the further draws, by index from 1 on, under their own names."""
    weights = dict(initial)
    for index, draw in draws.items():
        weights |= with_prefix(format_draw_prefix(index), draw)
    return weights


def drop_draws(initial: Weights) -> dict[str, Array]:
    """Return the initial weights themselves."""
    return {name: array for name, array in initial.items() if not name.startswith(_DRAW)}


def has_draws(names: Mapping[str, object]) -> bool:
    """Return whether there are further draws among these names."""
    return any(name.startswith(_DRAW) for name in names)


def draw_initial_weights(initial: Weights, count: int, rng: np.random.Generator) -> list[dict[str, Array]]:
    """Return the first weights of `count` models: the initial weights, then one draw each.

    Args:
        initial: the initial weights, with or without further draws.
        count: number of models.
        rng: used for the draws that are not among `initial`.
    """
    base = drop_draws(initial)
    models = [base]
    for index in range(1, count):
        prefix = f"{format_draw_prefix(index)}/"
        draw = {name: initial[prefix + name] for name in base if prefix + name in initial}
        models.append(draw if len(draw) == len(base) else redraw(base, rng))
    return models

"""Initial weights of algorithms with several models.

The first model starts from the initial weights. The others start from further draws of them. The plan builder
draws these with the model's own initializers (`edgefl.program.compiler.weight_draws`). It passes them on
among the initial weights, under names such as `draw:1/conv1/kernel`. They are not part of the plan. If they
are missing, `redraw` makes them from the initial weights.
"""

from collections.abc import Mapping

import numpy as np

from edgefl.base.types import Array, Weights
from edgefl.learning.algorithms.arithmetic import redraw
from edgefl.learning.algorithms.names import with_prefix

_DRAW = "draw:"


def format_draw_prefix(index: int) -> str:
    """Return the prefix of the names of a further draw.

    Args:
        index: number of the draw, from 1.
    """
    return f"{_DRAW}{index}"


def with_draws(initial: Weights, draws: Mapping[int, Weights]) -> dict[str, Array]:
    """Return the initial weights together with further draws under prefixed names.

    Args:
        draws: further draws by index, from 1.
    """
    weights = dict(initial)
    for index, draw in draws.items():
        weights |= with_prefix(format_draw_prefix(index), draw)
    return weights


def drop_draws(initial: Weights) -> dict[str, Array]:
    """Return the initial weights without further draws."""
    return {name: array for name, array in initial.items() if not name.startswith(_DRAW)}


def has_draws(names: Mapping[str, object]) -> bool:
    """Return whether any of these names belongs to a further draw."""
    return any(name.startswith(_DRAW) for name in names)


def draw_initial_weights(initial: Weights, count: int, rng: np.random.Generator) -> list[dict[str, Array]]:
    """Return the initial weights of `count` models: the initial weights themselves, then one draw for each.

    Args:
        initial: the initial weights, with or without further draws.
        rng: makes the draws that are missing in `initial`.
    """
    base = drop_draws(initial)
    models = [base]
    for index in range(1, count):
        prefix = f"{format_draw_prefix(index)}/"
        draw = {name: initial[prefix + name] for name in base if prefix + name in initial}
        models.append(draw if len(draw) == len(base) else redraw(base, rng))
    return models

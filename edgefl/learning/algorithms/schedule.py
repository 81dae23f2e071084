"""Schedules: the learning rate of each epoch."""

import math

from edgefl.learning.algorithms.options import check_choice

SCHEDULES = ("constant", "step", "cosine")


def scale_learning_rate(
    schedule: str, epoch: int, epochs: int, *, decay_every: int = 1, decay_factor: float = 1.0
) -> float:
    """Return the learning rate of an epoch as a share of the first.

    `constant` is 1. `step` is decay_factor ** (epoch // decay_every). `cosine` falls along half a period of
    the cosine from 1 in the first epoch to almost 0 in the last: (1 + cos(pi epoch / epochs)) / 2.

    Args:
        schedule: a name of `SCHEDULES`.
        epoch: number of the epoch, from 0.
        decay_every: with `step`, number of epochs between two decays.
        decay_factor: with `step`, factor of a decay.

    Raises:
        ConfigError: the schedule is unknown.

    Source: Loshchilov and Hutter, SGDR, arXiv:1608.03983, equation 5, for `cosine`.
    """
    check_choice("schedule", schedule, SCHEDULES)
    if schedule == "step":
        return float(decay_factor ** (epoch // decay_every))
    if schedule == "cosine":
        return (1 + math.cos(math.pi * epoch / epochs)) / 2
    return 1.0

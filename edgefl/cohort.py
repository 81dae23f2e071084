"""Which clients train in a round."""

from collections.abc import Iterable

from edgefl.rng import rng_for


def choose_cohort(seed: int, round: int, clients: Iterable[str], count: int) -> tuple[str, ...]:
    """Draw `count` of the clients without replacement (0, or more than there are: all), sorted by id.

    Pure: the same seed, round and set of ids give the same cohort in the simulator and at the aggregator.
    """
    ids = sorted(set(clients))
    if count == 0 or count >= len(ids):
        return tuple(ids)
    chosen = rng_for(seed, round, "cohort").choice(len(ids), size=count, replace=False)
    return tuple(sorted(ids[i] for i in chosen))

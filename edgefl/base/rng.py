"""The only source of randomness: a generator for (seed, round, client)."""

import hashlib

import numpy as np


def derive_rng(seed: int, round: int, client_id: str = "") -> np.random.Generator:
    """Return the generator of a client in a round.

    The same arguments give the same draws on every machine.

    Args:
        round: number of the round. 0 for draws outside of a round.
        client_id: the client, or a purpose such as `cohort` or `partition`.
    """
    digest = hashlib.sha256(client_id.encode()).digest()
    entropy = np.frombuffer(digest[:16], dtype="<u4").tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, round, *entropy])))

"""The one source of randomness: a generator for (seed, round, client)."""

import hashlib

import numpy as np


def derive_rng(seed: int, round: int, client_id: str = "") -> np.random.Generator:
    """Return the generator of this client in this round.

    The same arguments give the same draws on every machine.

    `client_id` may name a purpose as well as a client, such as `cohort` or `partition`.
    """
    digest = hashlib.sha256(client_id.encode()).digest()
    entropy = np.frombuffer(digest[:16], dtype="<u4").tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, round, *entropy])))

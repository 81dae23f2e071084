"""Means of deltas that are robust against a few faulty or hostile clients.

Every mean except the weighted mean counts each client once, because a client reports its own number of
samples. These means keep all deltas of a round in memory, O(clients x weights) at the aggregator. The
weighted mean takes O(weights).

Source: coordinate-wise median and trimmed mean: Yin et al., Byzantine-Robust Distributed Learning,
arXiv:1803.01498, definitions 1 and 2. Krum and multi-Krum: Blanchard et al., Machine Learning with
Adversaries, arXiv:1703.02757. Clipping of each delta's L2 norm: Sun et al., Can You Really Backdoor Federated
Learning?, arXiv:1911.07963.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.options import suggest_nearest
from edgefl.base.types import Array, Weights
from edgefl.learning.algorithms.arithmetic import weighted_mean

MEAN_KINDS = ("weighted", "trimmed", "median", "krum")
WeightedDeltas = Iterable[tuple[Weights, float]]


def l2_norm(delta: Weights) -> float:
    """Return the L2 norm over all values of a delta."""
    return math.sqrt(sum(float(np.square(delta[name], dtype=np.float64).sum()) for name in sorted(delta)))


def clip_delta(delta: Weights, max_norm: float) -> Weights:
    """Return the delta, scaled down to an L2 norm of `max_norm` if it is longer.

    Args:
        delta: the delta of one model.
        max_norm: maximum L2 norm. With 0 the delta is returned unchanged.
    """
    if not max_norm or (norm := l2_norm(delta)) <= max_norm:
        return delta
    return {name: np.asarray(array * (max_norm / norm), np.float32) for name, array in delta.items()}


def trimmed_mean(deltas: Sequence[Weights], trim: float) -> Weights:
    """Return the mean of each value without its smallest and its largest values.

    Args:
        deltas: one delta for each client. At least one.
        trim: share of the clients cut off at either end, at least 0 and below 0.5. The number of clients is
            rounded up, but stays below half of them. With one or two deltas, nothing is cut off.

    Source: Yin et al., arXiv:1803.01498, definition 2.
    """
    count = min(math.ceil(trim * len(deltas) - 1e-9), (len(deltas) - 1) // 2)

    def average_trimmed(stack: np.ndarray) -> np.ndarray:
        return np.asarray(np.sort(stack, axis=0)[count : len(stack) - count].mean(axis=0))

    return _combine_by_name(deltas, average_trimmed)


def median(deltas: Sequence[Weights]) -> Weights:
    """Return the median of each value over the clients.

    With an even number of clients, it is the mean of the middle two values.

    Args:
        deltas: one delta for each client. At least one.

    Source: Yin et al., arXiv:1803.01498, definition 1.
    """
    return _combine_by_name(deltas, lambda stack: np.asarray(np.median(stack, axis=0)))


def count_krum_updates(faults: int) -> int:
    """Return the number of deltas that Krum needs to tolerate `faults` arbitrary ones: 2 f + 3."""
    return 2 * faults + 3


def krum(deltas: Sequence[Weights], faults: int, keep: int = 1) -> Weights:
    """Return the mean of the `keep` deltas with the lowest scores.

    The score of a delta is the sum of its squared distances to the n - f - 2 nearest other deltas. Among
    equal scores, the first deltas are used.

    Args:
        deltas: one delta for each client.
        faults: number of clients that may be hostile, f.
        keep: number of deltas in the mean. Multi-Krum uses more than 1.

    Raises:
        ConfigError: there are fewer deltas than `count_krum_updates`, or `keep` is not between 1 and n - f -
            2.

    Source: Blanchard et al., arXiv:1703.02757.
    """
    count = len(deltas)
    if count < count_krum_updates(faults):
        raise ConfigError(
            f"Krum with {faults} faults has {count} updates, expected {count_krum_updates(faults)} or more; "
            "raise clients_per_round, or lower krum_faults"
        )
    num_neighbors = count - faults - 2
    if not 1 <= keep <= num_neighbors:
        raise ConfigError(
            f"krum_keep is {keep}, expected 1 to {num_neighbors} for {count} updates with {faults} faults"
        )
    distances = np.zeros((count, count))
    for name in sorted(deltas[0]):
        rows = [delta[name].astype(np.float64) for delta in deltas]
        for i in range(count):
            for j in range(i):
                distances[i, j] += np.square(rows[i] - rows[j]).sum()
    distances += distances.T
    # The first distance is the one to the delta itself.
    scores = np.sort(distances, axis=1)[:, 1 : num_neighbors + 1].sum(axis=1)
    chosen = np.sort(np.argsort(scores, kind="stable")[:keep])
    return _combine_by_name([deltas[i] for i in chosen], lambda stack: np.asarray(stack.mean(axis=0)))


def check_mean(kind: str, trim: float) -> None:
    """Raise ConfigError for an unknown mean, or for a share that would cut off all clients.

    Args:
        kind: one of `MEAN_KINDS`.
        trim: see `trimmed_mean`.
    """
    if kind not in MEAN_KINDS:
        raise ConfigError(f"unknown mean {kind!r}; {suggest_nearest(kind, list(MEAN_KINDS))}")
    if not 0 <= trim < 0.5:
        raise ConfigError(
            f"trim is {trim}, expected a share of at least 0 and below .5, which is cut off at either end"
        )


def average_deltas(
    kind: str,
    terms: WeightedDeltas,
    *,
    trim: float = 0.1,
    faults: int = 1,
    keep: int = 1,
    clip_norm: float = 0.0,
) -> Weights | None:
    """Return the mean of clipped deltas, or None if there is none.

    Krum has no mean if the round has too few updates for `faults` and `keep`. No delta of such a round can be
    trusted.

    Args:
        kind: one of `MEAN_KINDS`.
        terms: pairs of a delta and its number of samples. They are read once.
        trim: see `trimmed_mean`.
        faults: see `krum`.
        keep: see `krum`.
        clip_norm: maximum L2 norm of each delta. 0 disables the clipping.
    """
    clipped = ((clip_delta(delta, clip_norm), count) for delta, count in terms)
    if kind == "weighted":
        return weighted_mean(clipped)
    deltas = [delta for delta, _ in clipped]
    if not deltas:
        return None
    if kind == "trimmed":
        return trimmed_mean(deltas, trim)
    if kind == "median":
        return median(deltas)
    if len(deltas) < max(count_krum_updates(faults), keep + faults + 2):
        return None
    return krum(deltas, faults, keep)


def _combine_by_name(deltas: Sequence[Weights], combine: Callable[[np.ndarray], np.ndarray]) -> Weights:
    combined: dict[str, Array] = {}
    for name in deltas[0]:
        stack = np.stack([delta[name] for delta in deltas]).astype(np.float64)
        combined[name] = np.asarray(combine(stack), np.float32)
    return combined

"""Two majority classes a client: from IID to pathological by one number.

Source: M. Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022, section
4.2, after E. Listo Zec et al., Specialized Federated Learning Using a Mixture of Experts, arXiv:2010.02056.
"""

import numpy as np

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import CountArray, check_positive, partition_by_counts
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.errors import DataError


def draw_majority_counts(
    num_classes: int, majors: tuple[int, int], p: float, samples: int, rng: np.random.Generator
) -> CountArray:
    """Return int64[num_classes]: round(p * samples) in equal halves for the two, the rest drawn uniformly
    over the other classes.
    """
    counts = np.zeros(num_classes, np.int64)
    common = round(p * samples)
    counts[majors[0]] = common - common // 2
    counts[majors[1]] = common // 2
    others = np.setdiff1d(np.arange(num_classes), majors)
    if common < samples:
        counts[others] = rng.multinomial(samples - common, np.full(len(others), 1 / len(others)))
    return counts


def p_majority(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    p: float = 0.8,
    samples: int = 500,
    test_samples: int = 100,
) -> tuple[ClientPartition, ...]:
    """Draw two classes for each client: they make up the fraction p of its samples.

    p = 2 / num_classes is IID, p = 1 pathological. A client's test samples are distributed as its training
    samples, and no sample goes to two clients. Raises DataError when a class runs out.
    """
    check_positive(samples=samples, test_samples=test_samples)
    if not 0 <= p <= 1:
        raise DataError(
            f"p is {p}, expected a fraction from 0 to 1; {2 / view.num_classes:g} is IID, 1 leaves two "
            "classes a client"
        )
    if view.num_classes < 3:
        raise DataError(
            f"{view.num_classes} classes, expected at least 3: two are the majority, the others share the "
            "rest"
        )
    majors = [
        tuple(int(label) for label in rng.permutation(view.num_classes)[:2]) for _ in range(num_clients)
    ]
    train, test = (
        np.stack([draw_majority_counts(view.num_classes, (a, b), p, size, rng) for a, b in majors])
        for size in (samples, test_samples)
    )
    parts = zip(
        partition_by_counts(view.train, train, rng),
        partition_by_counts(view.test, test, rng, "test"),
        strict=True,
    )
    return tuple(ClientPartition(train_indices, test_indices) for train_indices, test_indices in parts)

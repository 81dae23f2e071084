"""Two majority classes per client, from IID to pathological with one parameter.

Source: M. Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022, section
4.2, after E. Listo Zec et al., Specialized Federated Learning Using a Mixture of Experts, arXiv:2010.02056.
"""

import numpy as np

from edgefl.base.errors import DataError
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import CountArray, check_positive, partition_by_counts
from edgefl.data.partitions.client_partition import ClientPartition


def draw_majority_counts(
    num_classes: int, majors: tuple[int, int], p: float, samples: int, rng: np.random.Generator
) -> CountArray:
    """Draw the number of samples of each class for one client.

    The majority classes share round(p * samples) samples equally. The other samples are drawn uniformly over
    the other classes.

    Args:
        majors: the two majority classes.
        p: fraction of the majority classes, from 0 to 1.

    Returns:
        Counts, shape (num_classes,), int64. They sum to `samples`.
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
    """Draw two majority classes for each client, which make up the fraction p of its samples.

    p = 2 / num_classes is IID, and p = 1 is pathological. Training and test samples of a client have the same
    distribution. No sample goes to two clients.

    Args:
        p: fraction of the majority classes, from 0 to 1.
        samples: training samples per client.
        test_samples: test samples per client.

    Raises:
        DataError: an option is out of range, there are fewer than three classes, or a class has too few
            samples.
    """
    check_positive(samples=samples, test_samples=test_samples)
    if not 0 <= p <= 1:
        raise DataError(
            f"p is {p}, expected a fraction from 0 to 1; {2 / view.num_classes:g} is IID, 1 leaves two "
            "classes per client"
        )
    if view.num_classes < 3:
        raise DataError(
            f"the data set has {view.num_classes} classes, expected at least 3: two majority classes, and "
            "others for the rest"
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
    return tuple(
        ClientPartition(train=train_indices, test=test_indices) for train_indices, test_indices in parts
    )

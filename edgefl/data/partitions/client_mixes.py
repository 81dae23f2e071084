"""Equal numbers of samples per client, with the class mix of each client from a Dirichlet distribution.

The partition `dirichlet` instead draws the shares of each class over the clients, so its clients have
different numbers of samples.

Source: T. Hsu, H. Qi, M. Brown, arXiv:1909.06335, section 3, in the set-up of M. Reisser et al., Federated
Mixture of Experts, arXiv:2107.06724, appendix A.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.types import Labels
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import CountArray, apportion, draw_dirichlet, partition_by_counts
from edgefl.data.partitions.client_partition import ClientPartition


def fill_counts(
    available: CountArray,
    mix: NDArray[np.float64],
    size: int,
    divide: Callable[[int, NDArray[np.float64]], CountArray],
) -> CountArray:
    """Divide the samples of one client among the classes by its mix.

    What a class lacks is divided among the classes that have samples left, with renormalized weights. If none
    of these has a weight, their numbers of samples are the weights.

    Args:
        available: samples that each class has left, shape (num_classes,), int64. The sum is at least `size`.
        mix: weight of each class, shape (num_classes,), float64.
        divide: divides a number among the classes by weights that sum to 1.

    Returns:
        Samples of each class, shape (num_classes,), int64. They sum to `size`.
    """
    counts = np.zeros_like(available)
    while missing := size - int(counts.sum()):
        weights = np.where(counts < available, mix, 0.0)
        if not weights.sum() > 0:
            weights = (available - counts).astype(np.float64)
        counts = np.minimum(counts + divide(missing, weights / weights.sum()), available)
    return counts


def partition_by_mixes(
    view: LabelView,
    mixes: NDArray[np.float64],
    samples: int,
    test_samples: int,
    rng: np.random.Generator,
) -> tuple[ClientPartition, ...]:
    """Draw the same number of samples for each client by its class mix, without replacement.

    The clients are served in order. Test samples are divided in proportion to the training samples that the
    client got.

    Args:
        mixes: class mix of each client, shape (num_clients, num_classes), float64. Each row sums to 1.
        samples: training samples per client. 0 divides all samples equally, and leaves the rest out.
        test_samples: test samples per client. 0 divides all samples equally, and leaves the rest out.

    Raises:
        DataError: there are too few samples.
    """
    size, test_size = (
        _count_per_client(len(labels), len(mixes), number, part)
        for labels, number, part in (
            (view.train, samples, "training"),
            (view.test, test_samples, "test"),
        )
    )
    train = _count_classes(view.train, mixes, size, rng.multinomial)
    test = _count_classes(view.test, train.astype(np.float64), test_size, apportion)
    parts = zip(
        partition_by_counts(view.train, train, rng),
        partition_by_counts(view.test, test, rng, "test"),
        strict=True,
    )
    return tuple(
        ClientPartition(train=train_indices, test=test_indices) for train_indices, test_indices in parts
    )


def _count_per_client(total: int, num_clients: int, number: int, part: str) -> int:
    if number < 0:
        raise DataError(f"{number} {part} samples per client, expected 1 or more, or 0 to divide all of them")
    size = number or total // num_clients
    if not 0 < size * num_clients <= total:
        raise DataError(
            f"{total} {part} samples for {num_clients} clients with {max(size, 1)} each, expected at least "
            f"{max(size, 1) * num_clients}; use fewer clients or fewer samples per client"
        )
    return size


def _count_classes(
    labels: Labels,
    mixes: NDArray[np.float64],
    size: int,
    divide: Callable[[int, NDArray[np.float64]], CountArray],
) -> CountArray:
    available = np.bincount(labels, minlength=mixes.shape[1]).astype(np.int64)
    rows = []
    for mix in mixes:
        rows.append(fill_counts(available, mix, size, divide))
        available = available - rows[-1]
    return np.stack(rows)


def client_dirichlet(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 1.0,
    samples: int = 0,
    test_samples: int = 0,
) -> tuple[ClientPartition, ...]:
    """Give each client the same number of samples, with a class mix from Dirichlet(alpha).

    Samples are drawn without replacement. When a class has run out, the mix of the remaining clients is
    renormalized over the other classes. The test samples of a client have its class mix.

    Args:
        alpha: concentration, above 0. With a small alpha, a client has few classes.
        samples: training samples per client. 0 divides all samples.
        test_samples: test samples per client. 0 divides all samples.

    Raises:
        DataError: `alpha` is out of range, or there are too few samples.

    Source: T. Hsu, H. Qi, M. Brown, arXiv:1909.06335.
    """
    mixes = draw_dirichlet(alpha, view.num_classes, num_clients, rng)
    return partition_by_mixes(view, mixes, samples, test_samples, rng)

"""Pachinko allocation: a client has few superclasses, and most classes of each.

For each client, superclasses are drawn from Dir(alpha), and the classes within each from Dir(beta). Samples
are drawn without replacement. A class without remaining samples is no longer drawn.

Source: S. Reddi et al., Adaptive Federated Optimization, arXiv:2003.00295, appendix on CIFAR-100.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.types import Labels
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import CountArray, draw_dirichlet, partition_by_counts
from edgefl.data.partitions.client_partition import ClientPartition

Probabilities = NDArray[np.float64]


def pachinko(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.1,
    beta: float = 10.0,
    samples: int = 0,
) -> tuple[ClientPartition, ...]:
    """Draw the superclasses and classes of each client.

    A client has the same share of each class in the test part as in the training part.

    Args:
        alpha: Dirichlet concentration over superclasses.
        beta: Dirichlet concentration over the classes of a superclass.
        samples: training samples per client. 0 gives each client an equal share of all samples.

    Raises:
        DataError: the data set has no superclasses or too few samples, or `alpha` or `beta` is out of range.
    """
    if view.coarse is None:
        raise DataError(
            "this data set has no superclasses, expected a data set with superclasses, such as cifar100"
        )
    kinds = np.unique(view.coarse)
    roots = draw_dirichlet(alpha, len(kinds), num_clients, rng)
    leaves = np.zeros((num_clients, view.num_classes))
    members = [np.flatnonzero(view.coarse == kind) for kind in kinds]
    for indices in members:
        leaves[:, indices] = draw_dirichlet(beta, len(indices), num_clients, rng, "beta")
    size = samples or len(view.train) // num_clients
    if not 0 < size * num_clients <= len(view.train):
        raise DataError(
            f"there are {len(view.train)} samples, the {num_clients} clients need {size} each; use fewer "
            "clients or samples"
        )
    counts = draw_counts(view.train, roots, leaves, members, size, rng)
    train_counts, test_counts = (
        np.bincount(labels, minlength=view.num_classes) for labels in (view.train, view.test)
    )
    # Rounded after summing over clients, so that the test samples of each class suffice.
    reached = np.rint(np.cumsum(counts, axis=0) * (test_counts / np.maximum(train_counts, 1))).astype(
        np.int64
    )
    train = partition_by_counts(view.train, counts, rng)
    test = partition_by_counts(view.test, np.diff(reached, axis=0, prepend=0), rng, "test")
    return tuple(
        ClientPartition(train=indices, test=test_indices)
        for indices, test_indices in zip(train, test, strict=True)
    )


def draw_counts(
    labels: Labels,
    roots: Probabilities,
    leaves: Probabilities,
    members: list[Labels],
    size: int,
    rng: np.random.Generator,
) -> CountArray:
    """Draw the number of samples of each class for each client, from the samples that earlier clients left.

    Args:
        labels: the class of each sample, shape (n,), int64.
        roots: probabilities of superclasses, shape (num_clients, num_superclasses), float64.
        leaves: probabilities of classes within their superclass, shape (num_clients, num_classes), float64.
        members: the classes of each superclass, int64.
        size: number of samples per client.

    Returns:
        Counts, shape (num_clients, num_classes), int64.
    """
    left = np.bincount(labels, minlength=leaves.shape[1])
    counts = np.zeros(leaves.shape, np.int64)
    for client_counts, root, leaf in zip(counts, roots, leaves, strict=True):
        while (missing := size - int(client_counts.sum())) > 0:
            filled = np.array([left[classes].sum() for classes in members]) > 0
            for classes, count in zip(
                members, rng.multinomial(missing, _restrict(root, filled)), strict=True
            ):
                while count and (left[classes] > 0).any():
                    drawn = np.minimum(
                        rng.multinomial(count, _restrict(leaf[classes], left[classes] > 0)), left[classes]
                    )
                    client_counts[classes] += drawn
                    left[classes] -= drawn
                    count -= int(drawn.sum())
    return counts


def _restrict(shares: Probabilities, available: NDArray[np.bool_]) -> Probabilities:
    """Return the shares of the available entries, scaled to sum 1, or equal shares if all of them are 0."""
    remaining: Probabilities = np.where(available, shares, 0)
    if remaining.sum() < 1e-12:
        remaining = available.astype(np.float64)
    remaining /= remaining.sum()
    return remaining

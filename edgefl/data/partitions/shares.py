"""Divides every sample among the clients by shares of each class: IID and Dirichlet.

The functions map labels, shares and a random generator to one array of sorted indices per client. Together
these arrays contain every index once.

Source: T. Hsu, H. Qi, M. Brown, arXiv:1909.06335 (Dirichlet).
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.types import Labels
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import draw_dirichlet
from edgefl.data.partitions.client_partition import ClientPartition

ClassShares = NDArray[np.float64]


def make_iid_shares(num_classes: int, num_clients: int, rng: np.random.Generator) -> ClassShares:
    """Return equal shares of each class.

    Args:
        rng: not used. It is an argument because `draw_dirichlet_shares` needs one.

    Returns:
        Shares, shape (num_classes, num_clients), float64. Each row sums to 1.
    """
    return np.full((num_classes, num_clients), 1 / num_clients)


def draw_dirichlet_shares(
    num_classes: int, num_clients: int, rng: np.random.Generator, *, alpha: float
) -> ClassShares:
    """Draw the shares of each class over the clients from Dirichlet(alpha).

    Args:
        alpha: concentration, above 0. With a small alpha, a client has few classes.

    Returns:
        Shares, shape (num_classes, num_clients), float64. Each row sums to 1.

    Raises:
        DataError: `alpha` is out of range.

    Source: T. Hsu, H. Qi, M. Brown, arXiv:1909.06335.
    """
    return draw_dirichlet(alpha, num_clients, num_classes, rng)


def divide_by_shares(
    labels: Labels, shares: ClassShares, rng: np.random.Generator, min_samples: int = 2
) -> list[Labels]:
    """Divide sample indices among clients by shares of each class.

    A client with fewer than `min_samples` then takes random samples from the client with the most samples.

    Args:
        labels: the class of each sample, shape (n,), int64.
        shares: shares of each class, shape (num_classes, num_clients), float64. Each row sums to 1.

    Returns:
        Sorted sample indices of each client, int64.

    Raises:
        DataError: there are fewer than `min_samples` samples per client.
    """
    num_clients = shares.shape[1]
    if len(labels) < min_samples * num_clients:
        raise DataError(
            f"{len(labels)} samples for {num_clients} clients, expected at least {min_samples} each; use "
            "fewer clients"
        )
    parts: list[list[int]] = [[] for _ in range(num_clients)]
    for label, row in enumerate(shares):
        indices = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.round(np.cumsum(row)[:-1] * len(indices)).astype(np.int64)
        for part, piece in zip(parts, np.split(indices, cuts), strict=True):
            part.extend(piece.tolist())
    for part in parts:
        while len(part) < min_samples:
            donor = max(parts, key=len)
            part.append(donor.pop(int(rng.integers(len(donor)))))
    return [np.sort(np.asarray(part, np.int64)) for part in parts]


def partition_by_shares(
    view: LabelView, shares: ClassShares, rng: np.random.Generator, min_samples: int = 2
) -> tuple[ClientPartition, ...]:
    """Divide the training part and the test part by the same shares.

    Each client has at least `min_samples` training samples and one test sample.

    Args:
        shares: shares of each class, shape (num_classes, num_clients), float64. Each row sums to 1.
        min_samples: minimum number of training samples of a client.

    Raises:
        DataError: there are too few samples.
    """
    train = divide_by_shares(view.train, shares, rng, min_samples)
    return tuple(
        ClientPartition(train=train_indices, test=test_indices)
        for train_indices, test_indices in zip(
            train, divide_by_shares(view.test, shares, rng, 1), strict=True
        )
    )


def iid(
    view: LabelView, num_clients: int, rng: np.random.Generator, *, min_samples: int = 2
) -> tuple[ClientPartition, ...]:
    """Give each client an equal share of each class. All samples are used.

    Args:
        min_samples: minimum number of training samples of a client.

    Raises:
        DataError: there are too few samples.
    """
    return partition_by_shares(view, make_iid_shares(view.num_classes, num_clients, rng), rng, min_samples)


def dirichlet(
    view: LabelView, num_clients: int, rng: np.random.Generator, *, alpha: float = 0.5, min_samples: int = 2
) -> tuple[ClientPartition, ...]:
    """Draw the shares of each class over the clients from Dirichlet(alpha).

    Training and test parts are divided by the same shares. All samples are used. A client with fewer than
    `min_samples` takes samples from the client with the most samples.

    Args:
        alpha: concentration, above 0. With a small alpha, a client has few classes.
        min_samples: minimum number of training samples of a client.

    Raises:
        DataError: `alpha` is out of range, or there are too few samples.

    Source: T. Hsu, H. Qi, M. Brown, arXiv:1909.06335.
    """
    return partition_by_shares(
        view, draw_dirichlet_shares(view.num_classes, num_clients, rng, alpha=alpha), rng, min_samples
    )

"""Every sample to one client, by shares of each class: IID, and Dirichlet (T.

Hsu, H. Qi, M. Brown, arXiv:1909.06335).

From labels, shares and a generator to one int64 array of sorted indices a client; together they hold every
index once.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import draw_dirichlet
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.errors import DataError
from edgefl.types import Labels

ClassShares = NDArray[np.float64]


def make_iid_shares(num_classes: int, num_clients: int, rng: np.random.Generator) -> ClassShares:
    """Return equal shares: float64[num_classes, num_clients], rows sum to 1."""
    return np.full((num_classes, num_clients), 1 / num_clients)


def draw_dirichlet_shares(
    num_classes: int, num_clients: int, rng: np.random.Generator, *, alpha: float
) -> ClassShares:
    """Draw each class's shares over the clients from Dirichlet(alpha): float64[num_classes, num_clients].

    The smaller alpha, the fewer classes a client has (T. Hsu, H. Qi, M. Brown, arXiv:1909.06335).
    """
    return draw_dirichlet(alpha, num_clients, num_classes, rng)


def divide_by_shares(
    labels: Labels, shares: ClassShares, rng: np.random.Generator, min_samples: int = 2
) -> list[Labels]:
    """Share indices out class by class; a client below `min_samples` then takes from the largest.

    Raises DataError when there are fewer than `min_samples` for each client.
    """
    num_clients = shares.shape[1]
    if len(labels) < min_samples * num_clients:
        raise DataError(
            f"{len(labels)} samples for {num_clients} clients, expected at least {min_samples} each; take "
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
    """Share the training and the test part out by the same shares.

    Each client has `min_samples` to train on and one to be measured on.
    """
    train = divide_by_shares(view.train, shares, rng, min_samples)
    return tuple(
        ClientPartition(train_indices, test_indices)
        for train_indices, test_indices in zip(
            train, divide_by_shares(view.test, shares, rng, 1), strict=True
        )
    )


def iid(
    view: LabelView, num_clients: int, rng: np.random.Generator, *, min_samples: int = 2
) -> tuple[ClientPartition, ...]:
    """Give each client an equal share of each class. All samples are used."""
    return partition_by_shares(view, make_iid_shares(view.num_classes, num_clients, rng), rng, min_samples)


def dirichlet(
    view: LabelView, num_clients: int, rng: np.random.Generator, *, alpha: float = 0.5, min_samples: int = 2
) -> tuple[ClientPartition, ...]:
    """Draw each class's shares over the clients from Dirichlet(alpha), the same for training and test.

    All samples are used.

    A client that gets fewer than `min_samples` takes from the largest.
    """
    return partition_by_shares(
        view, draw_dirichlet_shares(view.num_classes, num_clients, rng, alpha=alpha), rng, min_samples
    )

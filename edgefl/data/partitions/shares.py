"""Every sample to one client, by shares of each class: IID, and Dirichlet (T.

Hsu, H. Qi, M. Brown, arXiv:1909.06335).

From labels, shares and a generator to one int64 array of sorted indices a client; together they hold every
index once.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import dirichlet_rows
from edgefl.data.partitions.client_partition import Allotment
from edgefl.errors import DataError
from edgefl.types import Labels

Shares = NDArray[np.float64]


def iid_shares(num_classes: int, num_clients: int, rng: np.random.Generator) -> Shares:
    """Return equal shares: float64[num_classes, num_clients], rows sum to 1."""
    return np.full((num_classes, num_clients), 1 / num_clients)


def dirichlet_shares(num_classes: int, num_clients: int, rng: np.random.Generator, *, alpha: float) -> Shares:
    """Draw each class's shares over the clients from Dirichlet(alpha): float64[num_classes, num_clients].

    The smaller alpha, the fewer classes a client has (T. Hsu, H. Qi, M. Brown, arXiv:1909.06335).
    """
    return dirichlet_rows(alpha, num_clients, num_classes, rng)


def divide(labels: Labels, shares: Shares, rng: np.random.Generator, min_samples: int = 2) -> list[Labels]:
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
        own = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.round(np.cumsum(row)[:-1] * len(own)).astype(np.int64)
        for part, piece in zip(parts, np.split(own, cuts), strict=True):
            part.extend(piece.tolist())
    for part in parts:
        while len(part) < min_samples:
            donor = max(parts, key=len)
            part.append(donor.pop(int(rng.integers(len(donor)))))
    return [np.sort(np.asarray(part, np.int64)) for part in parts]


def divide_both(
    view: LabelView, shares: Shares, rng: np.random.Generator, min_samples: int = 2
) -> tuple[Allotment, ...]:
    """Share the training and the test part out by the same shares.

    Each client has `min_samples` to train on and one to be measured on.
    """
    train = divide(view.train, shares, rng, min_samples)
    return tuple(
        Allotment(own, held) for own, held in zip(train, divide(view.test, shares, rng, 1), strict=True)
    )


def iid(
    view: LabelView, num_clients: int, rng: np.random.Generator, *, min_samples: int = 2
) -> tuple[Allotment, ...]:
    """Give each client an equal share of each class. All samples are used."""
    return divide_both(view, iid_shares(view.num_classes, num_clients, rng), rng, min_samples)


def dirichlet(
    view: LabelView, num_clients: int, rng: np.random.Generator, *, alpha: float = 0.5, min_samples: int = 2
) -> tuple[Allotment, ...]:
    """Draw each class's shares over the clients from Dirichlet(alpha), the same for training and test.

    All samples are used.

    A client that gets fewer than `min_samples` takes from the largest.
    """
    return divide_both(
        view, dirichlet_shares(view.num_classes, num_clients, rng, alpha=alpha), rng, min_samples
    )

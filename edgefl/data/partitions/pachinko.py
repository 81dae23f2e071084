"""Pachinko allocation: a client has few superclasses, and most classes of those.

Source: S. Reddi et al., Adaptive Federated Optimization, arXiv:2003.00295, appendix on CIFAR-100: for each
client, superclasses from Dir(alpha) and classes within each from Dir(beta); samples are drawn without
replacement, and what is used up leaves the draw.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import Counts, deal, dirichlet_rows
from edgefl.data.partitions.client_partition import Allotment
from edgefl.errors import DataError
from edgefl.types import Labels

Shares = NDArray[np.float64]


def pachinko(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.1,
    beta: float = 10.0,
    samples: int = 0,
) -> tuple[Allotment, ...]:
    """Draw each client's superclasses and classes.

    Of the test part it has the same share of each class as of the training part.

    samples: how many a client trains on, 0 means an equal share of all. Raises DataError when the data set
    has no superclasses.
    """
    if view.coarse is None:
        raise DataError("this data set has no superclasses, expected one that has, such as cifar100")
    kinds = np.unique(view.coarse)
    roots = dirichlet_rows(alpha, len(kinds), num_clients, rng)
    leaves = np.zeros((num_clients, view.num_classes))
    members = [np.flatnonzero(view.coarse == kind) for kind in kinds]
    for own in members:
        leaves[:, own] = dirichlet_rows(beta, len(own), num_clients, rng, "beta")
    size = samples or len(view.train) // num_clients
    if not 0 < size * num_clients <= len(view.train):
        raise DataError(
            f"{len(view.train)} samples, the {num_clients} clients ask for {size} each; take fewer clients "
            "or samples"
        )
    counts = draw_counts(view.train, roots, leaves, members, size, rng)
    whole, held = (np.bincount(labels, minlength=view.num_classes) for labels in (view.train, view.test))
    # Rounded after summing over clients, so that each class's test samples suffice.
    reached = np.rint(np.cumsum(counts, axis=0) * (held / np.maximum(whole, 1))).astype(np.int64)
    train = deal(view.train, counts, rng)
    test = deal(view.test, np.diff(reached, axis=0, prepend=0), rng, "test")
    return tuple(Allotment(own, kept) for own, kept in zip(train, test, strict=True))


def draw_counts(
    labels: Labels, roots: Shares, leaves: Shares, members: list[Labels], size: int, rng: np.random.Generator
) -> Counts:
    """Return int64[num_clients, num_classes] with `size` samples a client, from what the clients before left.

    roots: float64[num_clients, num_superclasses]; leaves: float64[num_clients, num_classes]; members: the
    classes of each superclass.
    """
    left = np.bincount(labels, minlength=leaves.shape[1])
    counts = np.zeros(leaves.shape, np.int64)
    for own, root, leaf in zip(counts, roots, leaves, strict=True):
        while (missing := size - int(own.sum())) > 0:
            filled = np.array([left[classes].sum() for classes in members]) > 0
            for classes, count in zip(members, rng.multinomial(missing, _among(root, filled)), strict=True):
                while count and (left[classes] > 0).any():
                    drawn = np.minimum(
                        rng.multinomial(count, _among(leaf[classes], left[classes] > 0)), left[classes]
                    )
                    own[classes] += drawn
                    left[classes] -= drawn
                    count -= int(drawn.sum())
    return counts


def _among(shares: Shares, there: NDArray[np.bool_]) -> Shares:
    """Return the shares of what is there, which sum to 1; equal ones where all of them have vanished."""
    kept: Shares = np.where(there, shares, 0)
    if kept.sum() < 1e-12:
        kept = there.astype(np.float64)
    kept /= kept.sum()
    return kept

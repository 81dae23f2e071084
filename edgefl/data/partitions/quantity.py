"""Clients with different numbers of samples: IID labels, uneven sizes.

Source: Q. Li et al., Federated Learning on Non-IID Data Silos, arXiv:2102.02079 (quantity skew), and T. Li et
al., Federated Optimization in Heterogeneous Networks, arXiv:1812.06127 (power law).
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.types import Labels
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import CountArray, apportion, check_positive, draw_dirichlet
from edgefl.data.partitions.client_partition import ClientPartition


def quantity(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    law: str = "dirichlet",
    alpha: float = 0.5,
    min_samples: int = 10,
) -> tuple[ClientPartition, ...]:
    """Divide all samples into parts of uneven size.

    Each client has at least `min_samples` training samples and one test sample.

    Args:
        law: `dirichlet` draws the sizes from Dir(alpha). `power` gives the client of rank r a size
            proportional to r ** -alpha, with random ranks.
        alpha: parameter of the law, above 0. A small alpha gives uneven sizes with `dirichlet` and even sizes
            with `power`.
        min_samples: minimum number of training samples of a client.

    Raises:
        DataError: an option is out of range, or there are too few samples.
    """
    check_positive(alpha=alpha, min_samples=min_samples)
    if law == "dirichlet":
        weights = draw_dirichlet(alpha, num_clients, 1, rng)[0]
    elif law == "power":
        weights = rng.permutation(np.arange(1, num_clients + 1) ** -alpha)
    else:
        raise DataError(f"law is {law!r}, expected 'dirichlet' or 'power'")
    train, test = (
        _apportion_sizes(len(part), weights, least)
        for part, least in ((view.train, min_samples), (view.test, 1))
    )
    parts = zip(_cut_samples(train, rng), _cut_samples(test, rng), strict=True)
    return tuple(
        ClientPartition(train=train_indices, test=test_indices) for train_indices, test_indices in parts
    )


def _apportion_sizes(total: int, weights: NDArray[np.float64], least: int) -> CountArray:
    spare = total - least * len(weights)
    if spare < 0:
        raise DataError(
            f"{total} samples for {len(weights)} clients, expected at least {least} each; use fewer clients"
        )
    return least + apportion(spare, weights)


def _cut_samples(sizes: CountArray, rng: np.random.Generator) -> list[Labels]:
    order = rng.permutation(int(sizes.sum()))
    return [np.sort(indices).astype(np.int64) for indices in np.split(order, np.cumsum(sizes)[:-1])]

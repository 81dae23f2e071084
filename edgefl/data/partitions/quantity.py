"""Clients that differ in how much they have, not in what: IID labels, uneven sizes.

Source: Q. Li et al., Federated Learning on Non-IID Data Silos, arXiv:2102.02079 (quantity skew); the power
law is that of T. Li et al., Federated Optimization in Heterogeneous Networks, arXiv:1812.06127.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import CountArray, apportion, check_positive, draw_dirichlet
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.errors import DataError
from edgefl.types import Labels


def quantity(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    law: str = "dirichlet",
    alpha: float = 0.5,
    min_samples: int = 10,
) -> tuple[ClientPartition, ...]:
    """Share out all samples in uneven parts.

    law: `dirichlet` draws the sizes from Dir(alpha), the smaller alpha the less even; `power` makes the
    client of rank r as large as r ** -alpha, ranks drawn. Each client has `min_samples` to train on and one
    to be measured on besides.
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
    return tuple(ClientPartition(train_indices, test_indices) for train_indices, test_indices in parts)


def _apportion_sizes(total: int, weights: NDArray[np.float64], least: int) -> CountArray:
    spare = total - least * len(weights)
    if spare < 0:
        raise DataError(
            f"{total} samples for {len(weights)} clients, expected at least {least} each; take fewer clients"
        )
    return least + apportion(spare, weights)


def _cut_samples(sizes: CountArray, rng: np.random.Generator) -> list[Labels]:
    order = rng.permutation(int(sizes.sum()))
    return [np.sort(indices).astype(np.int64) for indices in np.split(order, np.cumsum(sizes)[:-1])]

"""Makes one client of each writer, wearer or other group of the data set.

Source: natural partitions as in LEAF (S. Caldas et al., arXiv:1812.01097).
"""

import logging

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.types import Labels
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import check_positive
from edgefl.data.partitions.client_partition import ClientPartition

LOGGER = logging.getLogger(__name__)


def group(
    view: LabelView, num_clients: int, rng: np.random.Generator, *, min_samples: int = 2
) -> tuple[ClientPartition, ...]:
    """Draw `num_clients` groups, and make a client of each.

    A client has the training and the test samples of its group. Clients are ordered by group id. Only groups
    with at least `min_samples` training samples and at least one test sample are drawn. The data set decides
    which samples of a group are test samples: most built-in ones hold out the last samples of the group.

    Args:
        min_samples: minimum number of training samples of a group.

    Raises:
        DataError: the data set has no groups, or too few of them.
    """
    check_positive(min_samples=min_samples)
    if view.group_train is None or view.group_test is None:
        raise DataError(
            "this data set has no groups (writers, wearers), expected a data set with groups, such as "
            "mnist-writers or uci-har"
        )
    ids, counts = np.unique(view.group_train, return_counts=True)
    fit = ids[(counts >= min_samples) & np.isin(ids, view.group_test)]
    if len(fit) < num_clients:
        raise DataError(
            f"{len(fit)} of {len(ids)} groups have at least {min_samples} training samples and a test "
            f"sample, expected {num_clients} such groups (num_clients of [partition]); set num_clients = "
            f"{len(fit)}, or use a split that holds out samples of each group"
        )
    if num_clients == len(fit) < len(ids):
        LOGGER.warning(
            f"{len(ids) - len(fit)} of {len(ids)} groups make no client: they have fewer than {min_samples} "
            "training samples, or no test sample"
        )
    drawn = np.sort(rng.permutation(fit)[:num_clients])
    parts = zip(_find_members(view.group_train, drawn), _find_members(view.group_test, drawn), strict=True)
    return tuple(
        ClientPartition(train=train_indices, test=test_indices) for train_indices, test_indices in parts
    )


def _find_members(groups: Labels, drawn: Labels) -> list[Labels]:
    """Return the sorted indices of each drawn group."""
    order = np.argsort(groups, kind="stable")
    first, last = (np.searchsorted(groups[order], drawn, side) for side in ("left", "right"))
    return [order[low:high] for low, high in zip(first, last, strict=True)]

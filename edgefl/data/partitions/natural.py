"""One client a writer, wearer or other group that the data set knows of.

Source: natural partitions as in LEAF (S. Caldas et al., arXiv:1812.01097).
"""

import numpy as np

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import check_positive
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.errors import DataError
from edgefl.types import Labels


def group(
    view: LabelView, num_clients: int, rng: np.random.Generator, *, min_samples: int = 2
) -> tuple[ClientPartition, ...]:
    """Draw `num_clients` groups.

    Each becomes a client with its own training and test samples, ordered by group id.

    Only groups with `min_samples` to train on and one to be measured on are drawn. What a group is measured
    on is the data set's choice: the loaders hold out the last of its samples. Raises DataError for a data set
    without groups, or with too few.
    """
    check_positive(min_samples=min_samples)
    if view.group_train is None or view.group_test is None:
        raise DataError(
            "this data set does not know its groups (writers, wearers), expected one that does, such as "
            "mnist-writers or uci-har"
        )
    ids, counts = np.unique(view.group_train, return_counts=True)
    fit = ids[(counts >= min_samples) & np.isin(ids, view.group_test)]
    if len(fit) < num_clients:
        raise DataError(
            f"{len(fit)} of {len(ids)} groups have {min_samples} training samples and a test sample of their "
            f"own, expected {num_clients} (num_clients of [partition]); set num_clients = {len(fit)}, or a "
            "split that holds out samples of each group"
        )
    drawn = np.sort(rng.permutation(fit)[:num_clients])
    parts = zip(_find_members(view.group_train, drawn), _find_members(view.group_test, drawn), strict=True)
    return tuple(ClientPartition(train_indices, test_indices) for train_indices, test_indices in parts)


def _find_members(groups: Labels, drawn: Labels) -> list[Labels]:
    """Return the sorted indices of each drawn group."""
    order = np.argsort(groups, kind="stable")
    first, last = (np.searchsorted(groups[order], drawn, side) for side in ("left", "right"))
    return [order[low:high] for low, high in zip(first, last, strict=True)]

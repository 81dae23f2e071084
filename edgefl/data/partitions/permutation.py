"""Clients whose labels are permuted: same pictures, other names.

Source: F. Sattler, K.-R. Mueller, W. Samek, Clustered Federated Learning, arXiv:1910.01991; set up as in
FedMix, section 4.3.
"""

from math import factorial

import numpy as np

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import check_positive, partition_evenly
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.errors import DataError


def permutation(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    permutations: int = 4,
    samples: int = 0,
    test_samples: int = 0,
) -> tuple[ClientPartition, ...]:
    """Give each client IID samples and one of several permutations of the labels.

    The permutation is its true cluster.

    Permutations differ from each other and are used equally often, by which client is drawn. samples,
    test_samples: how many a client, 0 shares out all. No sample goes to two clients.
    """
    check_positive(permutations=permutations)
    if view.num_classes < 13 and permutations > factorial(view.num_classes):
        raise DataError(
            f"{permutations} permutations of {view.num_classes} classes, expected at most "
            f"{factorial(view.num_classes)}"
        )
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < permutations:
        drawn[tuple(rng.permutation(view.num_classes).tolist())] = None
    label_maps = list(drawn)
    truth = rng.permutation(np.arange(num_clients) % permutations).tolist()
    train = partition_evenly(len(view.train), num_clients, samples, rng)
    test = partition_evenly(len(view.test), num_clients, test_samples, rng, "test")
    return tuple(
        ClientPartition(train_indices, test_indices, relabel=label_maps[k], truth=k)
        for train_indices, test_indices, k in zip(train, test, truth, strict=True)
    )

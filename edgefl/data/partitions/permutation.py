"""Clients with permuted labels: the same pictures under other class numbers.

Source: F. Sattler, K.-R. Mueller, W. Samek, Clustered Federated Learning, arXiv:1910.01991, in the set-up of
FedMix, section 4.3.
"""

from math import factorial

import numpy as np

from edgefl.base.errors import DataError
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import check_positive, partition_evenly
from edgefl.data.partitions.client_partition import ClientPartition


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

    The permutation is the true cluster of the client. Permutations differ from each other and are used
    equally often, in random order over the clients. No sample goes to two clients.

    Args:
        samples: training samples per client. 0 divides all samples.
        test_samples: test samples per client. 0 divides all samples.

    Raises:
        DataError: there are not that many permutations, or too few samples.
    """
    check_positive(permutations=permutations)
    if view.num_classes < 13 and permutations > factorial(view.num_classes):
        raise DataError(
            f"permutations is {permutations} with {view.num_classes} classes, expected at most "
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
        ClientPartition(train=train_indices, test=test_indices, relabel=label_maps[k], truth=k)
        for train_indices, test_indices, k in zip(train, test, truth, strict=True)
    )

"""Clients whose labels are permuted: same pictures, other names.

Source: F. Sattler, K.-R. Mueller, W. Samek, Clustered Federated Learning, arXiv:1910.01991; set up as in
FedMix, section 4.3.
"""

from math import factorial

import numpy as np

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import deal_any, positive
from edgefl.data.partitions.client_partition import Allotment
from edgefl.errors import DataError


def permutation(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    permutations: int = 4,
    samples: int = 0,
    test_samples: int = 0,
) -> tuple[Allotment, ...]:
    """Give each client IID samples and one of several permutations of the labels.

    The permutation is its true cluster.

    Permutations differ from each other and are used equally often, by which client is drawn. samples,
    test_samples: how many a client, 0 shares out all. No sample goes to two clients.
    """
    positive(permutations=permutations)
    if view.num_classes < 13 and permutations > factorial(view.num_classes):
        raise DataError(
            f"{permutations} permutations of {view.num_classes} classes, expected at most "
            f"{factorial(view.num_classes)}"
        )
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < permutations:
        drawn[tuple(rng.permutation(view.num_classes).tolist())] = None
    known = list(drawn)
    truth = rng.permutation(np.arange(num_clients) % permutations).tolist()
    train = deal_any(len(view.train), num_clients, samples, rng)
    test = deal_any(len(view.test), num_clients, test_samples, rng, "test")
    return tuple(
        Allotment(own, held, relabel=known[k], truth=k)
        for own, held, k in zip(train, test, truth, strict=True)
    )

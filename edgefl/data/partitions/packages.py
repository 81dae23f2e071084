"""Packages of one class: each client has two packages of different classes.

The paper takes at most 500 pictures of each class of HAM10000, in packages of 35 pictures. A client has two
packages of different classes, split 80 : 20.

Source: Y. Yeganeh et al., Adaptive Personalization in Federated Learning for Highly Non-i.i.d. Data, 2022,
section 4.1.2.
"""

import numpy as np

from edgefl.base.errors import DataError
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import CountArray, check_positive, partition_by_counts
from edgefl.data.partitions.client_partition import ClientPartition


def draw_pairs(packages: CountArray, num_clients: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draw two packages of different classes for each client.

    A class is drawn in proportion to its remaining packages, unless that would leave too many packages of one
    class.

    Args:
        packages: number of packages of each class, shape (num_classes,), int64.

    Returns:
        The two classes of each client.

    Raises:
        DataError: there are not enough packages of different classes.
    """
    left = packages.copy()

    def is_enough(count: int) -> bool:
        return int(np.minimum(left, count).sum()) >= 2 * count

    if not is_enough(num_clients):
        most = next(count for count in range(num_clients, -1, -1) if is_enough(count))
        raise DataError(
            f"packages per class: {packages.tolist()}, enough for {most} clients with two different classes, "
            f"expected {num_clients}; use fewer clients or smaller packages"
        )
    pairs = []
    for remaining in range(num_clients - 1, -1, -1):
        while True:
            first = int(rng.choice(len(left), p=left / left.sum()))
            others = np.where(np.arange(len(left)) == first, 0, left)
            second = int(rng.choice(len(left), p=others / others.sum())) if others.any() else first
            left[[first, second]] -= 1
            if first != second and is_enough(remaining):
                break
            left[[first, second]] += 1
        pairs.append((first, second))
    return pairs


def packages(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    package: int = 35,
    per_class: int = 500,
    test_share: float = 0.2,
    classes: int = 0,
) -> tuple[ClientPartition, ...]:
    """Give each client two packages of different classes.

    With the defaults, a package has 28 samples of the training part and 7 of the test part. A client then has
    56 training samples and 14 test samples. No sample goes to two clients.

    Args:
        package: samples per package, at least 2.
        per_class: maximum number of samples of a class.
        test_share: share of a package that is test samples, between 0 and 1.
        classes: number of classes to use, starting from class 0. 0 uses all classes.

    Raises:
        DataError: an option is out of range, or there are not enough samples.
    """
    check_positive(package=package, per_class=per_class)
    count = classes or view.num_classes
    if not 0 < test_share < 1 or not 2 <= count <= view.num_classes:
        raise DataError(
            f"test_share is {test_share} with {count} classes, expected a share between 0 and 1, and 2 to "
            f"{view.num_classes} classes"
        )
    test_size = min(max(1, round(test_share * package)), package - 1)
    if package < 2:
        raise DataError(
            f"package is {package}, expected at least 2: one sample for training and one for the test"
        )
    sizes = [np.bincount(labels, minlength=view.num_classes)[:count] for labels in (view.train, view.test)]
    fit = np.minimum.reduce(
        [sizes[0] // (package - test_size), sizes[1] // test_size, np.full(count, per_class // package)]
    )
    pairs = draw_pairs(fit, num_clients, rng)
    whole = np.zeros((num_clients, view.num_classes), np.int64)
    for client, pair in enumerate(pairs):
        whole[client, list(pair)] = 1
    parts = zip(
        partition_by_counts(view.train, whole * (package - test_size), rng),
        partition_by_counts(view.test, whole * test_size, rng, "test"),
        strict=True,
    )
    return tuple(
        ClientPartition(train=train_indices, test=test_indices) for train_indices, test_indices in parts
    )

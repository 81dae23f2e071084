"""Clusters of clients that have the same tasks; a task is to know one class.

Source: A. Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered
Federated Learning: 16 clients with classes of CIFAR-100. 2 tasks each of 16 in 8 clusters: all clients of a
cluster share all its tasks.
3 each of 20 in 4 clusters: a cluster has tasks that some of its clients lack. In our reading no class is of
two clusters.
"""

import numpy as np

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import apportion, check_positive, partition_by_counts
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.errors import DataError


def tasks(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    tasks: int = 2,
    num_tasks: int = 8,
    clusters: int = 4,
    samples: int = 200,
    test_samples: int = 50,
    imbalance: float = 3.0,
) -> tuple[ClientPartition, ...]:
    """Divide `num_tasks` classes over the clusters.

    Each client has `tasks` of its cluster's, and its truth is the cluster.

    Within a cluster the least used classes come first, so that each is used. imbalance: a client's most
    frequent class has so many times the training samples of its rarest, in even ratios between them and in an
    order of its own; 1 is balanced. Test samples are balanced, as those of the data sets are: a task counts
    as much as another. No sample goes to two clients.
    """
    check_positive(
        tasks=tasks, num_tasks=num_tasks, clusters=clusters, samples=samples, test_samples=test_samples
    )
    if not 1 <= imbalance < np.inf:
        raise DataError(
            f"imbalance is {imbalance}, expected 1 (balanced) or more: the most frequent class over the "
            "rarest"
        )
    if num_tasks > view.num_classes or num_tasks % clusters or num_tasks // clusters < tasks:
        raise DataError(
            f"{num_tasks} tasks in {clusters} clusters of clients with {tasks}, expected a multiple of "
            f"{clusters} from {tasks * clusters} to {view.num_classes}, the number of classes; set num_tasks"
        )
    if num_clients < clusters:
        raise DataError(
            f"{num_clients} clients in {clusters} clusters, expected at least one each; take more clients"
        )
    pools = np.split(rng.permutation(view.num_classes)[:num_tasks], clusters)
    truth = rng.permutation(np.arange(num_clients) % clusters)
    used = np.zeros(view.num_classes)
    ratios = imbalance ** (-np.arange(tasks) / max(tasks - 1, 1))
    sizes = apportion(samples, ratios)
    sizes_test = apportion(test_samples, np.ones(tasks))
    if min(*sizes, *sizes_test) < 1:
        raise DataError(
            f"imbalance {imbalance} of {samples} training and {test_samples} test samples leaves a class "
            "empty; take more samples"
        )
    train, test = np.zeros((2, num_clients, view.num_classes), np.int64)
    for client, cluster in enumerate(truth):
        pool = pools[cluster]
        indices = rng.permutation(pool[np.lexsort((rng.random(len(pool)), used[pool]))[:tasks]])
        used[indices] += 1
        train[client, indices] = sizes
        test[client, indices] = sizes_test
    parts = zip(
        partition_by_counts(view.train, train, rng),
        partition_by_counts(view.test, test, rng, "test"),
        truth.tolist(),
        strict=True,
    )
    return tuple(
        ClientPartition(indices, test_indices, truth=cluster) for indices, test_indices, cluster in parts
    )

"""Clusters of clients with the same tasks. A task is to recognize one class.

The paper has 16 clients with classes of CIFAR-100. In one set-up, 8 clusters share 16 tasks, and all clients
of a cluster have the same 2 tasks. In the other, 4 clusters share 20 tasks with 3 per client, so a client
lacks some tasks of its cluster. We read the paper so that no class belongs to two clusters. Its
experiments on similarities raise the number of common classes, which is the option `overlap`.

Source: A. Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered
Federated Learning.
"""

import numpy as np

from edgefl.base.errors import DataError
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import apportion, check_positive, partition_by_counts
from edgefl.data.partitions.client_partition import ClientPartition


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
    overlap: int = 0,
) -> tuple[ClientPartition, ...]:
    """Divide `num_tasks` classes among the clusters, and give each client `tasks` classes of its cluster.

    With `overlap`, a cluster also has the first classes of the next cluster. The last cluster has those of
    the first one. The cluster is the true cluster of the client. Within a cluster, the classes with the
    fewest clients are assigned first, so that each class is used. Test samples are balanced over the classes
    of a client, like the test parts of the data sets, so every task has the same weight. No sample goes to
    two clients.

    Args:
        num_clients: number of clients, at least `clusters`.
        tasks: classes per client.
        num_tasks: number of classes of all clusters, a multiple of `clusters`.
        samples: training samples per client.
        test_samples: test samples per client.
        imbalance: ratio of the training samples of a client's most frequent and rarest class, at least 1. The
            classes between form a geometric series, in random order. 1 is balanced.
        overlap: number of classes of the next cluster that a cluster has too.

    Raises:
        DataError: an option is out of range, or a class has too few samples.
    """
    check_positive(
        tasks=tasks, num_tasks=num_tasks, clusters=clusters, samples=samples, test_samples=test_samples
    )
    if not 1 <= imbalance < np.inf:
        raise DataError(
            f"imbalance is {imbalance}, expected 1 (balanced) or more: the most frequent class over the "
            "rarest"
        )
    if not 0 <= overlap <= (num_tasks // clusters if clusters > 1 else 0):
        raise DataError(
            f"overlap is {overlap} with {num_tasks} tasks in {clusters} clusters, expected 0 to "
            f"{num_tasks // clusters if clusters > 1 else 0}, the classes of the next cluster; change overlap"
        )
    least = max(tasks - overlap, 1) * clusters
    if num_tasks > view.num_classes or num_tasks % clusters or num_tasks < least:
        raise DataError(
            f"num_tasks is {num_tasks} with {clusters} clusters and {tasks} tasks per client, expected a "
            f"multiple of {clusters} from {least} to {view.num_classes}, the number of classes; change "
            "num_tasks"
        )
    if num_clients < clusters:
        raise DataError(
            f"{num_clients} clients in {clusters} clusters, expected at least one each; use more clients"
        )
    groups = np.split(rng.permutation(view.num_classes)[:num_tasks], clusters)
    pools = [np.concatenate([groups[k], groups[(k + 1) % clusters][:overlap]]) for k in range(clusters)]
    truth = rng.permutation(np.arange(num_clients) % clusters)
    used = np.zeros((clusters, view.num_classes))
    ratios = imbalance ** (-np.arange(tasks) / max(tasks - 1, 1))
    sizes = apportion(samples, ratios)
    sizes_test = apportion(test_samples, np.ones(tasks))
    if min(*sizes, *sizes_test) < 1:
        raise DataError(
            f"imbalance {imbalance} of {samples} training and {test_samples} test samples leaves a class "
            "empty; use more samples"
        )
    train, test = np.zeros((2, num_clients, view.num_classes), np.int64)
    for client, cluster in enumerate(truth):
        pool = pools[cluster]
        indices = rng.permutation(pool[np.lexsort((rng.random(len(pool)), used[cluster, pool]))[:tasks]])
        used[cluster, indices] += 1
        train[client, indices] = sizes
        test[client, indices] = sizes_test
    parts = zip(
        partition_by_counts(view.train, train, rng),
        partition_by_counts(view.test, test, rng, "test"),
        truth.tolist(),
        strict=True,
    )
    return tuple(
        ClientPartition(train=indices, test=test_indices, truth=cluster)
        for indices, test_indices, cluster in parts
    )

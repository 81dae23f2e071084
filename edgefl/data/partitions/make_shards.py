"""A data set becomes one shard a client."""

from edgefl.data.dataset import Dataset, label_view
from edgefl.data.partitions.client_partition import take
from edgefl.data.partitions.shares import divide_both, shares_of
from edgefl.errors import DataError
from edgefl.rng import rng_for
from edgefl.types import Shard


def make_shards(
    dataset: Dataset,
    *,
    partition: str = "dirichlet",
    num_clients: int,
    alpha: float = 0.5,
    seed: int = 1,
    min_samples: int = 2,
) -> list[Shard]:
    """Share training and test samples out by the same class shares.

    So each client is measured on samples that it never trained on and that are distributed as its own.
    Every client has at least `min_samples` for training and one to be measured on.
    """
    if num_clients < 1:
        raise DataError(f"{num_clients} clients, expected at least one")
    rng = rng_for(seed, 0, "partition")
    shares = shares_of(partition, alpha)(dataset.num_classes, num_clients, rng)
    return [take(dataset, own) for own in divide_both(label_view(dataset), shares, rng, min_samples)]

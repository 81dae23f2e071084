"""Sorted by label, cut into shards, two shards per client: the first federated non-IID set-up.

Source: B. McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS
2017, section 3.
"""

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.types import Labels
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import check_positive
from edgefl.data.partitions.client_partition import ClientPartition


def shards(
    view: LabelView, num_clients: int, rng: np.random.Generator, *, shards_per_client: int = 2
) -> tuple[ClientPartition, ...]:
    """Give each client some shards of the sorted training part and the same shards of the sorted test part.

    All samples are used.

    Raises:
        DataError: `shards_per_client` is not above 0, or there are more shards than samples.
    """
    check_positive(shards_per_client=shards_per_client)
    count = shards_per_client * num_clients
    if count > min(len(view.train), len(view.test)):
        raise DataError(
            f"{count} shards of {len(view.train)} training and {len(view.test)} test samples, expected at "
            "least one sample per shard; use fewer clients or shards"
        )
    drawn = rng.permutation(count).reshape(num_clients, shards_per_client)
    train, test = (_cut_shards(labels, count, rng) for labels in (view.train, view.test))
    return tuple(
        ClientPartition(train=_join_shards(train, numbers), test=_join_shards(test, numbers))
        for numbers in drawn
    )


def _cut_shards(labels: Labels, count: int, rng: np.random.Generator) -> list[Labels]:
    """Return the indices sorted by label, in random order within a label, cut into equal shards."""
    order = rng.permutation(len(labels))
    return np.array_split(order[np.argsort(labels[order], kind="stable")].astype(np.int64), count)


def _join_shards(parts: list[Labels], numbers: Labels) -> Labels:
    return np.sort(np.concatenate([parts[i] for i in numbers]))

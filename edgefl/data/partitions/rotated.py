"""Clients whose pictures are turned: same labels, other features.

Source: M. Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, section 4.2 (each client draws a
distribution over 8 angles); `fixed`, one angle a client, is A. Ghosh et al., An Efficient Framework for
Clustered Federated Learning, arXiv:2006.04088.
"""

import numpy as np

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import check_positive, draw_dirichlet
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.data.partitions.shares import make_iid_shares, partition_by_shares
from edgefl.errors import DataError


def rotation(
    view: LabelView,
    num_clients: int,
    rng: np.random.Generator,
    *,
    angles: int = 8,
    degrees: float = 45.0,
    alpha: float = 1.0,
    fixed: bool = False,
    label_alpha: float = 0.0,
    min_samples: int = 2,
) -> tuple[ClientPartition, ...]:
    """Turn each sample by 0 to `angles` - 1 steps of `degrees`. All samples are used.

    Each client draws its angles' probabilities from Dir(alpha), the same for training and test. fixed: one
    angle a client instead, used equally often; it is the client's true cluster. label_alpha: class shares
    from Dirichlet(label_alpha), 0 is IID.
    """
    check_positive(angles=angles)
    if not np.isfinite(degrees):
        raise DataError(f"degrees is {degrees}, expected the step from one angle to the next such as 45")
    if label_alpha:
        shares = draw_dirichlet(label_alpha, num_clients, view.num_classes, rng, "label_alpha")
    else:
        shares = make_iid_shares(view.num_classes, num_clients, rng)
    parts = partition_by_shares(view, shares, rng, min_samples)
    truth = rng.permutation(np.arange(num_clients) % angles)
    client_partitions = []
    for client_partition, angle in zip(parts, truth.tolist(), strict=True):
        p = np.eye(angles)[angle] if fixed else draw_dirichlet(alpha, angles, 1, rng)[0]
        train, test = (
            rng.choice(angles, len(part), p=p) for part in (client_partition.train, client_partition.test)
        )
        client_partitions.append(
            ClientPartition(
                client_partition.train,
                client_partition.test,
                train,
                test,
                degrees,
                truth=angle if fixed else -1,
            )
        )
    return tuple(client_partitions)

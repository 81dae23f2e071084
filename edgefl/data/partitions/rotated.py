"""Clients with rotated pictures: the same labels, other features.

Each client draws a distribution over several angles. With `fixed`, each client has one angle.

Source: M. Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, section 4.2 (8 angles), and A.
Ghosh et al., An Efficient Framework for Clustered Federated Learning, arXiv:2006.04088 (`fixed`).
"""

import numpy as np

from edgefl.base.errors import DataError
from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import check_positive, draw_dirichlet
from edgefl.data.partitions.client_mixes import partition_by_mixes
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.data.partitions.shares import make_iid_shares, partition_by_shares


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
    equal_sizes: bool = False,
    min_samples: int = 2,
) -> tuple[ClientPartition, ...]:
    """Rotate each sample by 0 to `angles` - 1 steps of `degrees`. All samples are used.

    Each client draws the probabilities of its angles from Dir(alpha). They apply to training and test
    samples.

    Args:
        degrees: step between two angles in degrees, counter-clockwise.
        alpha: Dirichlet concentration over angles.
        fixed: use one angle per client instead. Angles are used equally often, and the angle is the true
            cluster of the client.
        label_alpha: Dirichlet concentration of the class shares over clients. 0 is IID.
        equal_sizes: with `label_alpha`, draw the class mix of each client instead, as in `client-dirichlet`.
            Each client then has the same number of samples, and `min_samples` has no effect.
        min_samples: minimum number of training samples of a client.

    Raises:
        DataError: an option is out of range, or there are too few samples.
    """
    check_positive(angles=angles)
    if not np.isfinite(degrees):
        raise DataError(f"degrees is {degrees}, expected the step from one angle to the next such as 45")
    if equal_sizes and not label_alpha:
        raise DataError("equal_sizes is true without label_alpha, expected both; set label_alpha, such as 1")
    if equal_sizes:
        mixes = draw_dirichlet(label_alpha, view.num_classes, num_clients, rng, "label_alpha")
        parts = partition_by_mixes(view, mixes, 0, 0, rng)
    else:
        shares = (
            draw_dirichlet(label_alpha, num_clients, view.num_classes, rng, "label_alpha")
            if label_alpha
            else make_iid_shares(view.num_classes, num_clients, rng)
        )
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
                train=client_partition.train,
                test=client_partition.test,
                turns_train=train,
                turns_test=test,
                turn_degrees=degrees,
                truth=angle if fixed else -1,
            )
        )
    return tuple(client_partitions)

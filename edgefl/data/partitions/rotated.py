"""Clients whose pictures are turned: same labels, other features.

Source: M. Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, section 4.2 (each client draws a
distribution over 8 angles); `fixed`, one angle a client, is A. Ghosh et al., An Efficient Framework for
Clustered Federated Learning, arXiv:2006.04088.
"""

import numpy as np

from edgefl.data.dataset import LabelView
from edgefl.data.partitions.by_class import dirichlet_rows, positive
from edgefl.data.partitions.client_partition import Allotment
from edgefl.data.partitions.shares import divide_both, iid_shares
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
) -> tuple[Allotment, ...]:
    """Turn each sample by 0 to `angles` - 1 steps of `degrees`. All samples are used.

    Each client draws its angles' probabilities from Dir(alpha), the same for training and test. fixed: one
    angle a client instead, used equally often; it is the client's true cluster. label_alpha: class shares
    from Dirichlet(label_alpha), 0 is IID.
    """
    positive(angles=angles)
    if not np.isfinite(degrees):
        raise DataError(f"degrees is {degrees}, expected the step from one angle to the next such as 45")
    if label_alpha:
        shares = dirichlet_rows(label_alpha, num_clients, view.num_classes, rng, "label_alpha")
    else:
        shares = iid_shares(view.num_classes, num_clients, rng)
    parts = divide_both(view, shares, rng, min_samples)
    truth = rng.permutation(np.arange(num_clients) % angles)
    turned = []
    for own, angle in zip(parts, truth.tolist(), strict=True):
        p = np.eye(angles)[angle] if fixed else dirichlet_rows(alpha, angles, 1, rng)[0]
        train, test = (rng.choice(angles, len(part), p=p) for part in (own.train, own.test))
        turned.append(Allotment(own.train, own.test, train, test, degrees, truth=angle if fixed else -1))
    return tuple(turned)

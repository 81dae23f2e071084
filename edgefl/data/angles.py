"""Clients whose pictures are turned: same labels, other features.

Source: M. Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, section 4.2 (each client draws a distribution over 8 angles);
`fixed`, one angle a client, is A. Ghosh et al., An Efficient Framework for Clustered Federated Learning, arXiv:2006.04088.
"""

import numpy as np

from edgefl.data.allotment import Allotment
from edgefl.data.dataset import LabelView
from edgefl.data.deal import positive
from edgefl.data.partitions import dirichlet_shares, divide_both, iid_shares


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

    Each client draws its angles' probabilities from Dir(alpha), the same for training and test. fixed: one angle a client instead, used
    equally often; it is the client's true cluster. label_alpha: class shares from Dirichlet(label_alpha), 0 is IID.
    """
    positive(angles=angles, alpha=alpha)
    shares = dirichlet_shares(view.num_classes, num_clients, rng, alpha=label_alpha) if label_alpha else None
    parts = divide_both(view, iid_shares(view.num_classes, num_clients, rng) if shares is None else shares, rng, min_samples)
    truth = rng.permutation(np.arange(num_clients) % angles)
    turned = []
    for own, angle in zip(parts, truth.tolist(), strict=True):
        p = np.eye(angles)[angle] if fixed else rng.dirichlet(np.full(angles, alpha))
        train, test = (rng.choice(angles, len(part), p=p) for part in (own.train, own.test))
        turned.append(Allotment(own.train, own.test, train, test, degrees, truth=angle if fixed else -1))
    return tuple(turned)

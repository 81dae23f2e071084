"""IFCA: each client chooses among several models, and the clusters are the clients with the same choice.

A client chooses the model with the lowest loss over its training data, j = argmin_j sum_i l(x_i, y_i, w_j).
It trains E epochs of SGD from w_j. The server sets w_j <- sum_k n_k / n_j w_k over the clients that chose j.
A model that no client chose does not change. After the rounds, a client uses the model with the lowest loss
on its validation samples, which it has never trained on.

Communication cost: down J models, up one delta, a count and the choice.

Source: Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020. Model averaging,
one cohort for all models, and the validation samples: Isaksson et al., Adaptive Expert Models for
Personalization in Federated Learning, 2022, equations 2 and 3 and section 3.1.
"""

from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.model_choice import (
    ModelChoiceOptions,
    make_model_choice,
    resolve_model_choice,
)
from edgefl.learning.algorithms.papers.fedavg import build_fedavg_objectives

ENTRIES = {
    "ifca": Entry(
        options=ModelChoiceOptions,
        factory=make_model_choice,
        objectives=build_fedavg_objectives,
        source="Ghosh et al., NeurIPS 2020, as compared with by Isaksson et al., 2022",
        models="num_experts",
        resolve=resolve_model_choice,
    )
}

"""What the server wraps around an algorithm: local models, late updates, checks, masked sums and noise."""

from collections.abc import Callable, Sequence

from edgefl.algorithms.base import Algorithm
from edgefl.config import FederationConfig
from edgefl.plan.spec import PlanSpec
from edgefl.privacy.mechanism import with_privacy
from edgefl.security.secagg.masked_aggregation import with_secure_aggregation
from edgefl.server.baseline import with_baseline
from edgefl.server.comparison import with_comparison
from edgefl.server.plausibility import with_plausibility_check
from edgefl.server.staleness import with_late_scaling
from edgefl.types import ServerState


def build_server_algorithm(
    algorithm: Algorithm,
    config: FederationConfig,
    spec: PlanSpec,
    *,
    key: bytes,
    draw_cohort: Callable[[ServerState], Sequence[str]] | None = None,
) -> Algorithm:
    """Return the algorithm as a federation of this configuration aggregates with it.

    `with_baseline` adds to the last broadcast what a client needs for its local model, and `with_comparison`
    has clients compare their models in the last round. All other layers change `aggregate` only.
    An update passes the layers from first to last:

    1. `edgefl.client.compression` on the client: the update is rounded as the codec rounds it.
    2. `late_scaled`: an update that answers an earlier round becomes a smaller one of this round. Later
       layers see one round only.
    3. `guarded`: checks the number of samples and measures the norm of the update. Afterwards it checks the
       state that the layers below it make, so it is outside of them.
    4. `summed`: the updates become one masked sum. It hides the updates from everything below it.
    5. `private`: clips each update and adds noise to the sum. It is next to the algorithm because what the
       algorithm does with a noisy sum costs no privacy.
    6. the algorithm's own `aggregate`: means, robust means, server optimizer.

    A layer that the configuration does not ask for is left out. Masks and noise exclude each other.

    Args:
        algorithm: the algorithm, without a learner.
        config: the federation.
        spec: the plan's specification, from which `private` reads what is trained.
        key: 32 bytes from which noise is drawn; not read without `[privacy]`.
        cohort_of: returns the cohort of a server state's round. The simulator passes it, and layer 4 plays
            the masking of all clients. Over MQTT the devices mask: the aggregator passes None, and gets the
            means of a round as one update.

    Raises:
        ConfigError: the algorithm cannot be masked or made private.
    """
    algorithm = with_privacy(algorithm, config, spec, key)
    if draw_cohort is not None:
        algorithm = with_secure_aggregation(algorithm, config, draw_cohort)
    stacked = with_baseline(with_late_scaling(with_plausibility_check(algorithm, config)), config, spec)
    return with_comparison(stacked, config, spec)

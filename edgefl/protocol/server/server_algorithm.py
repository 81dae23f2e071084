"""The layers that the server adds to an algorithm: local models, late updates, checks, masked sums and
noise.
"""

from collections.abc import Callable, Sequence

from edgefl.base.config import FederationConfig
from edgefl.base.types import ServerState
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.privacy.mechanism import with_privacy
from edgefl.program.plan.spec import PlanSpec
from edgefl.protocol.security.secagg.masked_aggregation import with_secure_aggregation
from edgefl.protocol.server.baseline import with_baseline
from edgefl.protocol.server.comparison import with_comparison
from edgefl.protocol.server.convergence import with_convergence_check
from edgefl.protocol.server.plausibility import with_plausibility_check
from edgefl.protocol.server.staleness import with_late_scaling


def build_server_algorithm(
    algorithm: Algorithm,
    config: FederationConfig,
    spec: PlanSpec,
    *,
    key: bytes,
    draw_cohort: Callable[[ServerState], Sequence[str]] | None = None,
) -> Algorithm:
    """Return the algorithm with all layers that a federation of this configuration needs.

    `with_comparison` has clients compare their models in the last round. `with_baseline` adds the start of a
    local model to the last broadcast. All other layers change `aggregate` only. An update passes these layers
    from first to last:

    1. `edgefl.learning.client.compression` on the client rounds the update as the codec does.
    2. `with_late_scaling` turns an update that answers an earlier round into a smaller update of this round.
       Later layers see one round only.
    3. `with_convergence_check` reads the accuracy of the update, and ends the rounds when it no longer rises.
    4. `with_plausibility_check` checks the number of samples and measures the norm of the update. It is
       outside of the layers below, because it also checks the state that they make.
    5. `with_secure_aggregation` turns the updates into one masked sum. Everything below sees only the sum.
    6. `with_privacy` clips each update and adds noise to the sum. It is next to the algorithm, because
       processing a noisy sum costs no privacy.
    7. The algorithm's own `aggregate` computes means or robust means and applies the server optimizer.

    Layers that the configuration does not ask for are left out. Masks and noise exclude each other.

    Args:
        algorithm: the algorithm, without a learner.
        spec: the plan's specification, which names the trained weights.
        key: 32 bytes from which noise is drawn. Not read without `[privacy]`.
        draw_cohort: returns the cohort of a server state's round. The simulator passes it, and layer 5 plays
            the masking of all clients. Over MQTT the devices mask. The aggregator passes None and gets the
            means of a round as one update.

    Raises:
        ConfigError: the algorithm cannot be masked or made private.
    """
    algorithm = with_privacy(algorithm, config, spec, key)
    if draw_cohort is not None:
        algorithm = with_secure_aggregation(algorithm, config, draw_cohort)
    checked = with_convergence_check(with_plausibility_check(algorithm, config), config)
    stacked = with_baseline(with_late_scaling(checked), config, spec)
    return with_comparison(stacked, config, spec)

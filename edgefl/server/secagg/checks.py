"""What a server needs of masked rounds before one is played. It loads no cryptography."""

from edgefl.algorithms.base import Algorithm
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError, RoundError
from edgefl.security.secagg.masked_aggregation import check_secure_aggregation
from edgefl.security.secagg.masking import MIN_MASKED_CLIENTS

SUM_CLIENT_ID = ""
"""The client id of the update that holds the means of a round."""


class UnsettledError(RoundError):
    """A masked round failed before it was settled whose words its sum holds, so another cohort may play
    it.
    """


def check_secagg_config(algorithm: Algorithm, config: FederationConfig) -> None:
    """Check that the configuration allows secure aggregation if it asks for it.

    Raises:
        ConfigError: the algorithm or the number of clients rules it out, see `check_secure_aggregation`.
    """
    check_secure_aggregation(algorithm, config)
    if config.privacy.secure_aggregation and config.min_clients < MIN_MASKED_CLIENTS:
        raise ConfigError(
            f"min_clients is {config.min_clients}, expected {MIN_MASKED_CLIENTS} or more for "
            f"secure_aggregation"
        )

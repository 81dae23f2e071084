"""Checks the configuration of masked rounds. This module does not import cryptography."""

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError, RoundError
from edgefl.learning.algorithms.base import Algorithm
from edgefl.protocol.security.secagg.masked_aggregation import check_secure_aggregation
from edgefl.protocol.security.secagg.masking import MIN_MASKED_CLIENTS

SUM_CLIENT_ID = ""
"""The client id of the update that holds the means of a round."""


class UnsettledError(RoundError):
    """A masked round that failed before the set of vectors in its sum was settled.

    Another cohort may therefore play the round.
    """


def check_secagg_config(algorithm: Algorithm, config: FederationConfig) -> None:
    """Check that an aggregator can play masked rounds with this configuration, if it asks for them.

    Raises:
        ConfigError: `min_clients` is less than three, or `check_secure_aggregation` finds a problem.
    """
    check_secure_aggregation(algorithm, config)
    if config.privacy.secure_aggregation and config.min_clients < MIN_MASKED_CLIENTS:
        raise ConfigError(
            f"min_clients is {config.min_clients}, expected {MIN_MASKED_CLIENTS} or more for "
            "secure_aggregation; raise min_clients"
        )

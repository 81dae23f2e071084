"""Aggregates the updates of a round so that no single update can end a federation.

An update is checked when it arrives: its models, tensors and figures. An update that cannot be aggregated in
spite of these checks is found here. An update that an earlier version of edgefl accepted may be one. Its
client is named, and is left out of this round and all later rounds.
"""

import logging
from collections.abc import Callable, Iterator, Sequence

from edgefl.base.errors import StateError
from edgefl.base.types import ServerState, Update
from edgefl.learning.algorithms.base import Algorithm
from edgefl.protocol.server.plausibility import mark_left_out

LOGGER = logging.getLogger(__name__)

ReadUpdates = Callable[[Sequence[str]], Iterator[Update]]
"""Yields the updates of some clients, sorted by client id."""


def aggregate_usable(
    algorithm: Algorithm, state: ServerState, client_ids: Sequence[str], read_updates: ReadUpdates
) -> ServerState:
    """Return the state after a round, without the updates that cannot be aggregated.

    If the aggregation fails, each client's updates are aggregated alone. The clients for which this fails are
    left out. If the updates of the other clients fail together, the clients without which they do not fail
    are left out too. If there is no such client, the round ends without any update.

    Args:
        algorithm: the algorithm with all layers, see `build_server_algorithm`.
        state: the server state before the round.
        client_ids: the clients of the round's updates.
        read_updates: reads the updates of these clients. It is called again if the aggregation fails.

    Raises:
        StateError: the updates cannot be read.
    """
    usable = sorted(set(client_ids))
    errors: dict[str, Exception] = {}

    def aggregate(chosen: Sequence[str]) -> ServerState | Exception:
        try:
            return algorithm.aggregate(state, read_updates(chosen))
        except StateError:  # The disk fails, and no update
            raise
        except Exception as error:
            LOGGER.debug("an update cannot be aggregated", exc_info=True)
            return error

    after = aggregate(usable)
    if isinstance(after, Exception):
        for client_id in usable:
            if isinstance(alone := aggregate([client_id]), Exception):
                errors[client_id] = alone
        usable = [client_id for client_id in usable if client_id not in errors]
        after = aggregate(usable)
    if isinstance(after, Exception):
        for client_id in usable:
            without = aggregate([other for other in usable if other != client_id])
            if not isinstance(without, Exception):
                errors[client_id] = after
                after = without
                break
    for client_id, error in sorted(errors.items()):
        LOGGER.warning(
            f"round {state.round}: the update of {client_id} cannot be aggregated "
            f"({type(error).__name__}: {str(error)[:200]}). {client_id} is left out from now on; look at its "
            "log, update it or revoke it",
            extra={"round": state.round, "client_id": client_id},
        )
    if isinstance(after, Exception):
        LOGGER.warning(
            f"round {state.round}: its updates cannot be aggregated ({type(after).__name__}: "
            f"{str(after)[:200]}), and no single client is the reason. The round ends without them; look at "
            "the devices' logs",
            extra={"round": state.round},
        )
        after = algorithm.aggregate(state, ())
    return mark_left_out(after, errors, state.round)

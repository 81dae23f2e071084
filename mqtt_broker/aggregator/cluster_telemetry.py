"""What the aggregator tells monitors of clusters: which each client is with, and how alike clients' weights
are.
"""

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from edgefl.algorithms import full_options
from edgefl.algorithms.base import assignments
from edgefl.algorithms.clustering.clusters import LINKAGE, MATRIX, compared_clients, compared_in
from edgefl.algorithms.clustering.similarity import compared as names_compared
from edgefl.algorithms.names import INITIAL, layer_of
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.plan.spec import PlanSpec
from edgefl.transport.link import Link
from edgefl.types import ServerState, Update
from edgefl.wire.messages import Clusters
from edgefl.wire.strict_json import MAX_ITEMS, MAX_JSON_BYTES, encode_json
from edgefl.wire.topics import Topics
from mqtt_broker.aggregator.run_log import keep_clusters

SHARE = re.compile(r"q/(\d{1,4})")
EXPERT = re.compile(r"expert(\d{1,4})")


def expert_of(update: Update) -> int | None:
    """Return an update's expert: the one that it says to be likeliest (FedMix), or the only one that it
    trained (IFCA, AEM).
    """
    shares = {
        int(found[1]): value
        for key, value in update.metrics.items()
        if (found := SHARE.fullmatch(key)) and math.isfinite(value)
    }
    if shares:
        return max(sorted(shares), key=lambda k: shares[k])
    trained = [int(found[1]) for name in update.deltas if (found := EXPERT.fullmatch(name))]
    return trained[0] if len(trained) == 1 else None


class ToldClusters:
    """Remembers where each client was last.

    Tells nothing where updates are masked or noise is added: it is then nobody's business.
    """

    def __init__(self, config: FederationConfig, spec: PlanSpec, out: Path | None = None) -> None:
        self._is_told = not (config.privacy.secure_aggregation or config.privacy.is_on)
        self._spec = spec
        self._out = out
        self._chunk_bytes = config.chunk_bytes
        self._seen: dict[str, int] = {}

    def noting(self, updates: Iterable[Update]) -> Iterator[Update]:
        """Pass updates on, one at a time, and note their experts."""
        for update in updates:
            if self._is_told and (index := expert_of(update)) is not None:
                self._seen[update.client_id] = index
            yield update

    def tell(self, link: Link, topics: Topics, session: str, round: int, after: ServerState) -> None:
        """Publish the message, retained, where there is one.

        What a clustering round compared is kept for a report too.
        """
        if self._is_told and self._out is not None:
            keep_clusters(self._spec, after, self._out)
        if (told := self.message(session, round, after)) is not None:
            payload = encode_json(told)
            # A broker that passes small messages only
            if len(payload) > max(MAX_JSON_BYTES, self._chunk_bytes):
                payload = encode_json(_without_comparison(told))
            link.publish(topics.clusters, payload, retain=True)

    def message(self, session: str, round: int, after: ServerState) -> Clusters | None:
        """Return what is told after a round; None where there are no clusters, or more than 1,024 clients."""
        placed: Mapping[str, int] = (assignments(after) or self._seen) if self._is_told else {}
        if not placed or len(placed) > MAX_ITEMS:
            return None
        assignment = dict(sorted(placed.items()))
        found = compared_in(after)
        clients = tuple(compared_clients(after))
        if found is None or len(found[1][MATRIX]) != len(clients):
            return _assignment_only(session, round, assignment)
        compared, kept, cut = found
        matrix = tuple(tuple(_digits(value) for value in row) for row in kept[MATRIX].tolist())
        linkage = tuple(
            (int(a), int(b), _digits(height, 6), int(size)) for a, b, height, size in kept[LINKAGE].tolist()
        )
        return Clusters(
            session,
            round,
            assignment,
            self._layers(after),
            clients,
            matrix,
            linkage,
            cut,
            time.time(),
            compared,
        )

    def _layers(self, after: ServerState) -> str:
        layers = full_options(self._spec.algorithm, self._spec.options).get("layers")
        if layers is None:  # FedAP compares all of a client's delta
            return "all"
        try:
            return ", ".join(
                dict.fromkeys(layer_of(name) for name in names_compared(after.models[INITIAL], layers))
            )
        except ConfigError:
            return ""


def _assignment_only(session: str, round: int, assignment: Mapping[str, int]) -> Clusters:
    return Clusters(session, round, assignment, "", (), (), (), math.nan, time.time())


def _without_comparison(told: Clusters) -> Clusters:
    return _assignment_only(told.session, told.round, told.assignment)


def _digits(value: float, count: int = 3) -> float:
    return round(value, count)

"""Cluster telemetry: the cluster message with each client's cluster and the similarity of the clients."""

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.types import ServerState, Update
from edgefl.learning.algorithms import complete_algorithm_options
from edgefl.learning.algorithms.base import read_assignments
from edgefl.learning.algorithms.clustering.cluster_models import (
    LastCut,
    list_compared_clients,
)
from edgefl.learning.algorithms.clustering.similarity import select_compared_weights as names_compared
from edgefl.learning.algorithms.names import INITIAL, extract_layer
from edgefl.program.plan.spec import PlanSpec
from edgefl.protocol.transport.link import Link
from edgefl.protocol.wire.messages import Clusters
from edgefl.protocol.wire.strict_json import MAX_ITEMS, MAX_JSON_BYTES, encode_json
from edgefl.protocol.wire.topics import FederationTopics
from mqtt_broker.aggregator.run_log import write_clusters

SHARE_PATTERN = re.compile(r"q/(\d{1,4})")
EXPERT_PATTERN = re.compile(r"expert(\d{1,4})")


def find_expert(update: Update) -> int | None:
    """Return the index of an update's expert, or None without a single expert.

    For FedMix it is the expert with the largest share in the update's metrics. For IFCA and AEM it is the
    only expert that the client trained.
    """
    shares = {
        int(match[1]): value
        for key, value in update.metrics.items()
        if (match := SHARE_PATTERN.fullmatch(key)) and math.isfinite(value)
    }
    if shares:
        return max(sorted(shares), key=lambda k: shares[k])
    trained = [int(match[1]) for name in update.deltas if (match := EXPERT_PATTERN.fullmatch(name))]
    return trained[0] if len(trained) == 1 else None


class ClusterTelemetry:
    """Makes cluster messages from the last expert of each client or the server's assignment.

    With secure aggregation or differential privacy it publishes and writes nothing, because the clusters
    would reveal information about single clients.

    Args:
        out: directory of the aggregator, for the report's similarity of clients. None writes no file.
    """

    def __init__(self, config: FederationConfig, spec: PlanSpec, out: Path | None = None) -> None:
        self._is_public = not (config.privacy.secure_aggregation or config.privacy.is_on)
        self._spec = spec
        self._out = out
        self._chunk_bytes = config.chunk_bytes
        self._experts: dict[str, int] = {}

    def record_experts(self, updates: Iterable[Update]) -> Iterator[Update]:
        """Yield the updates unchanged, one at a time, and record their experts."""
        for update in updates:
            if self._is_public and (index := find_expert(update)) is not None:
                self._experts[update.client_id] = index
            yield update

    def publish(
        self, link: Link, topics: FederationTopics, session: str, round: int, after: ServerState
    ) -> None:
        """Publish the retained cluster message of a round, if the algorithm has clusters.

        The similarity of a clustering round is also written to the aggregator's directory. The message omits
        it if the message would exceed both 64 KiB and the configured chunk size.

        Args:
            session: session of the aggregator.
            after: server state after the round.

        Raises:
            StateError: the similarity cannot be written.
        """
        if self._is_public and self._out is not None:
            write_clusters(self._spec, after, self._out)
        if (clusters := self.make_message(session, round, after)) is not None:
            payload = encode_json(clusters)
            # The broker may accept small messages only
            if len(payload) > max(MAX_JSON_BYTES, self._chunk_bytes):
                payload = encode_json(_drop_comparison(clusters))
            link.publish(topics.clusters, payload, retain=True)

    def make_message(self, session: str, round: int, after: ServerState) -> Clusters | None:
        """Return the cluster message of a round, or None without clusters or with more than 1,024 clients.

        Args:
            session: id of the session.
            after: server state after the round.
        """
        assigned: Mapping[str, int] = (read_assignments(after) or self._experts) if self._is_public else {}
        if not assigned or len(assigned) > MAX_ITEMS:
            return None
        assignment = dict(sorted(assigned.items()))
        cut = after.read_record(LastCut)
        clients = tuple(list_compared_clients(after))
        if cut.similarity is None or cut.merges is None or len(cut.similarity) != len(clients):
            return _make_assignment_message(session, round, assignment)
        matrix = tuple(tuple(_round_value(value) for value in row) for row in cut.similarity.tolist())
        linkage = tuple(
            (int(a), int(b), _round_value(height, 6), int(size)) for a, b, height, size in cut.merges.tolist()
        )
        return Clusters(
            session=session,
            round=round,
            assignment=assignment,
            layer=self._describe_layers(after),
            clients=clients,
            matrix=matrix,
            linkage=linkage,
            cut=cut.height,
            ts=time.time(),
            compared=cut.round,
        )

    def _describe_layers(self, after: ServerState) -> str:
        layers = complete_algorithm_options(self._spec.algorithm, self._spec.options).get("layers")
        if layers is None:  # FedAP compares the whole delta of a client
            return "all"
        try:
            return ", ".join(
                dict.fromkeys(extract_layer(name) for name in names_compared(after.models[INITIAL], layers))
            )
        except ConfigError:
            return ""


def _make_assignment_message(session: str, round: int, assignment: Mapping[str, int]) -> Clusters:
    return Clusters(
        session=session,
        round=round,
        assignment=assignment,
        layer="",
        clients=(),
        matrix=(),
        linkage=(),
        cut=math.nan,
        ts=time.time(),
    )


def _drop_comparison(clusters: Clusters) -> Clusters:
    return _make_assignment_message(clusters.session, clusters.round, clusters.assignment)


def _round_value(value: float, count: int = 3) -> float:
    return round(value, count)

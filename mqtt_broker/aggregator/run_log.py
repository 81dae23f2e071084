"""The aggregator's files for `edgefl report`: one line per round, the similarity of clients, and the run
note.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from edgefl.base.config import FederationConfig
from edgefl.base.storage.aggregator_directory import AGGREGATOR_SPACE_REMEDY, AggregatorFiles
from edgefl.base.system.files import SECRET_MODE, open_no_link, to_json_value, write_errors, write_state
from edgefl.base.system.host import describe_machine, read_versions
from edgefl.base.types import ServerState
from edgefl.learning.algorithms import complete_algorithm_options
from edgefl.learning.algorithms.clustering.cluster_report import make_cluster_report
from edgefl.program.plan.spec import PlanSpec
from edgefl.protocol.wire.messages import Begin, Summary


def append_round(summary: Summary, begins: Sequence[Begin], out: Path) -> None:
    """Append a round to rounds.jsonl in the simulator's format.

    A round that is repeated after a restart has two lines.

    Args:
        begins: announcements of the accepted updates.
        out: directory of the aggregator.

    Raises:
        StateError: the file cannot be written.
    """
    fields = {name: value for name, value in asdict(summary).items() if name not in ("updates", "ts")}
    path = AggregatorFiles(out).rounds
    with write_errors(path, AGGREGATOR_SPACE_REMEDY), open(path, "a", opener=open_no_link) as file:
        file.write(json.dumps(to_json_value(fields), allow_nan=False)[:-1] + ', "updates": {')
        for i, b in enumerate(begins):  # One at a time, because a round may have many updates
            figures = json.dumps(
                to_json_value({**b.metrics, "num_samples": float(b.num_samples)}), allow_nan=False
            )
            file.write(f"{', ' * (i > 0)}{json.dumps(b.client_id)}: {figures}")
        file.write("}}\n")


def write_run_note(config: FederationConfig, out: Path) -> None:
    """Write the configuration, versions and machine of a federation.

    The note omits the broker's URL, which may contain a password. It also omits the command line.

    Args:
        out: directory of the aggregator.

    Raises:
        StateError: the file cannot be written.
    """
    settings = {
        name: value
        for name, value in asdict(config).items()
        if name not in ("broker", "data", "partition", "fleet")
    }
    note = (
        json.dumps({"config": settings, "versions": read_versions(), "machine": describe_machine()}, indent=1)
        + "\n"
    )
    write_state(AggregatorFiles(out).note, note.encode(), SECRET_MODE, AGGREGATOR_SPACE_REMEDY)


def write_clusters(spec: PlanSpec, after: ServerState, out: Path) -> None:
    """Write the similarity of the clients that a round clustered.

    Nothing is written if the algorithm compares no clients, or if there are too many clients.

    Args:
        after: server state after the round.
        out: directory of the aggregator.

    Raises:
        StateError: the file cannot be written.
    """
    similarity = make_cluster_report(complete_algorithm_options(spec.algorithm, spec.options), after)
    if similarity is not None:
        text = json.dumps(to_json_value(similarity), allow_nan=False) + "\n"
        write_state(AggregatorFiles(out).clusters, text.encode(), SECRET_MODE, AGGREGATOR_SPACE_REMEDY)

"""The aggregator's summary of each round, its saved server state, and the result of the federation."""

import io
import json
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import StateError
from edgefl.base.storage.aggregator_directory import AGGREGATOR_SPACE_REMEDY, AggregatorFiles
from edgefl.base.system import format as text_format
from edgefl.base.system.files import SECRET_MODE, parse_json, write_state
from edgefl.base.types import ServerState
from edgefl.base.verdict import FederationVerdict, as_dict, judge_federation, name_measure, read_round_metric
from edgefl.learning.algorithms import PHASE_PERSONALIZE
from edgefl.learning.checkpoint import decode_server_state, encode_server_state
from edgefl.learning.privacy import accountant
from edgefl.program.plan.spec import PlanSpec, read_num_classes
from edgefl.protocol.server.events import DroppedClient
from edgefl.protocol.server.rounds import Round
from edgefl.protocol.server.spread import measure_loss, measure_spreads, summarize_accuracy
from edgefl.protocol.transport.link import Link
from edgefl.protocol.wire.messages import Begin, Summary
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics
from edgefl.protocol.wire.verdict_message import make_verdict_message
from edgefl.simulation.runs.round_records import read_round_accuracies

LOGGER = logging.getLogger("edgefl.aggregator")


def summarize_round(
    closed: Round,
    phase: str,
    begins: Sequence[Begin],
    dropped: Sequence[DroppedClient],
    bytes_up: int,
    bytes_down: int,
    seconds: float,
) -> Summary:
    """Return the summary of a round.

    Args:
        begins: announcements of the accepted updates.
        dropped: clients of the cohort that the round closed without.
        bytes_up: payload bytes that devices sent in the round.
        bytes_down: payload bytes that the aggregator sent in the round.
        seconds: duration of the round in seconds.
    """
    figures = [begin.metrics for begin in begins]
    accuracy = summarize_accuracy(figures)
    return Summary(
        round=closed.number,
        phase=phase,
        updates=len(begins),
        loss=measure_loss(figures),
        accuracy_mean=accuracy.mean,
        accuracy_p10=accuracy.p10,
        accuracy_p90=accuracy.p90,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        seconds=seconds,
        dropped=tuple(client.client_id for client in dropped)[: Summary.MAX_DROPPED],
        ts=time.time(),
        metrics=measure_spreads(figures),
    )


def describe_round(summary: Summary, closed: Round, phase: str, num_rounds: int) -> str:
    """Return the log line of a closed round.

    Args:
        num_rounds: number of rounds in the configuration.
    """
    lost = f", without {', '.join(summary.dropped)}" if summary.dropped else ""
    figures = []
    if phase != PHASE_PERSONALIZE:
        figures.append(f"loss {summary.loss:.4f}" if math.isfinite(summary.loss) else "no loss reported")
    if math.isfinite(summary.accuracy_mean):
        spread = summary.accuracy_mean, summary.accuracy_p10, summary.accuracy_p90
        measure = name_measure(read_round_metric({"metrics": summary.metrics}))
        figures.append(text_format.format_spread(measure, *spread))
    measured = ", ".join(figures or ["no accuracy reported"])
    # An algorithm may have additional phases after the federation's rounds
    which = (
        f"round {closed.number}/{num_rounds} {phase}"
        if phase != PHASE_PERSONALIZE and closed.number <= num_rounds
        else phase
    )
    late = f", {len(closed.late)} of them late" if closed.late else ""
    return f"{which}: {summary.updates} updates{late}, {measured}, {summary.seconds:.2f} s{lost}"


def make_client_rows(begins: Iterable[Begin]) -> list[dict[str, Any]]:
    """Return one row per client with its id and the metrics of its mixture.

    A value that is not finite becomes None.
    """
    return [
        {**{k: v if math.isfinite(v) else None for k, v in sorted(b.metrics.items())}, "id": b.client_id}
        for b in begins
    ]


def judge_clients(
    spec: PlanSpec, clients: Sequence[Mapping[str, Any]], rounds: int, out: Path
) -> FederationVerdict:
    """Return the verdict on a federation from the rows of its clients.

    Args:
        clients: rows of `make_client_rows`.
        rounds: number of rounds in the configuration.
        out: directory of the aggregator, whose rounds.jsonl has the accuracies of the rounds.
    """
    # Without personalization settings in the plan, a device ships its mixture
    select = bool(spec.personalization.get("select", False))
    num_classes = read_num_classes(spec) or 0
    try:
        accuracies = read_round_accuracies(AggregatorFiles(out).rounds)
    except StateError as error:
        LOGGER.warning(f"nothing shows whether the accuracy still rose: {error}")
        accuracies = ()
    return judge_federation(
        clients,
        algorithm=spec.algorithm,
        num_classes=num_classes,
        select=select,
        rounds=rounds,
        accuracies=accuracies,
    )


def publish_verdict(
    link: Link, topics: FederationTopics, session: str, config: FederationConfig, verdict: FederationVerdict
) -> None:
    """Publish the verdict as a retained message, for monitors that start later.

    The verdict has no noise. It is therefore not published with differential privacy. With secure
    aggregation it contains no values of single devices.

    Args:
        session: session of the federation.
    """
    if config.privacy.is_on:
        return
    with_rows = not config.privacy.secure_aggregation
    message = make_verdict_message(verdict, session, time.time(), with_rows=with_rows)
    link.publish(topics.verdict, encode_json(message), retain=True)


def make_result(
    config: FederationConfig,
    plan: str,
    session: str,
    clients: list[dict[str, Any]],
    dropped: Sequence[DroppedClient],
    left_out: Mapping[str, int],
    losses: Sequence[float | None],
    seconds: float,
    verdict: FederationVerdict,
    measured: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of `result.json`.

    Args:
        plan: id of the plan.
        session: session of the federation.
        clients: rows of `make_client_rows`.
        dropped: dropped clients of all rounds.
        left_out: the round in which each client was left out because of its update, by client id.
        losses: median training loss of each round. None for a round without a loss.
        seconds: duration of the federation in seconds.
        measured: what was measured before round 1, see
            `edgefl.program.plan.measured_values.list_measured_values`.
    """
    private = {"privacy": accountant.summarize_spending(config, len(losses))} if config.privacy.is_on else {}
    return {
        "federation": config.name,
        "algorithm": config.algorithm,
        "rounds": config.rounds,
        "seconds": round(seconds, 2),
        "seed": config.seed,
        "plan": plan,
        "session": session,
        "losses": [loss if loss is not None and math.isfinite(loss) else None for loss in losses],
        "verdict": as_dict(verdict),
        "clients": clients,
        "dropped": [{"round": d.round, "id": d.client_id, "reason": d.reason} for d in dropped],
        "left_out": [{"round": number, "id": client_id} for client_id, number in left_out.items()],
        **measured,
        **private,
    }


def save_state(state: ServerState, out: Path) -> None:
    """Write the server state.

    Args:
        state: the server state after the last aggregated round.
        out: directory of the aggregator.

    Raises:
        StateError: the file cannot be written.
    """
    write_state(
        AggregatorFiles(out).server_state, encode_server_state(state), SECRET_MODE, AGGREGATOR_SPACE_REMEDY
    )


def load_state(out: Path) -> ServerState | None:
    """Return the server state after the last aggregated round, or None before the first.

    Raises:
        StateError: the file is damaged or cannot be read.
    """
    path = AggregatorFiles(out).server_state
    try:
        return decode_server_state(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, StateError) as error:
        raise StateError(f"cannot read {path}: {error}; start again with --fresh") from error


def save_result(result: dict[str, Any], out: Path) -> Path:
    """Write result.json and return its path.

    Args:
        result: the content, without numbers that are not finite.
        out: directory of the aggregator.

    Raises:
        StateError: the file cannot be written.
        ValueError: a number is not finite.
    """
    text = io.StringIO()
    # `dumps` would hold a string for each number of each client at once
    json.dump(result, text, indent=1, allow_nan=False)
    path = AggregatorFiles(out).result
    write_state(path, f"{text.getvalue()}\n".encode(), SECRET_MODE, AGGREGATOR_SPACE_REMEDY)
    return path


def load_result(out: Path) -> dict[str, Any]:
    """Return the content of result.json of a complete federation.

    Raises:
        StateError: the file is missing or damaged.
    """
    path = AggregatorFiles(out).result
    try:
        result: dict[str, Any] = parse_json(path.read_bytes())
        if not all(row["id"] for row in result["clients"]):
            raise ValueError("a client has no id")
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise StateError(
            f"cannot read {path}: {error!r}; restore it from a backup, or remove this federation with --fresh"
        ) from error
    return result

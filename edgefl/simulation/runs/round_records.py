"""Reads rounds.jsonl, the records of the rounds of a simulation or an aggregator."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import StateError
from edgefl.program.plan.spec import PlanSpec, read_num_classes
from edgefl.protocol.server.divergence import find_divergence
from edgefl.protocol.server.spread import summarize_accuracy
from edgefl.protocol.wire.divergence_message import Divergence


def read_round_records(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the records of rounds.jsonl, one per round in order.

    If a round was repeated, its last record counts. An incomplete last line is ignored, and so is the
    personalization. A missing file has no records.

    Raises:
        StateError: a line is not a record.
    """
    by_round = dict(_iterate_records(path))
    return tuple(by_round[round] for round in sorted(by_round))


def read_round_accuracies(path: Path) -> tuple[float, ...]:
    """Return the median accuracy of each round in rounds.jsonl, NaN for a round without.

    It holds one record at a time in memory, because an aggregator may have hundreds of clients.

    Raises:
        StateError: a line is not a record.
    """
    by_round = {round: read_median_accuracy(record) for round, record in _iterate_records(path)}
    return tuple(by_round[round] for round in sorted(by_round))


def _iterate_records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number and the record of each round, in the order of the file."""
    if not path.exists():
        return
    with open(path, errors="replace", newline="\n") as file:
        for line_number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                round = record["round"]
                if isinstance(round, bool) or not isinstance(round, int):
                    raise TypeError(f"round is {round!r}")
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                if not line.endswith("\n"):  # the process ended while it wrote this line
                    return
                raise StateError(
                    f"{path} is damaged in line {line_number}: {error!r}; is this the folder of a federation?"
                ) from error
            if record.get("phase") != "personalize":
                yield round, record


def find_recorded_divergence(
    records: Sequence[Mapping[str, Any]],
    config: FederationConfig,
    spec: PlanSpec,
    can_lower_rate: bool = False,
) -> Divergence | None:
    """Return the evidence that the training of a federation diverged, or None.

    Args:
        records: the records of all rounds. A loss may be missing.
        config: the configuration of the federation. With `[privacy]`, a loss stops nothing.
        can_lower_rate: see `find_divergence`.
    """
    if config.privacy.is_on or not records:
        return None
    return find_divergence(
        [record.get("loss") for record in records],
        read_num_classes(spec) or 0,
        read_median_accuracy(records[-1]),
        rounds=config.rounds,
        can_lower_rate=can_lower_rate,
    )


def read_median_accuracy(record: Mapping[str, Any]) -> float:
    """Return the median accuracy of a round, see `edgefl.protocol.server.spread.summarize_accuracy`.

    Args:
        record: the record of the round. `updates` holds the figures of each client.
    """
    clients = [
        {name: value for name, value in figures.items() if isinstance(value, int | float)}
        for figures in record.get("updates", {}).values()
    ]
    return summarize_accuracy(clients).median

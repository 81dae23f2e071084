"""What lies in a folder of `edgefl simulate`, a stage of `edgefl reproduce`, an aggregator's --out, or
`edgefl demo`, as one record.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgefl.errors import ConfigError, StateError
from edgefl.runs.directory import read_json
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.storage.demo_directory import DemoFiles
from edgefl.storage.run_directory import RunFiles
from edgefl.system.format import some_of

Row = Mapping[str, Any]
SIMULATION = "simulation"
AGGREGATOR = "aggregator"
DEMO = "demo"
_MOST = 1e21
_MOST_GROUPS = 10_000
_SECRET = re.compile(r"(?<=//)[^/@\s]+@")


@dataclass(frozen=True)
class Folder:
    """One federation as it was found.

    kind: simulation, aggregator or demo. facts: what the head tells, in order. config: the configuration, as
    much of it as is known. records: one a round, first to last, without that of the personalization. clients:
    one row each. clusters, layers: see `edgefl.algorithms.clustering.cluster_report`; None when they were not
    recorded.
    """

    path: Path
    kind: str
    facts: Mapping[str, Any]
    config: Row
    records: tuple[Row, ...] = ()
    clients: tuple[Row, ...] = ()
    summary: Row = field(default_factory=dict)
    clusters: Row | None = None
    layers: Row | None = None

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.resolve().name

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.config.get("algorithm", ""))

    def option(self, key: str, default: Any = None) -> Any:
        """Return an option of the algorithm."""
        return _mapping(self.config.get("options")).get(key, default)

    def partition(self, key: str) -> Any:
        """Return an option of the partition."""
        return _mapping(_mapping(self.config.get("partition")).get("options")).get(key)


def read_folder(path: Path) -> Folder:
    """Read a folder.

    ConfigError when it is not there or holds nothing of a federation; StateError when it is damaged.
    """
    if not path.is_dir():
        raise ConfigError(
            f"{path} is no folder; give the --out of `edgefl simulate`, `edgefl demo` or `edgefl aggregator "
            "start`"
        )
    demo = DemoFiles(path)
    if demo.config.exists() and demo.summary.exists():
        return _demo(demo)
    aggregator = AggregatorFiles(path)
    if aggregator.result.exists() or aggregator.journal.exists():
        return _aggregator(aggregator)
    run = RunFiles(path)
    if run.note.exists() or run.rounds.exists():
        return _simulation(run)
    inside = sorted(child.name for child in path.iterdir() if RunFiles(child).note.exists())
    if inside:
        raise ConfigError(
            f"{path} holds runs and is none: {some_of(inside)}; give one of them, such as {path / inside[0]}"
        )
    raise ConfigError(
        f"{path} holds neither {run.note.name} nor {aggregator.result.name}, so no federation has written "
        "there; give the --out of `edgefl simulate`, `edgefl demo` or `edgefl aggregator start`"
    )


def _simulation(files: RunFiles) -> Folder:
    note = read_json(files.note)
    summary = _optional(files.summary) or {}
    config = _mapping(note.get("config"))
    facts = _facts(config, summary) | {
        "command": _safe(note.get("command")),
        "versions": _pairs(note.get("versions")),
        "machine": note.get("machine"),
    }
    confused = _optional(files.confusion) or {}
    gates = _optional(files.gates) or {}
    records = read_records(files.rounds)
    clients = tuple(
        {**row, "confusion": confused.get(row["id"]), "gates": gates.get(row["id"])}
        for row in _clients(summary, files.summary)
    )
    if not summary:
        facts["note"] = f"the run is not done: there is no {files.summary.name} yet; go on with --resume"
    return Folder(
        files.root,
        SIMULATION,
        facts,
        config,
        records,
        clients,
        summary,
        _optional(files.clusters),
        _optional(files.layers),
    )


def _aggregator(files: AggregatorFiles) -> Folder:
    result = _optional(files.result) or {}
    note = _optional(files.note) or {}
    config = {
        "algorithm": result.get("algorithm"),
        "name": result.get("federation"),
        "rounds": result.get("rounds"),
    }
    config |= _mapping(note.get("config"))
    facts = _facts(config, result) | {
        "command": _safe(note.get("command")),
        "versions": _pairs(note.get("versions")),
        "machine": note.get("machine"),
        "session": result.get("session"),
        "plan": result.get("plan"),
    }
    if not result:
        facts["note"] = f"the federation is not done: there is no {files.result.name} yet"
    records = read_records(files.rounds)
    if not records:
        losses = result.get("losses")
        told = losses if isinstance(losses, list) else []
        records = tuple({"round": i + 1, "phase": "", "loss": loss} for i, loss in enumerate(told))
    return Folder(
        files.root,
        AGGREGATOR,
        facts,
        config,
        records,
        _clients(result, files.result),
        result,
        _optional(files.clusters),
    )


def _demo(files: DemoFiles) -> Folder:
    summary = read_json(files.summary)
    try:
        told = tomllib.loads(files.config.read_text())
    except (OSError, ValueError) as error:
        raise StateError(f"cannot read {files.config}: {error}; is this the folder of a demo?") from error
    aggregator = AggregatorFiles(files.aggregator)
    inner = _aggregator(aggregator) if aggregator.result.exists() else None
    config = {
        "model": _mapping(told.get("model")),
        "data": {"name": summary.get("dataset")},
        **_mapping(told.get("federation")),
    }
    config |= {"algorithm": summary.get("algorithm"), "seed": summary.get("seed")}
    config |= {key: value for key, value in (inner.config.items() if inner else ()) if value is not None}
    facts = {**(inner.facts if inner else {}), **_facts(config, summary), "broker": summary.get("broker")}
    rows = _clients(summary, files.summary)
    more = {row["id"]: row for row in (inner.clients if inner else ())}
    clients = tuple({**more.get(row["id"], {}), **row} for row in rows)
    return Folder(
        files.root,
        DEMO,
        facts,
        config,
        inner.records if inner else (),
        clients,
        summary,
        inner.clusters if inner else None,
    )


def read_records(path: Path) -> tuple[Row, ...]:
    """Return the records of rounds.jsonl, in order and one a round, the last where a round was played again.

    None without the file.

    Raises StateError when a line is no record; a last line that was cut off is left out.
    """
    if not path.exists():
        return ()
    found: dict[int, Row] = {}
    lines = path.read_text(errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            round = record["round"]
            if isinstance(round, bool) or not isinstance(round, int):
                raise TypeError(f"round is {round!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number == len(lines):  # it was being written when the process ended
                continue
            raise StateError(
                f"{path} is damaged in line {number}: {error!r}; is this the folder of a federation?"
            ) from error
        if record.get("phase") != "personalize":
            found[round] = record
    return tuple(found[round] for round in sorted(found))


def number(value: Any) -> float:
    """Return a finite number, NaN for anything else, and for what no federation measures (1e21 and more)."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST
    return float(value) if fits else math.nan


def index(value: Any) -> int:
    """Return the number of a cluster, an expert or a group, from 0 to 9999; -1 for anything else."""
    found = number(value)
    return int(found) if found.is_integer() and 0 <= found < _MOST_GROUPS else -1


def values(rows: Iterable[Row], key: str) -> list[float]:
    """Return one number a row, NaN where it is not known."""
    return [number(row.get(key)) for row in rows]


def mapping_at(row: Row, *keys: str) -> Row:
    """Return the object at a path of keys; an empty one where there is none."""
    for key in keys:
        row = _mapping(row.get(key))
    return row


def labels(folders: Sequence[Folder]) -> list[str]:
    """Return a name a folder: its own, or its path where two have the same."""
    names = [folder.name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder.path) for folder in folders]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _clients(summary: Row, path: Path) -> tuple[Row, ...]:
    rows = summary.get("clients", [])
    if not isinstance(rows, list) or any(not isinstance(row, dict) or "id" not in row for row in rows):
        raise StateError(
            f"the clients in {path} are no list of rows with an id; is it the result of a federation?"
        )
    return tuple({**row, "id": str(row["id"])} for row in rows)


def _optional(path: Path) -> Row | None:
    return read_json(path) if path.exists() else None


def _facts(config: Row, summary: Row) -> dict[str, Any]:
    """Return what is known of the federation.

    Where its broker is stays out, for the address may hold a password.
    """
    model, data, partition = (_mapping(config.get(key)) for key in ("model", "data", "partition"))
    shown = {
        "federation": config.get("name"),
        "algorithm": config.get("algorithm"),
        "options": _pairs(config.get("options")),
        "model": " ".join(str(part) for part in (model.get("name"), _pairs(model.get("options"))) if part),
        "data": " ".join(str(part) for part in (data.get("name"), _pairs(data.get("options"))) if part),
        "partition": " ".join(
            str(part) for part in (partition.get("name"), _pairs(partition.get("options"))) if part
        ),
        "clients": len(summary.get("clients") or ()) or partition.get("num_clients"),
        "clients a round": config.get("clients_per_round"),
        "rounds": config.get("rounds"),
        "seed": config.get("seed"),
        "codec": config.get("codec"),
        "seconds": summary.get("seconds"),
    }
    if shown["clients a round"] == 0:
        shown["clients a round"] = "all"
    return shown


def _pairs(value: Any) -> str:
    return ", ".join(f"{key} {each}" for key, each in _mapping(value).items())


def _safe(command: Any) -> str:
    return _SECRET.sub("", str(command or ""))

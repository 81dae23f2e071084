"""Reads the output folder of a simulation, an experiment stage, an aggregator or a demo."""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgefl.base.errors import ConfigError, StateError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.demo_directory import DemoFiles
from edgefl.base.storage.run_directory import RunFiles
from edgefl.base.system.format import shorten_names
from edgefl.simulation.runs.directory import read_json
from edgefl.simulation.runs.round_records import read_round_records

JsonObject = Mapping[str, Any]
SIMULATION_FOLDER = "simulation"
AGGREGATOR_FOLDER = "aggregator"
DEMO_FOLDER = "demo"
_MAX_VALUE = 1e21
_MAX_GROUPS = 10_000
_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]+@")


@dataclass(frozen=True)
class Folder:
    """The record of one federation.

    Attributes:
        path: the folder.
        kind: `simulation`, `aggregator` or `demo`.
        facts: facts about the run by name, in the order to show.
        config: the configuration, as far as the folder records it.
        records: one record per round in order, without the personalization.
        clients: one row per client.
        summary: the content of the result file.
        clusters: similarity and linkage of clients, or None. See
            `edgefl.learning.algorithms.clustering.cluster_report`.
        layers: similarity of layers by epoch, or None. See
            `edgefl.learning.algorithms.clustering.cluster_report`.
    """

    path: Path
    kind: str
    facts: Mapping[str, Any]
    config: JsonObject
    records: tuple[JsonObject, ...] = ()
    clients: tuple[JsonObject, ...] = ()
    summary: JsonObject = field(default_factory=dict)
    clusters: JsonObject | None = None
    layers: JsonObject | None = None

    @property
    def name(self) -> str:
        """The name of the folder, without its path."""
        return self.path.resolve().name

    @property
    def algorithm(self) -> str:
        """The name of the algorithm, or empty."""
        return str(self.config.get("algorithm", ""))

    def find_option(self, key: str, default: Any = None) -> Any:
        """Return an option of the algorithm, or `default` if the configuration lacks it.

        Args:
            key: name of the option.
            default: value of a missing option.
        """
        return _as_mapping(self.config.get("options")).get(key, default)

    def find_partition_option(self, key: str) -> Any:
        """Return an option of the partition, or None if the configuration lacks it."""
        return _as_mapping(_as_mapping(self.config.get("partition")).get("options")).get(key)


def read_folder(path: Path) -> Folder:
    """Read the output folder of a federation.

    Args:
        path: the --out of `edgefl simulate`, `edgefl demo` or `edgefl aggregator start`, or a stage of
            `edgefl reproduce`.

    Raises:
        ConfigError: the folder does not exist or holds no federation.
        StateError: a file in the folder is damaged.
    """
    if not path.is_dir():
        raise ConfigError(
            f"{path} is not a folder; give the --out of `edgefl simulate`, `edgefl demo` or `edgefl "
            "aggregator start`"
        )
    demo = DemoFiles(path)
    if demo.config.exists() and demo.summary.exists():
        return _read_demo(demo)
    aggregator = AggregatorFiles(path)
    if aggregator.result.exists() or aggregator.journal.exists():
        return _read_aggregator(aggregator)
    run = RunFiles(path)
    if run.note.exists() or run.rounds.exists():
        return _read_simulation(run)
    inside = sorted(child.name for child in path.iterdir() if RunFiles(child).note.exists())
    if inside:
        raise ConfigError(
            f"{path} is not a run but contains runs: {shorten_names(inside)}; give one of them, such as "
            f"{path / inside[0]}"
        )
    raise ConfigError(
        f"{path} contains neither {run.note.name} nor {aggregator.result.name}, and is not the output of a "
        "federation; give the --out of `edgefl simulate`, `edgefl demo` or `edgefl aggregator start`"
    )


def _read_simulation(files: RunFiles) -> Folder:
    note = read_json(files.note)
    summary = _read_optional(files.summary) or {}
    config = _as_mapping(note.get("config"))
    facts = _collect_facts(config, summary) | {
        "command": _strip_credentials(note.get("command")),
        "versions": _format_pairs(note.get("versions")),
        "machine": note.get("machine"),
    }
    confusions = _read_optional(files.confusion) or {}
    gates = _read_optional(files.gates) or {}
    records = read_round_records(files.rounds)
    clients = tuple(
        {**row, "confusion": confusions.get(row["id"]), "gates": gates.get(row["id"])}
        for row in _read_clients(summary, files.summary)
    )
    if not summary:
        facts["note"] = (
            f"the run is not finished: there is no {files.summary.name} yet; continue it with --resume"
        )
    return Folder(
        path=files.root,
        kind=SIMULATION_FOLDER,
        facts=facts,
        config=config,
        records=records,
        clients=clients,
        summary=summary,
        clusters=_read_optional(files.clusters),
        layers=_read_optional(files.layers),
    )


def _read_aggregator(files: AggregatorFiles) -> Folder:
    result = _read_optional(files.result) or {}
    note = _read_optional(files.note) or {}
    config = {
        "algorithm": result.get("algorithm"),
        "name": result.get("federation"),
        "rounds": result.get("rounds"),
    }
    config |= _as_mapping(note.get("config"))
    facts = _collect_facts(config, result) | {
        "command": _strip_credentials(note.get("command")),
        "versions": _format_pairs(note.get("versions")),
        "machine": note.get("machine"),
        "session": result.get("session"),
        "plan": result.get("plan"),
    }
    if not result:
        facts["note"] = f"the federation is not finished: there is no {files.result.name} yet"
    records = read_round_records(files.rounds)
    if not records:
        losses = result.get("losses")
        round_losses = losses if isinstance(losses, list) else []
        records = tuple({"round": i + 1, "phase": "", "loss": loss} for i, loss in enumerate(round_losses))
    return Folder(
        path=files.root,
        kind=AGGREGATOR_FOLDER,
        facts=facts,
        config=config,
        records=records,
        clients=_read_clients(result, files.result),
        summary=result,
        clusters=_read_optional(files.clusters),
    )


def _read_demo(files: DemoFiles) -> Folder:
    summary = read_json(files.summary)
    try:
        stored_config = tomllib.loads(files.config.read_text())
    except (OSError, ValueError) as error:
        raise StateError(f"cannot read {files.config}: {error}; is this the folder of a demo?") from error
    aggregator = AggregatorFiles(files.aggregator)
    inner = _read_aggregator(aggregator) if aggregator.result.exists() else None
    config = {
        "model": _as_mapping(stored_config.get("model")),
        "data": {"name": summary.get("dataset")},
        **_as_mapping(stored_config.get("federation")),
    }
    config |= {"algorithm": summary.get("algorithm"), "seed": summary.get("seed")}
    config |= {key: value for key, value in (inner.config.items() if inner else ()) if value is not None}
    facts = {
        **(inner.facts if inner else {}),
        **_collect_facts(config, summary),
        "broker": summary.get("broker"),
    }
    rows = _read_clients(summary, files.summary)
    more = {row["id"]: row for row in (inner.clients if inner else ())}
    clients = tuple({**more.get(row["id"], {}), **row} for row in rows)
    return Folder(
        path=files.root,
        kind=DEMO_FOLDER,
        facts=facts,
        config=config,
        records=inner.records if inner else (),
        clients=clients,
        summary=summary,
        clusters=inner.clusters if inner else None,
    )


def to_number(value: Any) -> float:
    """Return a finite number below 1e21 in size, and NaN for any other value."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_VALUE
    return float(value) if fits else math.nan


def to_index(value: Any) -> int:
    """Return the number of a cluster, an expert or a group from 0 to 9999, and -1 for any other value."""
    numeric = to_number(value)
    return int(numeric) if numeric.is_integer() and 0 <= numeric < _MAX_GROUPS else -1


def read_numbers(rows: Iterable[JsonObject], key: str) -> list[float]:
    """Return one number per row, NaN where a row lacks it.

    Args:
        rows: the rows, such as `clients` of a folder.
        key: name of the figure.
    """
    return [to_number(row.get(key)) for row in rows]


def find_mapping(row: JsonObject, *keys: str) -> JsonObject:
    """Return the object at a path of keys, or an empty one."""
    for key in keys:
        row = _as_mapping(row.get(key))
    return row


def label_folders(folders: Sequence[Folder]) -> list[str]:
    """Return a label per folder: its name, or its path if two folders share a name."""
    names = [folder.name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder.path) for folder in folders]


def _as_mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_clients(summary: JsonObject, path: Path) -> tuple[JsonObject, ...]:
    rows = summary.get("clients", [])
    if not isinstance(rows, list) or any(not isinstance(row, dict) or "id" not in row for row in rows):
        raise StateError(
            f"the clients in {path} are not a list of rows with an id; is it the result of a federation?"
        )
    return tuple({**row, "id": str(row["id"])} for row in rows)


def _read_optional(path: Path) -> JsonObject | None:
    return read_json(path) if path.exists() else None


def _collect_facts(config: JsonObject, summary: JsonObject) -> dict[str, Any]:
    """Return facts about the federation by name.

    The address of the broker is left out, because it may contain a password.
    """
    model, data, partition = (_as_mapping(config.get(key)) for key in ("model", "data", "partition"))
    shown = {
        "federation": config.get("name"),
        "algorithm": config.get("algorithm"),
        "options": _format_pairs(config.get("options")),
        "model": " ".join(
            str(part) for part in (model.get("name"), _format_pairs(model.get("options"))) if part
        ),
        "normalization": _format_pairs(summary.get("normalization")),
        "learning rate": summary.get("learning_rate"),
        "data": " ".join(
            str(part) for part in (data.get("name"), _format_pairs(data.get("options"))) if part
        ),
        "partition": " ".join(
            str(part) for part in (partition.get("name"), _format_pairs(partition.get("options"))) if part
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


def _format_pairs(value: Any) -> str:
    return ", ".join(f"{key} {item}" for key, item in _as_mapping(value).items())


def _strip_credentials(command: Any) -> str:
    return _CREDENTIALS.sub("", str(command or ""))

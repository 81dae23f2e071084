"""Opens the directory of a run, with its plan, checkpoints, one line per round, and the result."""

import json
import math
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError, PlanError, StateError
from edgefl.base.storage.directory import STATE_FORMAT, check_state_format
from edgefl.base.storage.run_directory import RUN_SPACE_REMEDY, RunFiles
from edgefl.base.system.files import open_no_link, parse_json, to_json_value, write_errors, write_state
from edgefl.base.system.host import describe_machine, read_versions
from edgefl.base.types import ServerState, Weights
from edgefl.learning.checkpoint import decode_server_state, encode_server_state
from edgefl.program.plan.measured_values import list_measured_values
from edgefl.program.plan.spec import INITIAL_FILE, Plan, load_plan
from edgefl.protocol.server.initial_weights import decode_initial_weights
from edgefl.simulation.runs.round_records import read_round_records
from edgefl.simulation.runs.states import FileStates
from edgefl.simulation.simulate import Record

CHECKPOINT_INTERVAL_S = 2.0
"""Minimum time between two checkpoints. The last round always writes a checkpoint."""


class RunDirectory:
    """Opens a new directory, or the directory of an interrupted run.

    Args:
        path: the directory. A missing directory is created.
        config: the configuration of the run. An interrupted run must have the same, except for `rounds`.
        command: the command line, for run.json.
        resume: whether the directory may contain a run, which is then continued.

    Raises:
        ConfigError: the directory contains other files, a run that `resume` does not allow, or a run with
            another configuration.
        StateError: a file is damaged or cannot be written.

    Attributes:
        files: the files of the run.
        state: the server state of the last checkpoint when the directory was opened, or None.
        states: client states by client id.
        sent_models: sha256 of the models that each client received, see `CommunicationCost`.
    """

    def __init__(self, path: Path, config: FederationConfig, command: str, *, resume: bool) -> None:
        self.files = RunFiles(path)
        config_values = json.loads(json.dumps(asdict(config)))
        if self.files.note.exists():
            self._check(config_values, resume)
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(
                f"{path} is in use, expected a new or empty directory; pass another --out, or remove it"
            )
        else:
            with write_errors(path, "pass another --out"):
                path.mkdir(parents=True, exist_ok=True)
            note = {
                "format": STATE_FORMAT,
                "config": config_values,
                "command": command,
                "versions": read_versions(),
                "machine": describe_machine(),
                "started": time.strftime("%Y-%m-%d %H:%M:%S"),
            }
            self.write(self.files.note, json.dumps(note, indent=1) + "\n")
        self.state = self.load_state()
        self.files.clients.mkdir(exist_ok=True)
        self._last = 0 if self.state is None else self.state.round - 1
        self.states = FileStates(self.files, self._last)
        self.sent_models: dict[str, list[str]] = (
            read_json(sent_models_path)
            if (sent_models_path := self.files.client_models(round=self._last)).exists()
            else {}
        )
        self._trim()
        self._saved = time.monotonic()

    def _check(self, config_values: Mapping[str, Any], resume: bool) -> None:
        if not resume:
            raise ConfigError(
                f"{self.files.root} contains a run, expected a new or empty directory; continue the run with "
                f"--resume, pass another --out, or remove it"
            )
        note = self.read_note()
        check_state_format(note.get("format"), self.files.note, "pass another --out")
        before = note["config"]
        if not isinstance(before, dict):
            raise StateError(
                f"{self.files.note} has no configuration; pass another --out, or remove {self.files.root}"
            )
        # An older edgefl did not store settings that it lacks. It behaved as with their defaults
        before = json.loads(json.dumps(asdict(FederationConfig()))) | before
        other = [key for key in config_values if config_values[key] != before.get(key) and key != "rounds"]
        if other:
            name = other[0]
            raise ConfigError(
                f"{self.files.root} contains a run with {name} = {before.get(name)!r}, expected "
                f"{config_values[name]!r}; continue it with its own configuration, or pass another --out"
            )

    def read_origin(self) -> dict[str, Any]:
        """Return the command that started the run, its versions and its machine, see `read_note`.

        Raises:
            StateError: the file is missing or damaged.
        """
        note = self.read_note()
        return {key: note[key] for key in ("command", "versions", "machine")}

    def read_note(self) -> dict[str, Any]:
        """Return the content of run.json.

        Returns:
            The JSON object. `config`, `command`, `versions`, `machine` and `started` are None if the file
                lacks them.

        Raises:
            StateError: the file is missing or damaged.
        """
        return {
            "config": None,
            "command": None,
            "versions": None,
            "machine": None,
            "started": None,
            **read_json(self.files.note),
        }

    def write(self, path: Path, text: str) -> None:
        """Write a text file of the run.

        Args:
            text: its new content.

        Raises:
            StateError: the file cannot be written.
        """
        write_state(path, text.encode(), remedy=RUN_SPACE_REMEDY)

    def load_state(self) -> ServerState | None:
        """Return the server state of the last checkpoint, or None before the first checkpoint.

        Raises:
            StateError: the file is damaged.
        """
        path = self.files.server_state
        if not path.exists():
            return None
        try:
            return decode_server_state(path.read_bytes())
        except StateError as error:
            raise StateError(f"{path}: {error}") from error

    def read_plan(self) -> tuple[Plan, Weights] | None:
        """Return the run's plan and initial weights, or None before they are built.

        Raises:
            PlanError: a file of the plan is missing or damaged.
            WireError: the initial weights do not match the plan.
        """
        initial = self.files.plan / INITIAL_FILE
        if not initial.exists():
            return None
        try:
            plan = load_plan(self.files.plan)
        except PlanError as error:
            raise PlanError(f"{self.files.plan}: {error}") from error
        return plan, decode_initial_weights(initial.read_bytes(), plan.spec, str(initial))

    def read_measured_values(self) -> dict[str, Any]:
        """Return the values that were measured before round 1, see `list_measured_values`.

        They are empty without a plan.

        Raises:
            PlanError: as in `read_plan`.
            WireError: as in `read_plan`.
        """
        plan_and_weights = self.read_plan()
        if plan_and_weights is None:
            return {}
        config = self.read_note()["config"]
        return list_measured_values(plan_and_weights[0].spec, bool(config and config.get("range_test")))

    def read_records(self) -> tuple[Mapping[str, Any], ...]:
        """Return the record of each round, see `read_round_records`."""
        return read_round_records(self.files.rounds)

    def _trim(self) -> None:
        """Remove the lines of rounds after the checkpoint, which the run repeats with the same results."""
        path = self.files.rounds
        lines = path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []
        try:
            rounds = [int(json.loads(line)["round"]) for line in lines if line.endswith("\n")]
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{path} is damaged: {error!r}; pass another --out, or remove {self.files.root}"
            ) from error
        remaining = [round for round in rounds if round <= self._last]
        if remaining != list(range(self._last - len(remaining) + 1, self._last + 1)) or (
            self._last and not remaining
        ):
            raise StateError(
                f"{path} lacks rounds, expected all up to round {self._last}; pass another --out, or remove "
                f"{self.files.root}"
            )
        if len(remaining) < len(lines):
            self.write(path, "".join(lines[: len(remaining)]))

    def save_round(
        self, state: ServerState, record: Record, sent_models: Mapping[str, list[str]], *, last: bool
    ) -> None:
        """Append the line of a round to rounds.jsonl, and write a checkpoint if one is due.

        A checkpoint is due in the last round, and `CHECKPOINT_INTERVAL_S` seconds after the previous one.

        Args:
            state: the server state after the round.
            sent_models: sha256 of the models that each client received, see `CommunicationCost.sent_models`.
            last: whether this is the last round.

        Raises:
            StateError: a file cannot be written.
        """
        line = {
            name: value
            for name, value in asdict(record).items()
            if name != "similarity"
            and (name != "measured" or value)
            and (not name.startswith(("accuracy_", "hours")) or math.isfinite(value))
        }
        if record.similarity is not None:
            self.write(self.files.clusters, json.dumps(record.similarity, allow_nan=False) + "\n")
        due = last or time.monotonic() - self._saved >= CHECKPOINT_INTERVAL_S
        path = self.files.rounds
        with write_errors(path, RUN_SPACE_REMEDY), open(path, "a", opener=_open_public) as file:
            file.write(json.dumps(to_json_value(line), allow_nan=False) + "\n")
            if due:  # the lines must be on the disk before the checkpoint that needs them
                file.flush()
                os.fsync(file.fileno())
        if due:
            # These models belong to the server state, and must exist when it is written.
            self.write(self.files.client_models(round=record.round), json.dumps(sent_models))
            write_state(self.files.server_state, encode_server_state(state), remedy=RUN_SPACE_REMEDY)
            self.states.commit()
            self.files.client_models(round=self._last).unlink(missing_ok=True)
            self._last = record.round
            self._saved = time.monotonic()
        self.states.set_round(state.round)

    def forget_rounds(self) -> None:
        """Remove the state and the records of all rounds, so that the run starts again with round 1."""
        for path in (
            self.files.server_state,
            self.files.rounds,
            self.files.clusters,
            self.files.client_models(round=self._last),
        ):
            path.unlink(missing_ok=True)
        self.state, self.sent_models, self._last = None, {}, 0
        self.states = FileStates(self.files, 0)

    def count_free_bytes(self) -> int:
        """Return the number of free bytes on the disk of the run."""
        return shutil.disk_usage(self.files.root).free


def read_json(path: Path) -> dict[str, Any]:
    """Read a file with a JSON object.

    Raises:
        StateError: the file is missing, damaged, or not a JSON object.
    """
    try:
        value = parse_json(path.read_text())
    except (OSError, ValueError) as error:
        raise StateError(f"cannot read {path}: {error}; check that this is the right directory") from error
    if not isinstance(value, dict):
        raise StateError(
            f"{path} contains a {type(value).__name__}, expected an object; check that this is the right "
            "directory"
        )
    return value


def _open_public(path: str, flags: int) -> int:
    return open_no_link(path, flags, 0o666)

"""Reads and writes the directory of a search.

- `tune.json`: the configuration, including the seed.
- `1-cluster.json` and others: the trials of a stage and its best options.
- `experts-HASH.safetensors`: cluster models for the trials of the gate, by the options of their training.
- `federation.toml`: the configuration with the best options of all stages so far.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError, StateError
from edgefl.base.system.files import write_state
from edgefl.base.types import ServerState
from edgefl.lab.tune.space import TrialOptions
from edgefl.lab.tune.stages import TUNE_STAGES, TuneStage
from edgefl.learning.checkpoint import decode_server_state, encode_server_state
from edgefl.simulation.runs.directory import read_json

TUNE_FILE = "tune.json"
FEDERATION_FILE = "federation.toml"


@dataclass(frozen=True)
class TuneResult:
    """The result of a stage.

    Attributes:
        stage: number of the stage.
        name: name of the stage.
        given: best options of the earlier stages, which all trials used.
        best: options of the best trial.
        score: score of the best trial, from 0 to 1.
        trials: the outcome of each trial, see `edgefl.lab.tune.search.TrialOutcome`.
    """

    stage: int
    name: str
    given: TrialOptions
    best: TrialOptions
    score: float
    trials: Sequence[Mapping[str, Any]]


class TuneDirectory:
    """Opens a new directory, or the directory of a search to continue.

    Args:
        path: the directory. A missing directory is created.

    Raises:
        ConfigError: the directory contains other files, or a search of another configuration.
        StateError: a file is damaged or cannot be written.
    """

    def __init__(self, path: Path, config: FederationConfig) -> None:
        self.path = path
        config_values = json.loads(json.dumps(asdict(config)))
        if (path / TUNE_FILE).exists():
            before = read_json(path / TUNE_FILE).get("config")
            if before != config_values:
                raise ConfigError(
                    f"{path} contains a search of another configuration; pass another --out, or remove it"
                )
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(
                f"{path} is in use, expected a new or empty directory; pass another --out, or remove it"
            )
        else:
            self._write(TUNE_FILE, json.dumps({"config": config_values}, indent=1).encode())

    def _write(self, name: str, content: bytes) -> None:
        write_state(self.path / name, content, remedy="free some space, then run the same command again")

    def _locate_stage(self, stage: TuneStage) -> Path:
        return self.path / f"{stage.number}-{stage.name}.json"

    def read_result(self, stage: TuneStage) -> TuneResult | None:
        """Return the result of a stage, or None before it is complete.

        Raises:
            StateError: the file is damaged.
        """
        if not self._locate_stage(stage).exists():
            return None
        raw = read_json(self._locate_stage(stage))
        try:
            return TuneResult(**raw)
        except TypeError as error:
            raise StateError(
                f"{self._locate_stage(stage)} is damaged: {error}; remove it to search this stage again"
            ) from error

    def save_result(self, stage: TuneStage, result: TuneResult) -> None:
        """Write the result of a stage.

        Raises:
            StateError: the file cannot be written.
        """
        self._write(self._locate_stage(stage).name, (json.dumps(asdict(result), indent=1) + "\n").encode())

    def read_earlier_options(self, stage: TuneStage) -> dict[str, Any]:
        """Return the best options of the completed stages before this stage, by name.

        Raises:
            StateError: the file of an earlier stage is damaged.
        """
        results = [self.read_result(earlier) for earlier in TUNE_STAGES if earlier.number < stage.number]
        return {
            name: value for earlier in results if earlier is not None for name, value in earlier.best.items()
        }

    def load_experts(self, options: TrialOptions) -> ServerState | None:
        """Return the cluster models that were trained with these options, or None before the training.

        Args:
            options: the best options of the earlier stages.

        Raises:
            StateError: the file is damaged.
        """
        path = self.path / _name_experts_file(options)
        return decode_server_state(path.read_bytes()) if path.exists() else None

    def save_experts(self, options: TrialOptions, state: ServerState) -> None:
        """Write the cluster models.

        Args:
            options: the options that they were trained with.

        Raises:
            StateError: the file cannot be written.
        """
        self._write(_name_experts_file(options), encode_server_state(state))

    def save_federation(self, text: str) -> Path:
        """Write federation.toml and return its path.

        Args:
            text: the content of the file.

        Raises:
            StateError: the file cannot be written.
        """
        self._write(FEDERATION_FILE, text.encode())
        return self.path / FEDERATION_FILE


def _name_experts_file(options: TrialOptions) -> str:
    return (
        f"experts-{hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]}.safetensors"
    )

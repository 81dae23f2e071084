"""A search's directory: what was asked for, one file a stage, the cluster models that gates are tried on, and
the best configuration.

tune.json                     configuration, seed included
1-cluster.json ...            a stage's trials and its best options
experts-HASH.safetensors      cluster models, by the options that they were trained with
federation.toml               the configuration with the best options of all stages so far
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgefl.config import FederationConfig
from edgefl.errors import ConfigError, StateError
from edgefl.runs.directory import read_json
from edgefl.storage.checkpoint import decode_server_state, encode_server_state
from edgefl.system.files import write_state
from edgefl.tune.space import Options
from edgefl.tune.stages import STAGES, Stage
from edgefl.types import ServerState

TUNE = "tune.json"
FEDERATION = "federation.toml"


@dataclass(frozen=True)
class Found:
    """What a stage found. given: the options of the stages before it, which its trials had too."""

    stage: int
    name: str
    given: Options
    best: Options
    score: float
    trials: Sequence[Mapping[str, Any]]


class TuneDirectory:
    """Opens a new directory, or that of a search to go on with.

    ConfigError when it holds anything else or another search.
    """

    def __init__(self, path: Path, config: FederationConfig) -> None:
        self.path = path
        wanted = json.loads(json.dumps(asdict(config)))
        if (path / TUNE).exists():
            before = read_json(path / TUNE).get("config")
            if before != wanted:
                raise ConfigError(
                    f"{path} holds the search of another configuration; give another --out, or remove it"
                )
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(
                f"{path} is in use, expected a new or empty directory; give another --out, or remove it"
            )
        else:
            self._write(TUNE, json.dumps({"config": wanted}, indent=1).encode())

    def _write(self, name: str, content: bytes) -> None:
        write_state(self.path / name, content, remedy="free some space, then run the same command again")

    def _path(self, stage: Stage) -> Path:
        return self.path / f"{stage.number}-{stage.name}.json"

    def found(self, stage: Stage) -> Found | None:
        """Return what a stage found, None before it did. StateError when its file is damaged."""
        if not self._path(stage).exists():
            return None
        raw = read_json(self._path(stage))
        try:
            return Found(**raw)
        except TypeError as error:
            raise StateError(
                f"{self._path(stage)} is damaged: {error}; remove it to search that stage again"
            ) from error

    def save(self, stage: Stage, found: Found) -> None:
        """Write what a stage found."""
        self._write(self._path(stage).name, (json.dumps(asdict(found), indent=1) + "\n").encode())

    def given(self, stage: Stage) -> dict[str, Any]:
        """Return the best options of the stages before this one that are there."""
        found = [self.found(each) for each in STAGES if each.number < stage.number]
        return {name: value for each in found if each is not None for name, value in each.best.items()}

    def experts(self, given: Options) -> ServerState | None:
        """Return the cluster models that were trained with these options; None when there are none yet."""
        path = self.path / _experts(given)
        return decode_server_state(path.read_bytes()) if path.exists() else None

    def save_experts(self, given: Options, state: ServerState) -> None:
        """Write the cluster models."""
        self._write(_experts(given), encode_server_state(state))

    def save_federation(self, text: str) -> Path:
        """Write federation.toml and return its path."""
        self._write(FEDERATION, text.encode())
        return self.path / FEDERATION


def _experts(given: Options) -> str:
    return (
        f"experts-{hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:12]}.safetensors"
    )

"""Read what a device keeps: its plan, its mixture, and where its data lie."""

import json
from dataclasses import dataclass
from pathlib import Path

from edgefl.checkpoint import decode_mixture
from edgefl.data.npz import load_shard
from edgefl.errors import EdgeflError, StateError
from edgefl.plan.spec import Plan, load_plan
from edgefl.types import Mixture, Shard

MIXTURE = "mixture.safetensors"
DEVICE = "device.json"


@dataclass(frozen=True)
class DeviceState:
    """All that an export needs; `seed` and `client_id` decide which samples are held out."""

    plan: Plan
    mixture: Mixture
    data: Path
    seed: int
    client_id: str

    def shard(self) -> Shard:
        """Read the device's shard, split as it was in training."""
        return load_shard(self.data, seed=self.seed, client_id=self.client_id, num_classes=self.plan.spec.num_classes)


def read_state(directory: Path, data: Path | None = None) -> DeviceState:
    """Read a state directory; `data` replaces the shard's path. StateError names the file that is missing or damaged."""
    if not directory.is_dir():
        raise StateError(f"no state directory {directory}; give the --state of `edgefl device start`")
    try:
        note = json.loads((directory / DEVICE).read_bytes())
        seed, client_id, path = int(note["seed"]), str(note["id"]), Path(note["data"])
    except OSError as error:
        raise StateError(f"{directory} is no device's state: {error}; start the device once with --state {directory}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{directory / DEVICE} is damaged: {error!r}; start the device again") from error
    try:
        blob = (directory / MIXTURE).read_bytes()
    except OSError as error:
        raise StateError(f"{directory} holds no mixture yet: {error}; it is made when the federation ends") from error
    try:
        mixture = decode_mixture(blob)
    except EdgeflError as error:
        raise StateError(f"{directory / MIXTURE}: {error}") from error
    return DeviceState(load_plan(directory / "plan"), mixture, data or path, seed, client_id)

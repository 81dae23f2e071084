"""Read what a device keeps: its plan, its mixture, and where its data lie."""

import json
from dataclasses import dataclass
from pathlib import Path

from edgefl.checkpoint import decode_mixture
from edgefl.data.device import DataSource, read_source, source_of_note
from edgefl.data.npz import make_shard
from edgefl.data.split import Split, split_of
from edgefl.errors import EdgeflError, StateError
from edgefl.plan.spec import Plan, load_plan
from edgefl.types import Mixture, Shard

MIXTURE = "mixture.safetensors"
DEVICE = "device.json"


@dataclass(frozen=True)
class DeviceState:
    """All that an export needs; `seed` decides which samples are held out."""

    plan: Plan
    mixture: Mixture
    data: DataSource
    seed: int
    client_id: str

    def shard(self) -> Shard:
        """Read the device's shard, split as it was in training."""
        return self.shard_with_split()[0]

    def shard_with_split(self) -> tuple[Shard, Split]:
        """Read the device's shard, split as it was in training, and return it with the note of its split."""
        arrays = read_source(self.data)
        shard = make_shard(arrays, self.data.data, seed=self.seed, num_classes=self.plan.spec.num_classes)
        return shard, split_of(arrays, shard, self.seed)


def read_state(directory: Path, data: DataSource | None = None) -> DeviceState:
    """Read a state directory; `data` replaces its data's source. StateError names the file that is missing or damaged.

    Code that a file names is not run: a device whose data come from a function needs `data`.
    """
    if not directory.is_dir():
        raise StateError(f"no state directory {directory}; give the --state of `edgefl device start`")
    try:
        note = json.loads((directory / DEVICE).read_bytes())
        seed, client_id, source = int(note["seed"]), str(note["id"]), source_of_note(note)
    except OSError as error:
        raise StateError(f"{directory} is no device's state: {error}; start the device once with --state {directory}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{directory / DEVICE} is damaged: {error!r}; start the device again") from error
    if source.is_function and data is None:
        raise StateError(f"the data of {directory} come from the function {source.data}; say that it may run: --data {source.data}")
    try:
        blob = (directory / MIXTURE).read_bytes()
    except OSError as error:
        raise StateError(f"{directory} holds no mixture yet: {error}; it is made when the federation ends") from error
    try:
        mixture = decode_mixture(blob)
    except EdgeflError as error:
        raise StateError(f"{directory / MIXTURE}: {error}") from error
    return DeviceState(load_plan(directory / "plan"), mixture, data or source, seed, client_id)

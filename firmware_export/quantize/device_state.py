"""Reads a device's state: its plan, its mixture and the source of its data."""

from dataclasses import dataclass, replace
from pathlib import Path

from edgefl.base.errors import StateError
from edgefl.base.storage.device_directory import DeviceFiles, decode_note
from edgefl.base.storage.run_directory import RunFiles
from edgefl.base.types import Mixture, Shard
from edgefl.data.npz import LoadedSamples
from edgefl.data.sources import DataSource, load_samples_for_plan, parse_source
from edgefl.data.task_form import to_task_form
from edgefl.learning.personal_model import load_personal_model
from edgefl.program.plan.spec import Plan, read_task


@dataclass(frozen=True)
class DeviceState:
    """Everything that an export needs from a device.

    Attributes:
        plan: the plan of the federation.
        mixture: the device's mixture.
        data: the source of its samples.
        seed: random seed that decides which samples are held out.
        client_id: id of the client.
    """

    plan: Plan
    mixture: Mixture
    data: DataSource
    seed: int
    client_id: str

    def read_shard(self) -> Shard:
        """Read the device's shard, split as in training.

        Raises:
            DataError: the samples cannot be read or do not fit the plan.
        """
        return self.read_samples().shard

    def read_samples(self) -> LoadedSamples:
        """Read the device's samples, split as in training, with the record of the split.

        The shard is in the form of the plan's task, see `edgefl.data.task_form`. The record counts samples as
        they are stored.

        Raises:
            DataError: the samples cannot be read or do not fit the plan.
        """
        spec = self.plan.spec
        loaded = load_samples_for_plan(self.data, spec, seed=self.seed, count_overlapping=True)
        return replace(loaded, shard=to_task_form(loaded.shard, read_task(spec)))


def read_state(directory: Path, data: DataSource | None = None) -> DeviceState:
    """Read a state directory.

    Code that a file names is not run. A device whose data come from a function therefore needs `data`.

    Args:
        directory: the `--state` of `edgefl device start`.
        data: replaces the data source of the state. None keeps it.

    Raises:
        StateError: the directory is not a state, a file in it is missing or damaged, or `data` is needed.
    """
    if not directory.is_dir():
        raise StateError(f"no state directory {directory}; pass the --state of `edgefl device start`")
    files = DeviceFiles(directory)
    try:
        note = decode_note(files.note.read_bytes())
        seed = int(note["seed"])
        client_id = str(note["id"])
        source = parse_source(note)
    except OSError as error:
        if _is_simulation(directory):
            raise StateError(
                f"{directory} is a simulation, expected the state of one client: {_list_states(directory)}"
            ) from error
        raise StateError(
            f"{directory} is not a device's state: {error}; start the device once with --state {directory}"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{files.note} is damaged: {error}; copy it again, or start the device again"
        ) from error
    if source.is_function and data is None:
        raise StateError(
            f"the data of {directory} come from the function {source.data}; allow it to run with --data "
            f"{source.data}"
        )
    # A simulation writes the path relative to the state
    if not source.is_function and not Path(source.data).is_absolute():
        source = replace(source, data=str(directory / source.data))
    plan, mixture = load_personal_model(files)
    return DeviceState(plan=plan, mixture=mixture, data=data or source, seed=seed, client_id=client_id)


def _is_simulation(directory: Path) -> bool:
    run = RunFiles(directory)
    return run.note.exists() or run.mixtures.is_dir() or directory.name == run.mixtures.name


def _list_states(directory: Path) -> str:
    """Return the remedy for a simulation's directory: the state directories that it contains."""
    mixtures = RunFiles(directory).mixtures
    home = directory if directory.name == mixtures.name else mixtures
    states = sorted(path.parent for path in home.glob(f"*/{DeviceFiles.note.name}"))
    if not states:
        return "it contains no mixtures; add --mixtures --resume to the `edgefl simulate` that made it"
    named = ", ".join(map(str, states[:3])) + (f" and {len(states) - 3} more" if len(states) > 3 else "")
    return f"each client's state is a separate directory: {named}; pass --state {states[0]}"

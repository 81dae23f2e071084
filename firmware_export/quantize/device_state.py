"""Read what a device keeps: its plan, its mixture, and where its data lie."""

from dataclasses import dataclass, replace
from pathlib import Path

from edgefl.data.npz import make_shard_and_split
from edgefl.data.sources import DataSource, parse_source, read_source
from edgefl.data.split import SplitRecord
from edgefl.errors import StateError
from edgefl.plan.spec import Plan
from edgefl.storage.device_directory import DeviceFiles, decode_note, load_personal_model
from edgefl.storage.run_directory import RunFiles
from edgefl.types import Mixture, Shard


@dataclass(frozen=True)
class DeviceState:
    """All that an export needs.

    `seed` decides which samples are held out; has_digests: whether digests covered plan and mixture.
    """

    plan: Plan
    mixture: Mixture
    data: DataSource
    seed: int
    client_id: str
    has_digests: bool = True

    def read_shard(self) -> Shard:
        """Read the device's shard, split as it was in training."""
        return self.read_shard_with_split()[0]

    def read_shard_with_split(self) -> tuple[Shard, SplitRecord]:
        """Read the device's shard, split as it was in training, and return it with the note of its split."""
        arrays = read_source(self.data)
        spec = self.plan.spec
        return make_shard_and_split(
            arrays,
            self.data.data,
            seed=self.seed,
            num_classes=spec.num_classes,
            input_shape=spec.input_shape,
            count_overlapping=True,
        )


def read_state(directory: Path, data: DataSource | None = None) -> DeviceState:
    """Read a state directory; `data` replaces its data's source.

    StateError names the file that is missing or damaged.

    Code that a file names is not run: a device whose data come from a function needs `data`.
    """
    if not directory.is_dir():
        raise StateError(f"no state directory {directory}; give the --state of `edgefl device start`")
    files = DeviceFiles(directory)
    try:
        note = decode_note(files.note.read_bytes())
        seed = int(note["seed"])
        client_id = str(note["id"])
        source = parse_source(note)
    except OSError as error:
        if _is_simulation(directory):
            raise StateError(
                f"{directory} is a simulation, expected the state of one client: "
                f"{_name_the_states(directory)}"
            ) from error
        raise StateError(
            f"{directory} is no device's state: {error}; start the device once with --state {directory}"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{files.note} is damaged: {error}; copy it again, or start the device again"
        ) from error
    if source.is_function and data is None:
        raise StateError(
            f"the data of {directory} come from the function {source.data}; say that it may run: --data "
            f"{source.data}"
        )
    # Beside the state, as a simulation writes it
    if not source.is_function and not Path(source.data).is_absolute():
        source = replace(source, data=str(directory / source.data))
    plan, mixture, has_digests = load_personal_model(files)
    return DeviceState(plan, mixture, data or source, seed, client_id, has_digests)


def _is_simulation(directory: Path) -> bool:
    run = RunFiles(directory)
    return run.note.exists() or run.mixtures.is_dir() or directory.name == run.mixtures.name


def _name_the_states(directory: Path) -> str:
    """Return the remedy for the directory of a run: which of its directories are states."""
    mixtures = RunFiles(directory).mixtures
    home = directory if directory.name == mixtures.name else mixtures
    states = sorted(path.parent for path in home.glob(f"*/{DeviceFiles.note.name}"))
    if not states:
        return "it keeps no mixtures; add --mixtures --resume to the `edgefl simulate` that made it"
    named = ", ".join(map(str, states[:3])) + (f" and {len(states) - 3} more" if len(states) > 3 else "")
    return f"each client's state is a directory of its own: {named}; give --state {states[0]}"

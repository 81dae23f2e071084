"""Writes a device directory for each simulated client, which `edgefl export --state` reads.

The plan in the device directory is a link to the run's plan.
"""

from functools import cache
from pathlib import Path

from edgefl.base.config import FederationConfig
from edgefl.base.storage.device_directory import DeviceFiles, encode_note
from edgefl.base.storage.run_directory import RUN_SPACE_REMEDY, RunFiles
from edgefl.base.system.files import FREE_SPACE_REMEDY, SECRET_MODE, write_errors, write_state
from edgefl.base.types import Mixture, Shard
from edgefl.data.npz import save_shard
from edgefl.learning.personal_model import save_mixture
from edgefl.program.plan.spec import Plan
from edgefl.simulation.clients import ClientResult, drop_mixture
from edgefl.simulation.runs.directory import RunDirectory
from edgefl.simulation.runs.pipeline import PartitionedDataset
from edgefl.simulation.simulate import KeepResult


def save_client_state(
    run: RunFiles, plan: Plan, config: FederationConfig, client_id: str, mixture: Mixture, shard: Shard
) -> Path:
    """Write the device directory of one client and return its path. The mixture is written last.

    Args:
        run: the files of the run, which include the plan.
        plan: the plan of the run.
        client_id: the client, which names the directory.
        mixture: the client's mixture.
        shard: the client's samples, including its test samples.

    Raises:
        StateError: a file cannot be written.
    """
    state = DeviceFiles(run.mixture(client=client_id))
    with write_errors(state.root, RUN_SPACE_REMEDY):
        state.root.mkdir(parents=True, exist_ok=True)
        if not state.plan.is_symlink():
            state.plan.symlink_to(Path("..", "..", run.plan.name), target_is_directory=True)
    save_client_samples(state, config, client_id, shard, RUN_SPACE_REMEDY)
    save_mixture(state, plan, mixture, RUN_SPACE_REMEDY)
    return state.root


def save_client_samples(
    state: DeviceFiles,
    config: FederationConfig,
    client_id: str,
    shard: Shard,
    remedy: str = FREE_SPACE_REMEDY,
) -> None:
    """Write the samples of a client into its device directory, and the note that names them.

    Args:
        state: the device directory, which is created if it is missing.
        shard: the client's samples, including its test samples.
        remedy: last part of the error message.

    Raises:
        StateError: a file cannot be written.
    """
    note = {"data": state.shard.name, "id": client_id, "federation": config.name, "seed": config.seed}
    with write_errors(state.root, remedy):
        save_shard(state.shard, shard, config.samples.classes, config.samples.channels)
    write_state(state.note, encode_note(note), SECRET_MODE, remedy)


def make_state_writer(
    run: RunDirectory, config: FederationConfig, partitioned: PartitionedDataset
) -> KeepResult:
    """Return a function that writes a client's device directory and drops the mixture from its result.

    Args:
        run: the directory of the run. Its plan is read when the first client ends.
        partitioned: the data set and its client partitions.

    Raises:
        StateError: raised by the function if a file cannot be written.
    """

    @cache
    def read_plan() -> Plan:  # the plan is built only when the rounds begin
        plan_and_weights = run.read_plan()
        assert plan_and_weights is not None
        return plan_and_weights[0]

    def keep(client_id: str, result: ClientResult) -> ClientResult:
        save_client_state(
            run.files, read_plan(), config, client_id, result.mixture, partitioned.shards[client_id]
        )
        return drop_mixture(client_id, result)

    return keep

"""The state of each simulated client as `edgefl export --state` reads it: a device directory in the run.

Its plan is a link to the run's plan. The mixture is written last.
"""

from functools import cache
from pathlib import Path

from edgefl.config import FederationConfig
from edgefl.data.npz import save_shard
from edgefl.plan.spec import Plan
from edgefl.runs.directory import RunDirectory
from edgefl.runs.pipeline import PartitionedDataset
from edgefl.simulation.clients import ClientResult, drop_mixture
from edgefl.simulation.simulate import KeepResult
from edgefl.storage.device_directory import DeviceFiles, encode_note, save_mixture
from edgefl.storage.run_directory import RUN_SPACE_REMEDY, RunFiles
from edgefl.system.files import SECRET_MODE, write_errors, write_state
from edgefl.types import Mixture, Shard


def save_client_state(
    run: RunFiles, plan: Plan, config: FederationConfig, client_id: str, mixture: Mixture, shard: Shard
) -> Path:
    """Write one client's state and return its directory.

    Args:
        run: The files of the run, which hold the plan.
        plan: The run's plan.
        config: The federation's configuration.
        client_id: Names the directory.
        mixture: What the client takes away.
        shard: Its samples, with those held out.

    Raises:
        StateError: The disk does not take a file.
    """
    state = DeviceFiles(run.mixture(client=client_id))
    note = {"data": state.shard.name, "id": client_id, "federation": config.name, "seed": config.seed}
    with write_errors(state.root, RUN_SPACE_REMEDY):
        state.root.mkdir(parents=True, exist_ok=True)
        if not state.plan.is_symlink():
            state.plan.symlink_to(Path("..", "..", run.plan.name), target_is_directory=True)
        save_shard(state.shard, shard)
    write_state(state.note, encode_note(note), SECRET_MODE, RUN_SPACE_REMEDY)
    save_mixture(state, plan, mixture, RUN_SPACE_REMEDY)
    return state.root


def make_state_writer(
    run: RunDirectory, config: FederationConfig, partitioned: PartitionedDataset
) -> KeepResult:
    """Return a function that writes the state of each client, and returns its result without the mixture."""

    @cache
    def read_plan() -> Plan:  # it is built once the rounds begin
        plan_and_weights = run.read_plan()
        assert plan_and_weights is not None
        return plan_and_weights[0]

    def keep(client_id: str, result: ClientResult) -> ClientResult:
        save_client_state(
            run.files, read_plan(), config, client_id, result.mixture, partitioned.shards[client_id]
        )
        return drop_mixture(client_id, result)

    return keep

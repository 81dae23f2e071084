"""The state of each simulated client as `edgefl export --state` reads it, in `mixtures/CLIENT/` of the run.

plan                  a link to the run's plan
shard.npz             the client's samples, as they were shared out
device.json           id, federation, seed, where the samples lie
mixture.safetensors   the mixture; written last
"""

from pathlib import Path

from edgefl.config import FederationConfig
from edgefl.data.npz import save_shard
from edgefl.plan.spec import Plan
from edgefl.runs.states import REMEDY
from edgefl.storage.device_directory import DEVICE, PLAN, encode_note, save_mixture
from edgefl.system.files import SECRET, write_errors, write_state
from edgefl.types import Mixture, Shard

DIRECTORY = "mixtures"
SHARD = "shard.npz"


def keep_state(
    run: Path, plan: Plan, config: FederationConfig, client_id: str, mixture: Mixture, shard: Shard
) -> Path:
    """Write one client's state and return its directory.

    Args:
        run: The run's directory, which holds the plan.
        plan: The run's plan.
        config: The federation's configuration.
        client_id: Names the directory.
        mixture: What the client takes away.
        shard: Its samples, with those held out.

    Raises:
        StateError: The disk does not take a file.
    """
    state = run / DIRECTORY / client_id
    note = {"data": SHARD, "id": client_id, "federation": config.name, "seed": config.seed}
    with write_errors(state, REMEDY):
        state.mkdir(parents=True, exist_ok=True)
        if not (state / PLAN).is_symlink():
            (state / PLAN).symlink_to(Path("..", "..", PLAN), target_is_directory=True)
        save_shard(state / SHARD, shard)
    write_state(state / DEVICE, encode_note(note), SECRET, REMEDY)
    save_mixture(state, plan, mixture, REMEDY)
    return state

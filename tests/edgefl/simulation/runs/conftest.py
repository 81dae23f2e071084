"""Small runs on digits. Their plans are built once, so that `edgefl simulate` needs no TensorFlow."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from edgefl.base.config import parse_config
from edgefl.base.system.files import write_atomic
from edgefl.program.plan.spec import INITIAL_FILE, save_plan
from edgefl.protocol.wire.tensors import encode_weights
from edgefl.simulation.runs.directory import RunDirectory

CONFIG = """
[federation]
name = "small"
seed = 3
rounds = {rounds}
{federation}

[model]
name = "softmax"
input_shape = [28, 28, 1]

[data]
name = "digits"
num_train = {num_train}
num_test = 40

[partition]
{partition}
num_clients = {clients}

[algorithm]
name = "{algorithm}"
epochs = 1
"""
MAIN = (
    "import sys; from edgefl.simulation.runs import directory; directory.CHECKPOINT_INTERVAL_S = 0.2; "
    "from edgefl.cli.main import run_command; sys.exit(run_command())"
)
"""Program of the command in a separate process, with a checkpoint every few rounds of a small federation."""


def format_config(
    algorithm: str = "ditto",
    rounds: int = 3,
    clients: int = 4,
    num_train: int = 120,
    partition: str = 'name = "dirichlet"',
    federation: str = "clients_per_round = 3",
    tables: str = "",
    **options: object,
) -> str:
    """Return the text of a configuration. Further options belong to the algorithm."""
    extra = "".join(f"{key} = {value}\n" for key, value in options.items())
    return (
        CONFIG.format(
            algorithm=algorithm,
            rounds=rounds,
            clients=clients,
            num_train=num_train,
            partition=partition,
            federation=federation,
        )
        + extra
        + tables
    )


@pytest.fixture(scope="session")
def build_cached_plan():
    """Build the plan of a configuration once for all configurations with the same model and algorithm."""
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from edgefl.learning.algorithms.plans import build_plan

    plans = {}

    def build(config):
        key = (config.algorithm, str(config.options), str(config.model), config.seed)
        if key not in plans:
            plans[key] = build_plan(config)
        return plans[key]

    return build


@pytest.fixture
def prepare(tmp_path, build_cached_plan) -> Callable[..., tuple[str, str]]:
    """Write a configuration and a run that was interrupted before its first round.

    Returns:
        The paths of the configuration and of the run.
    """

    def make(name: str = "run", **options: object) -> tuple[str, str]:
        text = format_config(**options)
        config = parse_config(text)
        path = tmp_path / f"{name}.toml"
        out = tmp_path / name
        path.write_text(text)
        run = RunDirectory(out, config, "a test", resume=False)
        plan, initial = build_cached_plan(config)
        save_plan(plan, run.files.plan)
        write_atomic(run.files.plan / INITIAL_FILE, encode_weights(initial))
        return str(path), str(out)

    return make


@pytest.fixture
def start(tmp_path):
    """Start `edgefl ...` as a process. Running processes are killed and their files removed at the end."""
    started = []
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}

    def run(*arguments: str, **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", MAIN, *arguments]
        started.append(subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment, **options))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Wait until a condition holds. Fail if the process ends before that."""

    def wait(holds: Callable[[], object], process: subprocess.Popen[str], deadline_s: float = 120) -> None:
        end = time.monotonic() + deadline_s
        while not holds():
            assert process.poll() is None, f"it ended too early: {process.communicate()}"
            assert time.monotonic() < end, f"not within {deadline_s} s"
            time.sleep(0.003)

    return wait

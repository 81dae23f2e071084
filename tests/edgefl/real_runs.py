"""Real federations on digits, each simulated once by the command line, and folders with given content."""

import json
from pathlib import Path

import pytest

from edgefl.cli.main import run_command as edgefl

COMMON = """
[federation]
name = "{name}"
seed = 3
rounds = {rounds}

[model]
name = "{model}"
input_shape = [28, 28, 1]

[data]
name = "digits"

[partition]
{partition}

[algorithm]
name = "{algorithm}"
{options}

[personalization]
select = false
"""
TASKS = 'name = "tasks"\nclusters = 2\nnum_tasks = 4\nnum_clients = 6\nsamples = 20\ntest_samples = 8'
DIRICHLET = 'name = "dirichlet"\nnum_clients = 5\nalpha = 0.5\nmin_samples = 30'


@pytest.fixture(scope="session")
def simulate_once(tmp_path_factory):
    """Return a function that simulates a federation, once for the same arguments, and returns its folder."""
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    home = tmp_path_factory.mktemp("runs")
    folders = {}

    def simulate(name, algorithm, *more, model="softmax", rounds=3, partition=TASKS, **options) -> Path:
        if name not in folders:
            lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in options.items())
            text = COMMON.format(
                name=name, rounds=rounds, model=model, partition=partition, algorithm=algorithm, options=lines
            )
            (home / f"{name}.toml").write_text(text)
            assert edgefl(["simulate", str(home / f"{name}.toml"), "--out", str(home / name), *more]) == 0
            folders[name] = home / name
        return folders[name]

    return simulate


@pytest.fixture(scope="session")
def clustered(simulate_once) -> Path:
    """Six clients of two true clusters, evaluated after each round, with layer similarity over two epochs."""
    options = {"cut": "auto", "compare": "deltas", "epochs": 2, "mixing": 0.25}
    return simulate_once("clustered", "clustered", "--evaluate-every", "1", "--layers-over", "2", **options)


@pytest.fixture(scope="session")
def aem(simulate_once) -> Path:
    """Five clients that choose among three models, and mix them with a local one under a gate."""
    options = {"num_experts": 3, "epochs": 1, "learning_rate": 0.05, "local_epochs": 2, "gate_epochs": 2}
    partition = 'name = "p-majority"\nnum_clients = 5\np = 0.8\nsamples = 40\ntest_samples = 10'
    return simulate_once("aem", "aem", partition=partition, **options)


@pytest.fixture
def write_run(tmp_path):
    """Return a function that writes the folder of a run from its records, clients and other files."""

    def write(name="run", *, records=(), clients=(), config=None, **files) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        run = {
            "config": config or {"name": "hand", "algorithm": "fedavg"},
            "command": "edgefl simulate",
            "versions": {},
            "machine": "here",
        }
        (folder / "run.json").write_text(json.dumps(run))
        (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (folder / "summary.json").write_text(json.dumps({"clients": list(clients)}))
        for file, content in files.items():
            (folder / f"{file}.json").write_text(json.dumps(content))
        return folder

    return write

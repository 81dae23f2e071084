"""A run that was killed and resumed ends with the same bits as an uninterrupted run."""

import json
import signal

import pytest

from edgefl.cli.main import run_command as edgefl
from edgefl.learning.checkpoint import decode_server_state


def list_files(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


def read_results(out):
    """Return all results of a run, without times, versions and machine."""
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    return {
        "rounds": [{key: value for key, value in each.items() if key != "seconds"} for each in rounds],
        "summary": {
            key: value
            for key, value in summary.items()
            if key not in ("seconds", "command", "versions", "machine")
        },
        "state": (out / "server_state.safetensors").read_bytes(),
        **{
            str(path.relative_to(out)): path.read_bytes()
            for name in ("clients", "mixtures")
            for path in list_files(out / name)
        },
    }


def is_past_a_checkpoint(out):
    """Return whether rounds follow the checkpoint. They are lost when the run is killed."""
    if not (out / "server_state.safetensors").exists():
        return False
    state = decode_server_state((out / "server_state.safetensors").read_bytes())
    return (out / "rounds.jsonl").read_text().count("\n") > state.round


def is_personalizing(out):
    return any((out / "mixtures").glob("*/mixture.safetensors"))


@pytest.mark.parametrize(
    ("algorithm", "reached"),
    [
        ("ditto", is_past_a_checkpoint),
        pytest.param("ifca", is_past_a_checkpoint, marks=pytest.mark.slow),
        pytest.param("ditto", is_personalizing, marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed_run_equals_uninterrupted_run(
    algorithm, reached, tmp_path, prepare, start, wait_until, capfd
):
    rounds = 60 if reached is is_past_a_checkpoint else 5
    config, killed = prepare("killed", algorithm=algorithm, rounds=rounds, clients=12)
    _, whole = prepare("whole", algorithm=algorithm, rounds=rounds, clients=12)
    process = start("simulate", config, "--out", killed, "--resume", "--mixtures")
    wait_until(lambda: reached(tmp_path / "killed"), process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert edgefl(["simulate", config, "--out", killed, "--resume", "--mixtures"]) == 0
    assert f"of {rounds} rounds are done" in capfd.readouterr().err
    assert edgefl(["simulate", config, "--out", whole, "--resume", "--mixtures"]) == 0
    resumed = read_results(tmp_path / "killed")
    expected = read_results(tmp_path / "whole")
    assert list(resumed) == list(expected)
    for name, content in resumed.items():
        assert content == expected[name], name
    assert len(resumed["rounds"]) == rounds

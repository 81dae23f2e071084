"""A run that is killed with no warning and gone on with ends as one that was not, bit by bit."""

import json
import signal

import pytest

from edgefl.cli.main import run_command as edgefl
from edgefl.storage.checkpoint import decode_server_state


def files_of(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


def everything(out):
    """All that a run leaves, but for times and what it ran on."""
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
            for path in files_of(out / name)
        },
    }


def is_past_a_checkpoint(out):
    """Whether rounds were played after the checkpoint: those are lost."""
    if not (out / "server_state.safetensors").exists():
        return False
    state = decode_server_state((out / "server_state.safetensors").read_bytes())
    return (out / "rounds.jsonl").read_text().count("\n") > state.round


def is_personalizing(out):
    return any((out / "mixtures").glob("*/mixture.safetensors"))


@pytest.mark.parametrize(
    ("algorithm", "reached"),
    [("ditto", is_past_a_checkpoint), ("ifca", is_past_a_checkpoint), ("ditto", is_personalizing)],
)
def test_a_run_that_is_killed_and_gone_on_with(algorithm, reached, tmp_path, prepare, start, until, capfd):
    rounds = 60 if reached is is_past_a_checkpoint else 5
    config, killed = prepare("killed", algorithm=algorithm, rounds=rounds, clients=12)
    _, whole = prepare("whole", algorithm=algorithm, rounds=rounds, clients=12)
    process = start("simulate", config, "--out", killed, "--resume", "--mixtures")
    until(lambda: reached(tmp_path / "killed"), process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert edgefl(["simulate", config, "--out", killed, "--resume", "--mixtures"]) == 0
    assert f"of {rounds} rounds are done" in capfd.readouterr().err
    assert edgefl(["simulate", config, "--out", whole, "--resume", "--mixtures"]) == 0
    one = everything(tmp_path / "killed")
    two = everything(tmp_path / "whole")
    assert list(one) == list(two)
    for name, found in one.items():
        assert found == two[name], name
    assert len(one["rounds"]) == rounds

"""`edgefl simulate` and `edgefl compare` from end to end: output, files, and errors that end them early."""

import json
import os
import re
import resource
import select
import signal
import time
from pathlib import Path

import pytest

from edgefl.base.verdict import as_dict, judge_federation
from edgefl.cli.main import run_command as edgefl
from edgefl.simulation.runs.table import format_result


def test_simulate_compiles_runs_and_prints_the_summary(prepare, capfd, tmp_path):
    """Only in this test the command compiles the plan itself, in a separate process."""
    config, prepared = prepare(rounds=2)
    out = tmp_path / "new"
    assert edgefl(["simulate", config, "--out", str(out), "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads((out / "summary.json").read_text())
    assert (printed["federation"], printed["algorithm"], printed["rounds"], len(printed["clients"])) == (
        "small",
        "ditto",
        2,
        4,
    )
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [each["round"] for each in rounds] == [1, 2]
    assert all(len(each["updates"]) == 3 for each in rounds)
    assert printed["bytes_up"] == sum(each["bytes_up"] for each in rounds)
    assert printed["figures"]["accuracy_mixture"]["count"] == 4
    verdict = judge_federation(printed["clients"], algorithm="ditto", num_classes=10)
    assert printed["verdict"] == as_dict(verdict)
    assert format_result(printed).splitlines()[-1] == verdict.sentence
    for row in printed["clients"]:
        assert 0 <= row["accuracy_mixture"] <= 1
    assert sum(row["n_train"] + row["n_validation"] for row in printed["clients"]) == 120
    assert sum(row["n_test"] for row in printed["clients"]) == 40
    for name in ("plan.json", "plan.tflite", "initial.safetensors"):
        assert (out / "plan" / name).read_bytes() == (Path(prepared) / "plan" / name).read_bytes()


def test_rounds_without_training_have_no_loss(prepare, capfd):
    config, out = prepare(algorithm="local", rounds=1)
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 0
    captured = capfd.readouterr()
    assert "round 1/1: " in captured.err
    assert "nan" not in captured.err + captured.out

    def refuse_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    lines = Path(out, "rounds.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=refuse_constant) for line in lines]
    assert [record["loss"] for record in records] == [None]


@pytest.mark.parametrize(
    ("algorithm", "key"), [("clustered", "adjusted_rand_index"), ("fedmix", "adjusted_rand_index_experts")]
)
def test_summary_compares_clusters_or_experts_with_the_truth(prepare, capfd, algorithm, key):
    partition = 'name = "tasks"\nclusters = 2\nnum_tasks = 4\nsamples = 20\ntest_samples = 2\nimbalance = 1.0'
    config, out = prepare(algorithm=algorithm, rounds=3, num_train=400, partition=partition)
    assert edgefl(["simulate", config, "--out", out, "--resume", "--json"]) == 0
    summary = json.loads(capfd.readouterr().out)
    assert -1 <= summary[key] <= 1
    for name in ("precision_mixture", "precision_shipped"):
        assert summary["figures"][name]["count"] == 4
        assert all(0 <= row[name] <= 1 for row in summary["clients"])
    lines = format_result(summary)
    assert "precision mixture" in lines
    assert (
        f"{'clusters' if algorithm == 'clustered' else 'experts'} against the truth: adjusted Rand" in lines
    )


def test_runs_with_one_and_two_processes_are_identical(prepare, capfd, tmp_path):
    """The clients of the algorithm keep a state, and the partition has true clusters."""
    summaries = []
    states = []
    for name, processes in (("one", "1"), ("two", "2")):
        partition = (
            'name = "tasks"\nclusters = 2\nnum_tasks = 4\nsamples = 20\ntest_samples = 2\nimbalance = 1.0'
        )
        config, out = prepare(name, algorithm="clustered", rounds=4, num_train=400, partition=partition)
        assert (
            edgefl(
                [
                    "simulate",
                    config,
                    "--out",
                    out,
                    "--resume",
                    "--processes",
                    processes,
                    "--json",
                    "--mixtures",
                ]
            )
            == 0
        )
        summaries.append(json.loads(capfd.readouterr().out))
        paths = [
            path
            for directory in ("clients", "mixtures")
            for path in Path(out, directory).rglob("*")
            if path.is_file()
        ]
        states.append(
            {
                str(path.relative_to(out)): path.read_bytes()
                for path in [*paths, Path(out, "server_state.safetensors")]
            }
        )
    first, second = (
        {key: value for key, value in each.items() if key not in ("seconds", "command")} for each in summaries
    )
    assert first == second
    assert states[0] == states[1]
    assert len(states[0]) > 2 * 4, "each client keeps a state and a mixture"
    assert -1 <= first["adjusted_rand_index"] <= 1

    picture = tmp_path / "both.png"
    assert edgefl(["compare", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(picture)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["per", "cent", "one", "two"]
    (row,) = [line.split() for line in lines if line.startswith("accuracy mixture mean")]
    assert row[-2:] == [f"{100 * first['figures']['accuracy_mixture']['mean']:.2f}"] * 2


def list_spawned_children(pid: int) -> list[int]:
    """Return the spawned children of a process, without the resource tracker, which runs no client."""
    spawned = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
                spawned.append(int(child))
    return spawned


def wait_for_error(process) -> str:
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert "Traceback" not in err
    return err.strip().splitlines()[-1]


@pytest.mark.skipif(
    not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(),
    reason="this system does not list children",
)
def test_killed_client_process_ends_the_simulation_with_an_error(prepare, start, wait_until):
    config, out = prepare(rounds=5000)
    process = start("simulate", config, "--out", out, "--resume", "--processes", "2", "--json")
    wait_until(
        lambda: (Path(out) / "rounds.jsonl").exists() and len(list_spawned_children(process.pid)) == 2,
        process,
    )
    os.kill(list_spawned_children(process.pid)[0], signal.SIGKILL)
    assert (
        "a process of the simulation was killed, probably because memory ran out; run fewer processes"
        in wait_for_error(process)
    )


@pytest.mark.skipif(
    not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(),
    reason="this system does not list children",
)
def test_no_process_outlives_the_simulation(prepare, start):
    config, out = prepare(rounds=5000)
    process = start("simulate", config, "--out", out, "--resume", "--processes", "2", "--json")
    deadline = time.monotonic() + 120
    while (
        len(children := list_spawned_children(process.pid)) < 2 or not (Path(out) / "rounds.jsonl").exists()
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
    handles = [os.pidfd_open(child) for child in children]
    process.kill()
    for handle in handles:  # readable when that process has ended
        assert select.select([handle], [], [], 60)[0]
        os.close(handle)


@pytest.mark.skipif(
    not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(),
    reason="this system does not list children",
)
def test_killed_compiling_process_ends_the_command_with_an_error(prepare, start, wait_until, tmp_path):
    config, _ = prepare()
    process = start("simulate", config, "--out", str(tmp_path / "new"))
    wait_until(lambda: list_spawned_children(process.pid), process)
    os.kill(list_spawned_children(process.pid)[0], signal.SIGKILL)
    assert "the process that compiles the plan ended early" in wait_for_error(process)


def limit_file_size(size: int):
    """Return a function that limits the file size of a process, as a full disk does."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_full_disk_is_reported_and_the_run_can_be_resumed(prepare, start):
    """40 samples take 125,568 bytes. A server state of six models takes 190,000."""
    config, out = prepare(algorithm="ifca", num_train=40, num_experts=6)
    _, whole = prepare("whole", algorithm="ifca", num_train=40, num_experts=6)
    message = wait_for_error(
        start("simulate", config, "--out", out, "--resume", preexec_fn=limit_file_size(140_000))
    )
    assert (
        message == f"edgefl: cannot write {out}/server_state.safetensors: File too large; free some space, "
        "then continue with --resume"
    )
    message = wait_for_error(
        start("simulate", config, "--out", out, "--resume", preexec_fn=limit_file_size(100_000))
    )
    assert re.search(
        r"cannot write 125440 bytes to .*x_train\.npy: .*; free some space, or set TMPDIR", message
    )
    for each in (out, whole):
        assert edgefl(["simulate", config, "--out", each, "--resume"]) == 0
    assert (
        Path(out, "server_state.safetensors").read_bytes()
        == Path(whole, "server_state.safetensors").read_bytes()
    )
    assert len(Path(out, "rounds.jsonl").read_text().splitlines()) == 3

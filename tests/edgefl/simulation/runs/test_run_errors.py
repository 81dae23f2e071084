"""Errors of a run: one clear message, exit code 1, and no traceback."""

import json
import re
from pathlib import Path

import pytest

from edgefl.cli.main import run_command as edgefl


@pytest.fixture
def run_failing(capfd):
    """Run a command that must fail, and return its message. An unexpected error is raised."""

    def run(*arguments: str) -> str:
        capfd.readouterr()
        assert edgefl(arguments) == 1
        out, err = capfd.readouterr()
        assert out == ""
        assert "Traceback" not in err
        return err.strip().splitlines()[-1].removeprefix("edgefl: ")

    return run


def edit(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


def test_unknown_key_is_named_with_a_suggestion(run_failing, prepare):
    config, out = prepare()
    edit(config, "rounds", "roundz")
    assert "[federation] has an unknown key 'roundz'; did you mean 'rounds'?" in run_failing(
        "simulate", config, "--out", out
    )


def test_resume_with_another_configuration_is_refused(run_failing, prepare):
    config, out = prepare()
    edit(config, "epochs = 1", "epochs = 2")
    assert run_failing("simulate", config, "--out", out, "--resume") == (
        f"{out} contains a run with options = {{'epochs': 1}}, expected {{'epochs': 2}}; continue it with "
        "its own configuration, or pass another --out"
    )
    edit(config, "epochs = 2", "epochs = 1")
    assert "contains a run with seed = 3, expected 4; continue" in run_failing(
        "simulate", config, "--out", out, "--resume", "--seed", "4"
    )


def test_run_of_an_older_edgefl_without_a_setting_is_continued(prepare, capfd):
    config, out = prepare()
    note = json.loads((Path(out) / "run.json").read_text())
    del note["config"]["training"]
    (Path(out) / "run.json").write_text(json.dumps(note))
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 0, capfd.readouterr().err


def test_data_set_of_another_shape_is_refused_before_the_model_is_compiled(run_failing, prepare, tmp_path):
    """`edgefl init` writes no data set for devices with CSV files, so the default one does not fit."""
    config, _ = prepare()
    edit(config, "input_shape = [28, 28, 1]", "input_shape = [64, 3]")
    out = tmp_path / "new"
    message = run_failing("simulate", config, "--out", str(out))
    assert message.startswith(
        "[data] digits has samples of shape [28, 28, 1], expected input_shape of [model], [64, 3]"
    )
    assert "npz:pi-1.npz" in message and not (out / "plan").exists()


def test_output_directory_in_use_is_refused(run_failing, prepare, tmp_path):
    config, out = prepare()
    assert "continue the run with --resume" in run_failing("simulate", config, "--out", out)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "notes.txt").write_text("mine")
    for name in ("file", "directory"):
        assert "is in use, expected a new or empty directory" in run_failing(
            "simulate", config, "--out", str(tmp_path / name)
        )
    assert (tmp_path / "file").read_text() == "mine"
    assert "--resume without --out" in run_failing("simulate", config, "--resume")


def test_partition_with_too_few_samples_or_clients_is_refused(run_failing, prepare, tmp_path):
    config, _ = prepare()
    new = str(tmp_path / "new")
    edit(config, "num_clients = 4", "num_clients = 70")
    assert "120 samples for 70 clients, expected at least 2 each; use fewer clients" in run_failing(
        "simulate", config, "--out", new
    )
    edit(config, 'name = "dirichlet"', 'name = "tasks"\nclusters = 5\nnum_tasks = 10')
    edit(config, "num_clients = 70", "num_clients = 4")
    assert "4 clients in 5 clusters, expected at least one each; use more clients" in run_failing(
        "simulate", config, "--out", new
    )
    assert not (tmp_path / "new").exists()


def test_nonfinite_loss_of_all_clients_names_them_and_the_round(run_failing, prepare, caplog):
    config, out = prepare(rounds=5, learning_rate=1e38)
    message = run_failing("simulate", config, "--out", out, "--resume")
    assert re.search(r"in round \d: 3 of 3 clients have a loss that is no finite number; lower lear", message)
    named = re.findall(r"client-00\d, round \d: train.*: the loss is nan", "\n".join(caplog.messages))
    assert len(named) == 3


SUMMARY_END = (
    ', "algorithm": "", "data": "", "clients": [], "rounds": 1, "seconds": 1, "bytes_up": 1, "bytes_down": 1}'
)


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.write_bytes(
        {"cut": content[: len(content) // 2], "zeros": bytes(len(content)), "text": b"{}\n"}[how]
    )


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *[
            (name, how)
            for name in ("run.json", "server_state.safetensors", "rounds.jsonl")
            for how in ("cut", "zeros", "text")
        ],
        ("plan/plan.json", "cut"),
        ("plan/plan.json", "text"),
        ("plan/initial.safetensors", "cut"),
        ("clients/client-000.3.safetensors", "zeros"),
        ("held.3.json", "cut"),
    ],
)
def test_damaged_run_file_is_named(name, how, run_failing, prepare):
    config, out = prepare()
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 0
    edit(config, "rounds = 3", "rounds = 4")
    damage(Path(out) / name, how)
    assert f"{out}/{name.replace('plan/plan.json', 'plan')}" in run_failing(
        "simulate", config, "--out", out, "--resume"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"figures": 3}',
        '{"figures": {"accuracy_mixture": {"mean": 0.5}}' + SUMMARY_END,
        '{"figures": []' + SUMMARY_END,
    ],
)
def test_compare_names_missing_or_invalid_summary(text, run_failing, tmp_path):
    (tmp_path / "a").mkdir()
    assert f"{tmp_path / 'a' / 'summary.json'}" in run_failing("compare", str(tmp_path / "a"))
    (tmp_path / "a" / "summary.json").write_text(text)
    assert f"{tmp_path / 'a' / 'summary.json'}" in run_failing("compare", str(tmp_path / "a"))


def test_compare_reads_the_folder_of_an_aggregator(tmp_path, capsys):
    rows = [
        {"id": "pi-1", "n_train": 10.0, "accuracy_local": 0.5, "accuracy_shipped": 0.75, "bytes_up": 1000.0},
        {"id": "pi-2", "n_train": 30.0, "accuracy_local": 0.7, "accuracy_shipped": None, "bytes_up": 500.0},
    ]
    result = {"algorithm": "fedavg", "rounds": 4, "seconds": 37.6, "clients": rows}
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert edgefl(["compare", str(tmp_path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["accuracy", "local", "mean", "60.00"] in lines
    assert ["accuracy", "shipped", "mean", "75.00"] in lines
    assert ["rounds", "4"] in lines and ["seconds", "38"] in lines
    (tmp_path / "result.json").write_text('{"clients": 3}')
    assert edgefl(["compare", str(tmp_path)]) == 1
    assert "result.json is damaged" in capsys.readouterr().err

"""`edgefl export` and `edgefl infer` read what `edgefl simulate --mixtures` writes."""

import json
import shutil
from pathlib import Path

import pytest

from edgefl.cli.main import run_command as edgefl


@pytest.fixture
def simulated(prepare, capfd) -> Path:
    config, out = prepare(rounds=1)
    assert edgefl(["simulate", config, "--out", out, "--resume", "--mixtures", "--json"]) == 0
    capfd.readouterr()
    return Path(out)


def test_a_simulated_client_is_exported_and_measured(simulated, capfd, tmp_path) -> None:
    client = json.loads((simulated / "summary.json").read_text())["clients"][0]
    name = client.get("client") or client.get("id")
    moved = tmp_path / "elsewhere" / "run"  # a run contains no absolute paths
    moved.parent.mkdir()
    shutil.move(simulated, moved)
    state = moved / "mixtures" / name
    model = tmp_path / "model"
    assert edgefl(["export", "--state", str(state), "-o", str(model), "--json"]) == 0, capfd.readouterr().err
    report = json.loads(capfd.readouterr().out)
    assert (report["num_test"], report["client_id"]) == (client["n_test"], name)
    assert report["accuracy_float"] == pytest.approx(client["accuracy_shipped"])
    assert edgefl(["infer", str(model / "model.tflite"), "--data", str(state / "shard.npz"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["samples"] == client["n_test"]


def test_export_of_a_run_directory_suggests_client_states(simulated, capfd, tmp_path) -> None:
    for directory in (simulated, simulated / "mixtures"):
        assert edgefl(["export", "--state", str(directory), "-o", str(tmp_path / "out")]) == 1
        error = capfd.readouterr().err
        assert "is a simulation, expected the state of one client" in error
        assert f"--state {simulated / 'mixtures'}" in error
    shutil.rmtree(simulated / "mixtures")
    assert edgefl(["export", "--state", str(simulated), "-o", str(tmp_path / "out")]) == 1
    assert "--mixtures" in capfd.readouterr().err


def test_unknown_data_key_error_lists_valid_keys(tmp_path, capfd) -> None:
    (tmp_path / "f.toml").write_text('[data]\nname = "digits"\ntrain_samples = 100\n')
    assert edgefl(["simulate", str(tmp_path / "f.toml"), "--out", str(tmp_path / "run")]) == 1
    error = capfd.readouterr().err
    assert "'train_samples'" in error and "num_train" in error


def test_all_clients_are_exported_by_one_command(simulated, capfd) -> None:
    assert edgefl(["export", "fleet", str(simulated), "--json"]) == 0, capfd.readouterr().err
    rows = json.loads(capfd.readouterr().out)
    clients = json.loads((simulated / "summary.json").read_text())["clients"]
    assert [row["id"] for row in rows] == [client["id"] for client in clients]
    for row, client in zip(rows, clients, strict=True):
        assert row["accuracy_float"] == pytest.approx(client["accuracy_shipped"])
        assert abs(row["accuracy_int8"] - row["accuracy_float"]) < 0.2
        model = simulated / "mixtures" / row["id"] / "model" / "model.tflite"
        assert row["tflite_bytes"] == model.stat().st_size
    assert edgefl(["export", "fleet", str(simulated)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == len(rows) + 1
    mean = sum(row["accuracy_int8"] for row in rows) / len(rows)
    assert lines[-1].startswith(f"mean of {len(rows)} clients: float ")
    assert lines[-1].endswith(f", int8 {mean:.4f}")


def test_export_of_a_run_without_models_is_refused(tmp_path, capfd) -> None:
    assert edgefl(["export", "fleet", str(tmp_path)]) == 1
    assert "--mixtures --resume" in capfd.readouterr().err

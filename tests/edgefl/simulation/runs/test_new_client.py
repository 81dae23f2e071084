"""`edgefl personalize`: a client that took part in no round, with labels and without."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.config import DataConfig, load_config
from edgefl.base.errors import StateError
from edgefl.cli.main import run_command as edgefl
from edgefl.data import load_data
from edgefl.data.npz import save_shard
from edgefl.learning.checkpoint import decode_server_state, encode_server_state
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.simulation.runs.directory import RunDirectory
from edgefl.simulation.runs.new_client import (
    list_participant_gates,
    open_finished_run,
    predict_for_new_client,
)
from edgefl.simulation.runs.pipeline import open_partitioned_dataset, play_run
from tests.edgefl.simulation.runs.conftest import format_config

COUNT = 30
FEDMIX = {"num_experts": 2, "server_learning_rate": 0.01, "phi_learning_rate": 0.5}


@pytest.fixture(scope="module")
def samples() -> tuple[np.ndarray, np.ndarray]:
    """Samples of digits that no client of the runs here has."""
    dataset = load_data(DataConfig(name="digits"), 1)
    return dataset.x_test[-COUNT:], dataset.y_test[-COUNT:]


@pytest.fixture
def simulate(prepare, capfd):
    """Run a small federation and return its directory."""

    def run(**options) -> Path:
        fedmix = FEDMIX if options.get("algorithm", "fedmix") == "fedmix" else {}
        config, out = prepare(**{"algorithm": "fedmix", "rounds": 2, **fedmix, **options})
        assert edgefl(["simulate", config, "--out", out, "--resume", "--json"]) == 0, capfd.readouterr().err
        capfd.readouterr()
        return Path(out)

    return run


def digest_files(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def run_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgefl", "personalize", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_unlabelled_samples_are_predicted_by_the_gates_of_the_participants(simulate, samples, tmp_path):
    x, y = samples
    run = simulate()
    np.savez(tmp_path / "unlabelled.npz", x=x)
    np.savez(tmp_path / "labelled.npz", x=x[:20], y=y[:20], x_test=x[20:], y_test=y[20:])
    before = digest_files(run)
    done = run_process(run, "--data", tmp_path / "unlabelled.npz", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["algorithm"], printed["labels"], printed["samples"]) == ("fedmix", False, COUNT)
    assert printed["accuracy"] is None
    assert sum(printed["gate"]) == pytest.approx(1)
    done = run_process(run, "--data", tmp_path / "labelled.npz", "--ignore-labels", "--json")
    ignored = json.loads(done.stdout)
    assert ignored["predictions"] == printed["predictions"]
    assert ignored["accuracy"] == pytest.approx(np.mean(np.array(printed["predictions"]) == y))
    assert digest_files(run) == before
    shown = run_process(run, "--data", tmp_path / "labelled.npz", "--ignore-labels").stdout
    assert f"accuracy {ignored['accuracy']:.4f}" in shown and "predictions by class: " in shown

    # The same by the definition, one gate after the other
    finished = open_finished_run(run)
    clients = json.loads((run / "summary.json").read_text())["clients"]
    sizes = {client["id"]: client["n_train"] for client in clients}
    assert len(finished.sample_counts) > 2 and finished.sample_counts.items() <= sizes.items()
    learner = LiteRTLearner(finished.plan)
    outputs = [
        learner.predict("hidden_logits", finished.state.models[f"expert{k}"], {"x": x}).astype(np.float64)
        for k in range(2)
    ]
    total = np.zeros((COUNT, 2))
    for gate in list_participant_gates(finished):
        width = len(gate.kernel)
        hidden = sum(q * output[:, :width] for q, output in zip(gate.responsibility, outputs, strict=True))
        powers = np.exp(hidden @ gate.kernel + gate.bias)
        total += gate.num_samples * powers / powers.sum(axis=1, keepdims=True)
    total /= total.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(printed["gate"], total.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("fedmix", {**FEDMIX, "personal_epochs": 0}), ("ditto", {}), ("clustered", {})],
)
def test_a_labelled_client_gets_the_model_that_the_simulator_makes(
    prepare, capfd, tmp_path, algorithm, options
):
    """The same figures and the same mixture as those of a client that a simulation only personalizes."""
    config_path, out = prepare(algorithm=algorithm, rounds=3, federation="", **options)
    config = load_config(Path(config_path))
    with open_partitioned_dataset(config) as partitioned:
        name = max(partitioned.shards)
        save_shard(tmp_path / "new.npz", partitioned.shards[name])
        run = RunDirectory(Path(out), config, "a test", resume=True)
        simulation = play_run(
            run,
            config,
            partitioned,
            without_rounds=[name],
            keep_result=lambda client_id, result: result,
        )
    state = tmp_path / "state"
    arguments = ["personalize", out, "--data", str(tmp_path / "new.npz"), "--id", name]
    assert edgefl([*arguments, "--out", str(state), "--json"]) == 0, capfd.readouterr().err
    printed = json.loads(capfd.readouterr().out)
    only_simulated = ("balanced_shipped", "precision_shipped", "precision_mixture")
    expected = {key: value for key, value in simulation.metrics[name].items() if key not in only_simulated}
    assert {key: printed[key] for key in expected} == expected
    assert len(printed["predictions"]) == printed["samples"] == printed["n_test"]
    assert edgefl(["export", "--state", str(state), "-o", str(tmp_path / "model"), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["client_id"] == name
    assert report["accuracy_float"] == pytest.approx(printed["accuracy_shipped"])
    assert edgefl(arguments) == 0
    shown = capfd.readouterr().out
    assert f"measured on {printed['samples']} held-out samples" in shown and " *" in shown


def test_a_federated_gate_serves_unlabelled_clients_of_a_deployment(simulate, samples, tmp_path, capfd):
    """The directory of an aggregator has the same files as a run, without client states.

    Its rounds.jsonl has null for a figure that is not known, and a line for the personalization. A round that
    was repeated after a restart has two lines.
    """
    x, _ = samples
    np.savez(tmp_path / "unlabelled.npz", x=x)
    for gate in ("local", "federated"):
        run = simulate(name=gate, gate=f'"{gate}"')
        shutil.rmtree(run / "clients")
        first, last = map(json.loads, (run / "rounds.jsonl").read_text().splitlines())
        personalization = {"round": 3, "phase": "personalize", "loss": None, "updates": {}}
        lines = [first | {"loss": 99.0}, first, last | {"accuracy_mean": None}, personalization]
        (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = edgefl(["personalize", str(run), "--data", str(tmp_path / "unlabelled.npz"), "--json"])
        captured = capfd.readouterr()
        assert done == (gate == "local")
        if gate == "local":
            assert "a local gate never leaves its device" in captured.err
            assert 'gate = "federated"' in captured.err
        else:
            assert len(json.loads(captured.out)["predictions"]) == COUNT


def test_errors_name_the_remedy(simulate, samples, tmp_path, capfd):
    x, y = samples
    run = simulate()
    arrays = {
        "fits": {"x": x, "y": y},
        "shape": {"x": x[:, :14], "y": y},
        "classes": {"x": x, "y": y + 5},
        "empty": {"x": x[:0]},
        "nan": {"x": np.where(np.arange(COUNT).reshape(-1, 1, 1, 1) == 3, np.nan, x)},
        "lengths": {"x": x, "y": y[:-1]},
    }
    for name, content in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **content)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    participant = min(open_finished_run(run).sample_counts)

    def refuse(name: str, *more: str, directory: Path = run) -> str:
        arguments = ["personalize", str(directory), "--data", str(tmp_path / f"{name}.npz"), *more]
        assert edgefl(arguments) == 1, capfd.readouterr().out
        error = capfd.readouterr().err
        assert "Traceback" not in error
        return error

    for more in ((), ("--ignore-labels",)):
        assert "expected (28, 28, 1)" in refuse("shape", *more)
        assert "expected 0 to 9 for 10 classes" in refuse("classes", *more)
        assert "expected at least one sample" in refuse("empty", *more)
        assert "NaN or infinite values in 1 of 30 samples" in refuse("nan", *more)
        assert "expected equal numbers" in refuse("lengths", *more)
        assert "no shard at" in refuse("missing", *more)
    assert f"{participant} took part in the federation" in refuse("fits", "--id", participant)
    assert "such as pi-1" in refuse("fits", "--id", "a/b")
    assert "is in use" in refuse("fits", "--out", str(tmp_path / "used"))
    assert "--out without labels" in refuse("fits", "--ignore-labels", "--out", str(tmp_path / "new"))
    assert "check that this is the right directory" in refuse("fits", directory=tmp_path)
    (run / "server_state.safetensors").unlink()
    assert "has no server state" in refuse("fits")
    (run / "plan").rename(run / "elsewhere")
    assert "has no plan yet; finish the federation" in refuse("fits")


def test_an_unfinished_federation_is_refused(prepare, samples, tmp_path, capfd):
    x, y = samples
    np.savez(tmp_path / "new.npz", x=x, y=y)
    config, out = prepare(algorithm="fedmix", rounds=1, **FEDMIX)
    assert edgefl(["simulate", config, "--out", out, "--resume", "--json"]) == 0
    note = Path(out, "run.json")
    note.write_text(note.read_text().replace('"rounds": 1', '"rounds": 5'))
    capfd.readouterr()
    assert edgefl(["personalize", out, "--data", str(tmp_path / "new.npz")]) == 1
    assert "has 1 of 5 rounds; finish the federation" in capfd.readouterr().err


def test_a_diverged_federation_is_refused(simulate, samples, tmp_path, capfd):
    x, y = samples
    np.savez(tmp_path / "new.npz", x=x, y=y)
    run = simulate()
    path = run / "rounds.jsonl"
    *others, last = map(json.loads, path.read_text().splitlines())
    lines = [*others, last | {"loss": 40.0, "accuracy_mean": 0.1}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert edgefl(["personalize", str(run), "--data", str(tmp_path / "new.npz")]) == 1
    error = capfd.readouterr().err
    assert f"{run}: training diverged in round 2: the median loss is 40" in error
    assert "server_learning_rate" in error
    assert edgefl(["simulate", f"{run}.toml", "--out", str(run), "--resume"]) == 1
    assert "training diverged in round 2: the median loss is 40" in capfd.readouterr().err
    path.unlink()
    assert edgefl(["personalize", str(run), "--data", str(tmp_path / "new.npz")]) == 1
    assert "rounds.jsonl has no rounds; check that this is the right directory" in capfd.readouterr().err


def test_the_plan_of_another_federation_is_refused(simulate, samples, tmp_path, capfd):
    np.savez(tmp_path / "new.npz", x=samples[0], y=samples[1])
    run = simulate(algorithm="fedavg")
    note = run / "run.json"
    note.write_text(note.read_text().replace('"fedavg"', '"fedprox"'))
    assert edgefl(["personalize", str(run), "--data", str(tmp_path / "new.npz")]) == 1
    assert "plan is a plan of fedavg, expected fedprox" in capfd.readouterr().err


def test_an_algorithm_without_gates_needs_labels(simulate, samples, tmp_path, capfd):
    x, y = samples
    np.savez(tmp_path / "unlabelled.npz", x=x)
    np.savez(tmp_path / "labelled.npz", x=x, y=y)
    run = str(simulate(algorithm="fedavg"))
    for data in (["unlabelled.npz"], ["labelled.npz", "--ignore-labels"]):
        assert edgefl(["personalize", run, "--data", str(tmp_path / data[0]), *data[1:]]) == 1
        error = capfd.readouterr().err
        assert "fedavg, which cannot predict for a client without labels, expected fedmix" in error
    assert edgefl(["personalize", run, "--data", str(tmp_path / "labelled.npz"), "--json"]) == 0
    assert "accuracy_shipped" in json.loads(capfd.readouterr().out)


def test_a_damaged_gate_is_named(simulate, samples, tmp_path, capfd):
    np.savez(tmp_path / "unlabelled.npz", x=samples[0])
    run = simulate()
    path = next((run / "clients").glob("*.2.safetensors"))
    path.write_bytes(path.read_bytes()[:50])
    assert edgefl(["personalize", str(run), "--data", str(tmp_path / "unlabelled.npz")]) == 1
    assert path.name in capfd.readouterr().err


def test_damaged_values_of_a_run_are_named(simulate):
    run = simulate()
    state = decode_server_state((run / "server_state.safetensors").read_bytes())
    damaged = {
        name: {key: array * np.nan for key, array in weights.items()}
        for name, weights in state.models.items()
    }
    (run / "server_state.safetensors").write_bytes(encode_server_state(replace(state, models=damaged)))
    with pytest.raises(StateError, match=r"server_state.safetensors has values in .* not finite; run"):
        open_finished_run(run)
    (run / "server_state.safetensors").write_bytes(encode_server_state(state))
    rounds = run / "rounds.jsonl"
    rounds.write_text(re.sub(r'"num_samples": [\d.]+', '"num_samples": 0', rounds.read_text()))
    with pytest.raises(
        StateError, match=r"rounds.jsonl has num_samples 0 of .*, expected a number above 0; run"
    ):
        open_finished_run(run)


def test_gate_with_other_shapes_is_refused(simulate):
    finished = open_finished_run(simulate(gate='"federated"'))
    for name, array in finished.state.models["gate"].items():
        for wrong in (array[..., :1], np.full_like(array, np.nan)):
            models = {**finished.state.models, "gate": {**finished.state.models["gate"], name: wrong}}
            with pytest.raises(
                StateError, match=r"gate of .* is damaged, expected finite values for 2 experts; run"
            ):
                list_participant_gates(replace(finished, state=replace(finished.state, models=models)))


@pytest.mark.slow
def test_batch_norms_take_the_statistics_of_many_unlabelled_samples(samples, tmp_path):
    """With wrong statistics of the server, the predictions for 60 samples stay, and those for 30 change."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Flatten(),
            layers.Dense(8),
            layers.BatchNormalization(name="bn"),
            layers.ReLU(),
            layers.Dense(10),
        ]
    )
    model.save(tmp_path / "with_bn.keras")
    text = format_config(algorithm="fedmix", rounds=2, **FEDMIX)
    config, out = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(text.replace('"softmax"', f'"{tmp_path / "with_bn.keras"}"'))
    assert edgefl(["simulate", str(config), "--out", str(out), "--json"]) == 0
    finished = open_finished_run(out)
    gates = list_participant_gates(finished)
    shifted = {
        name: {key: array + 3 if key == "bn/moving_mean" else array for key, array in weights.items()}
        for name, weights in finished.state.models.items()
    }
    wrong = replace(finished, state=replace(finished.state, models=shifted))
    for x, is_same in ((np.concatenate([samples[0], 1 - samples[0]]), True), (samples[0], False)):
        outputs = [predict_for_new_client(run, gates, x)[0] for run in (finished, wrong)]
        assert np.allclose(*outputs, atol=1e-5) is is_same


def test_the_resumed_rounds_of_a_run_count(simulate):
    """A run that was resumed with more rounds keeps the number of rounds of its start in run.json."""
    run = simulate()
    note = run / "run.json"
    note.write_text(note.read_text().replace('"rounds": 2', '"rounds": 1'))
    finished = open_finished_run(run)
    assert finished.config == replace(load_config(run.with_suffix(".toml")), rounds=2)

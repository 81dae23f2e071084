"""The accuracy benchmark: its rule computed by hand, the training of one client, and a small run."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from edgefl.base.config import DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.base.errors import ConfigError
from edgefl.learning.algorithms.names import GLOBAL, RECEIVED_PREFIX, with_prefix
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.simulation.runs.pipeline import open_partitioned_dataset
from edgefl.simulation.simulate import simulate
from tests.benchmarks.__main__ import benchmarks
from tests.benchmarks.accuracy import comparison, keras_trainer
from tests.benchmarks.accuracy.comparison import (
    build,
    compute_agreement,
    make_benchmark_config,
    render,
    save_model,
)
from tests.benchmarks.flower import read_package_versions, write_app

FLWR_PYTHON = os.environ.get("EDGEFL_FLWR_PYTHON", "")


def make_small_config(algorithm: str, seed: int) -> FederationConfig:
    return replace(
        make_benchmark_config(algorithm, seed),
        rounds=2,
        model=ModelConfig(name="softmax", input_shape=(28, 28, 1), num_classes=10),
        data=DataConfig(name="digits"),
        partition=PartitionConfig(name="dirichlet", num_clients=2, options={"alpha": 0.5}),
    )


def test_agreement_rule_matches_hand_computed_values():
    # differences 1, 0, 2: mean 1, standard deviation 1, standard error 1 / sqrt(3)
    same = compute_agreement([80.0, 82.0, 84.0], [79.0, 82.0, 82.0])
    assert (same.edgefl, same.flower, same.difference) == (82.0, 81.0, 1.0)
    assert same.standard_error == pytest.approx(0.57735, abs=1e-5)
    assert same.is_same
    # differences -3, -5: mean -4, standard error sqrt(2) / sqrt(2)
    other = compute_agreement([80.0, 80.0], [83.0, 85.0])
    assert (other.difference, other.standard_error) == (-4.0, pytest.approx(1.0))
    assert not other.is_same
    assert compute_agreement([80.0, 81.0], [80.0, 81.0]).is_same


def test_report_has_a_table_and_a_sentence_per_algorithm():
    def make_rows(algorithm, pairs):
        return [
            {"algorithm": algorithm, "seed": seed, "edgefl": ours, "flower": theirs}
            for seed, (ours, theirs) in enumerate(pairs, 1)
        ]

    result = {
        "command": "python -m tests.benchmarks accuracy",
        "machine": "m",
        "versions": {"numpy": "2"},
        "flower_versions": {"flwr": "1"},
        "federation": "f",
        "rows": make_rows("fedavg", [(80, 79), (82, 82), (84, 82)])
        + make_rows("fedprox", [(80, 83), (80, 85)]),
        "agreement": {
            "fedavg": vars(compute_agreement([80, 82, 84], [79, 82, 82])),
            "fedprox": vars(compute_agreement([80, 80], [83, 85])),
        },
    }
    lines = render(result).splitlines()
    assert lines[1:3] == ["m; numpy 2", "Flower: flwr 1"]
    assert [line.split() for line in lines[5:13]] == [
        ["algorithm", "seed", "edgefl", "%", "Flower", "%", "difference"],
        ["fedavg", "1", "80.00", "79.00", "+1.00"],
        ["fedavg", "2", "82.00", "82.00", "+0.00"],
        ["fedavg", "3", "84.00", "82.00", "+2.00"],
        ["fedavg", "mean", "82.00", "81.00", "+1.00"],
        ["fedprox", "1", "80.00", "83.00", "-3.00"],
        ["fedprox", "2", "80.00", "85.00", "-5.00"],
        ["fedprox", "mean", "80.00", "84.00", "-4.00"],
    ]
    assert lines[14:] == [
        "fedavg: the same accuracy within seeds. The mean difference is +1.00 points with a standard error "
        "of 0.58: at most two standard errors.",
        "fedprox: not the same accuracy. The mean difference is -4.00 points with a standard error of 1.00: "
        "more than two standard errors.",
    ]


def test_a_python_without_a_package_is_an_error_with_a_remedy(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    for python in (bare, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match=r"has no flwr, tensorflow, .*; give --flwr-python a Python"):
            comparison.run_accuracy_bench(str(python), 2, "command", lambda line: None)
    with pytest.raises(ConfigError, match=r"has no no-such-package; .*\(pip install no-such-package\)"):
        read_package_versions(sys.executable, ["numpy", "no-such-package"])
    assert read_package_versions(sys.executable, ["numpy"]) == {"numpy": np.__version__}


def test_the_command_without_flower_ends_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "tests.benchmarks", "accuracy", "--flwr-python", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "benchmarks: " in done.stderr and "has no flwr" in done.stderr
    assert "Traceback" not in done.stderr
    assert CliRunner().invoke(benchmarks, ["accuracy"]).exit_code == 2


def test_written_flower_app_contains_its_configuration(tmp_path):
    app = write_app(tmp_path / "app", "client", "server", {"out": 'a "b"', "rounds": 3, "rate": 0.5})
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"] == {"out": 'a "b"', "rounds": 3, "rate": 0.5}
    assert (app / "app" / "client.py").read_text() == "client"


@pytest.mark.parametrize(
    ("algorithm", "mu"), [pytest.param("fedavg", 0.0, marks=pytest.mark.slow), ("fedprox", 0.5)]
)
def test_flower_client_trains_the_same_weights_as_edgefl(tmp_path, algorithm, mu):
    pytest.importorskip("tensorflow", reason="the aggregator extra is not installed")
    config = replace(make_benchmark_config(algorithm, 1), options={"mu": mu} if mu else {})
    plan, initial = build(config)
    options = plan.spec.options
    model = tmp_path / "model.keras"
    save_model(config, initial, model)
    rng = np.random.default_rng(2)
    samples = 23  # the last batch is not full
    x = rng.random((samples, 28, 28, 1), dtype=np.float32)
    y = rng.integers(0, 10, samples)
    expected, loss = LiteRTLearner(plan).fit(
        "train",
        {**initial, **with_prefix(RECEIVED_PREFIX, initial)},
        {"x": x},
        y,
        epochs=3,
        rng=np.random.default_rng(3),
    )
    rng = np.random.default_rng(3)
    orders = [rng.permutation(samples) for _ in range(3)]
    training = keras_trainer.Training(str(model), options["learning_rate"], options["momentum"], mu)
    for _ in range(2):  # momentum starts at zero again
        trained, flower_loss = training.fit(initial, x, y, orders, options["batch_size"])
        assert flower_loss == pytest.approx(loss, abs=1e-5)
        assert trained.keys() == expected.keys()
        for name, value in trained.items():
            np.testing.assert_allclose(value, expected[name], atol=1e-5)
    moved = max(np.abs(expected[name] - initial[name]).max() for name in expected)
    assert moved > 1e-3


@pytest.mark.slow
def test_both_accuracy_measurements_agree():
    pytest.importorskip("tensorflow", reason="the aggregator extra is not installed")
    config = make_small_config("fedavg", 1)
    with open_partitioned_dataset(config) as shared:
        plan, initial = build(config)
        simulation = simulate(plan, initial, shared.shards, config)
        model = simulation.state.models[GLOBAL]
        assert comparison.measure_accuracy(plan, model, shared.shards) == pytest.approx(
            comparison.compute_mean_accuracy(simulation), abs=1e-12
        )
        assert comparison.measure_accuracy(plan, initial, shared.shards) < comparison.compute_mean_accuracy(
            simulation
        )
    for metrics in simulation.metrics.values():
        assert metrics["n_validation"] == 0


@pytest.mark.slow
@pytest.mark.skipif(not FLWR_PYTHON, reason="EDGEFL_FLWR_PYTHON names no Python with flwr and tensorflow")
@pytest.mark.timeout(900)
def test_small_accuracy_benchmark_with_flower_succeeds(monkeypatch, tmp_path):
    monkeypatch.setattr(comparison, "make_benchmark_config", make_small_config)
    out = tmp_path / "accuracy.json"
    ran = CliRunner().invoke(
        benchmarks,
        ["accuracy", "--flwr-python", FLWR_PYTHON, "--seeds", "2", "--out", str(out)],
        catch_exceptions=False,
    )
    assert ran.exit_code == 0, ran.output
    result = json.loads(out.read_text())
    assert [(row["seed"], row["algorithm"]) for row in result["rows"]] == [
        (seed, algorithm) for seed in (1, 2) for algorithm in ("fedavg", "fedprox")
    ]
    for row in result["rows"]:
        assert row["edgefl"] == pytest.approx(row["flower"], abs=5.0) and row["edgefl"] > 30
    for text in ("fedavg: ", "fedprox: ", "flwr 1.", result["machine"]):
        assert text in ran.stdout

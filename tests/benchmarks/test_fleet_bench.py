"""A small run of the fleet benchmark with real processes and a broker with certificates."""

import json

import pytest
from click.testing import CliRunner

from edgefl.base.errors import ConfigError, EdgeflError
from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.benchmarks.__main__ import benchmarks
from tests.benchmarks.fleet import comparison, training

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


@pytest.mark.slow
def test_small_fleet_benchmark_accepts_every_update_once(monkeypatch, tmp_path):
    # Sixty clients, because tasks are sent fifty at a time
    small = comparison.Sizes(pair=3, pair_rounds=3, loads=((60, 2),), model_bytes=(20_000,))
    monkeypatch.setattr("tests.benchmarks.__main__.Sizes", lambda: small)
    out = tmp_path / "fleet.json"
    ran = CliRunner().invoke(
        benchmarks, ["fleet", "--repeats", "1", "--out", str(out)], catch_exceptions=False
    )
    assert ran.exit_code == 0, ran.output
    result = json.loads(out.read_text())
    (row,) = result["beside"]
    assert row["flower"] is None
    assert row["floor"]["round_s"] > 0 and row["floor_tls"]["round_s"] > 0
    for load in (*row["edgefl"]["runs"], *result["fleets"]):
        assert load["updates_accepted_once"] == load["updates_expected"] == load["clients"] * load["rounds"]
        assert (
            load["clients_left_out"],
            load["dropped_by_broker"],
            load["dropped_by_clients"],
            load["rejected"],
        ) == (0, 0, 0, 0)
        assert load["bytes_a_round"]["up"] > load["model_bytes"] > 19_000
        assert load["aggregator_mb"] > 20 and load["round_s"] > 0 and load["first_round_s"] > 0
        assert load["aggregator_cpu_s"] > 0
    for text in ("paho, QoS 1, TLS", "edgefl, TLS, signed", "9 of 9", "120 of 120", result["machine"]):
        assert text in ran.stdout


def test_a_python_without_flower_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(ConfigError, match=r"has no flwr; give --flwr-python"):
        comparison.run_fleet_bench(
            comparison.Sizes(),
            1,
            str(tmp_path / "python"),
            "python -m tests.benchmarks fleet",
            lambda line: None,
        )


@pytest.mark.slow
def test_training_benchmark_compares_a_fleet_with_local_training(monkeypatch, tmp_path):
    pytest.importorskip("tensorflow")
    pytest.importorskip("sklearn")
    small = training.TrainingSizes(data="digits", clients=2, samples=30, rounds=3)
    monkeypatch.setattr("tests.benchmarks.__main__.TrainingSizes", lambda: small)
    out = tmp_path / "training.json"
    command = ["fleet-training", "--epochs", "2", "--repeats", "1", "--out", str(out)]
    ran = CliRunner().invoke(benchmarks, command, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    result = json.loads(out.read_text())
    (row,) = result["rows"]
    seconds = row["round_s"]
    assert row["epochs"] == 2 and row["model_bytes"] == 4 * 61_706
    assert seconds["training"] > 0 and seconds["paho"] > 0
    assert row["ratio"] == pytest.approx(seconds["edgefl"] / (seconds["training"] + seconds["paho"]))
    # The devices do all work of the local training, and more
    (devices,), (local,) = row["runs"]["edgefl"], row["runs"]["training"]
    assert devices["cpu_s"]["clients"] > local["cpu_s"]["clients"] > 0
    assert devices["cpu_s"]["aggregator"] > 0 and devices["cpu_s"]["broker"] > 0
    assert row["cpu_ratio"] == pytest.approx(sum(devices["cpu_s"].values()) / local["cpu_s"]["clients"])
    assert "2 clients, LeNet-5, 30 samples each" in ran.stdout and result["machine"] in ran.stdout


def test_error_of_a_failed_training_process_names_its_cause(tmp_path):
    plan = tmp_path / "no-plan"
    with pytest.raises(EdgeflError, match=r"a training process ended: .*no-plan"):
        training.run_local_training(training.TrainingSizes(clients=1), plan, tmp_path, tmp_path)

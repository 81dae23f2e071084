"""The fleet benchmark runs, small: real processes, a broker with certificates, updates accepted once."""

import json

import pytest
from click.testing import CliRunner

from edgefl.errors import ConfigError
from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.benchmarks.__main__ import benchmarks
from tests.benchmarks.fleet import comparison

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


def test_a_small_fleet_beside_the_floor(monkeypatch, tmp_path):
    # sixty: tasks go out fifty at a time
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
    for told in ("paho, QoS 1, TLS", "edgefl, TLS, signed", "9 of 9", "120 of 120", result["machine"]):
        assert told in ran.stdout


def test_a_python_without_flower_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(ConfigError, match=r"has no flwr; give --flwr-python"):
        comparison.run_fleet_bench(
            comparison.Sizes(),
            1,
            str(tmp_path / "python"),
            "python -m tests.benchmarks fleet",
            lambda line: None,
        )

"""`edgefl simulate` with a table [fleet]: a run in virtual time."""

import json
from pathlib import Path

import pytest

from edgefl.cli.main import run_command as edgefl

SYNC = "clients_per_round = 3\nmin_clients = 4"
ASYNC = 'mode = "async"\nbuffer = 2\nmin_clients = 4'
FLEET = "[fleet]\n"


def simulate(capfd, config, out):
    capfd.readouterr()
    assert edgefl(["simulate", config, "--out", str(out), "--resume", "--json"]) == 0
    return json.loads(capfd.readouterr().out)


def test_fleet_run_without_delays_equals_plain_run(prepare, capfd, tmp_path):
    config, out = prepare("plain", federation=SYNC)
    plain = simulate(capfd, config, out)
    config, out = prepare("virtual", federation=SYNC, tables=FLEET)
    virtual = simulate(capfd, config, out)
    assert virtual["clients"] == plain["clients"]
    assert virtual["figures"] == plain["figures"]
    assert virtual["bytes_up"] > 0
    assert virtual["fleet"]["acknowledged"] == virtual["fleet"]["accepted"] == 3 * 3 + 4
    hours = [json.loads(line)["hours"] for line in (Path(out) / "rounds.jsonl").read_text().splitlines()]
    assert hours == sorted(hours)
    assert virtual["seconds"] == pytest.approx(3600 * hours[-1], abs=1)


@pytest.mark.parametrize("tables", ["", FLEET], ids=["plain", "fleet"])
def test_a_run_that_learns_nothing_ends_with_a_warning(prepare, capfd, tables):
    config, out = prepare(algorithm="fedavg", federation=SYNC, tables=tables, learning_rate="1e-12")
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 0
    error = capfd.readouterr().err
    assert error.count("training has had no effect: the median loss of the last round is") == 1


@pytest.mark.parametrize("tables", ["", FLEET], ids=["plain", "fleet"])
def test_accuracy_well_above_chance_gives_no_warning(prepare, capfd, tables):
    """With Ditto the global model keeps its initial weights, and the personal models learn."""
    config, out = prepare(federation=SYNC, tables=tables, learning_rate="1e-12")
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 0
    assert "no effect" not in capfd.readouterr().err


def test_devices_that_are_absent_at_the_end_are_left_out(prepare, capfd):
    """Their last task or its answer is lost, or they are offline. The run has a summary of the others."""
    fleet = "hours_per_day = 12\n"
    federation = "clients_per_round = 2\nmin_clients = 2\nquorum = 0.5"
    config, out = prepare(federation=federation, tables=FLEET + fleet)
    summary = simulate(capfd, config, out)
    assert 0 < len(summary["clients"]) < 4
    assert (Path(out) / "summary.json").exists()


def test_asynchronous_run_with_slow_devices_prints_virtual_time(prepare, capfd):
    fleet = "samples_per_s = 5\nspeed_spread = 1.0\nmessage_loss = 0.05\n"
    config, out = prepare(federation=ASYNC, tables=FLEET + fleet)
    capfd.readouterr()
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 0
    printed = capfd.readouterr().out
    assert "virtual time: " in printed
    assert "messages lost" in printed
    assert "time to accuracy: " in printed


def test_run_in_virtual_time_cannot_be_continued(prepare, capfd):
    config, out = prepare(federation=SYNC, tables=FLEET)
    simulate(capfd, config, out)
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 1
    error = capfd.readouterr().err
    assert (
        f"{out} contains a run, expected a new directory: a run in virtual time cannot be continued" in error
    )
    assert "another --out" in error


def test_evaluate_every_is_refused_in_virtual_time(prepare, capfd):
    config, out = prepare(tables=FLEET)
    assert edgefl(["simulate", config, "--out", out, "--evaluate-every", "1"]) == 1
    assert "--evaluate-every cannot be used in virtual time" in capfd.readouterr().err


def test_asynchronous_rounds_need_the_fleet_table(prepare, capfd):
    config, out = prepare(federation=ASYNC)
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 1
    assert "add the table [fleet]" in capfd.readouterr().err


def test_misspelt_fleet_key_is_named(prepare, capfd, tmp_path):
    config, out = prepare()
    path = tmp_path / "misspelt.toml"
    path.write_text(f"{Path(config).read_text()}\n{FLEET}sample_per_s = 1.0\n")
    assert edgefl(["simulate", str(path), "--out", out]) == 1
    error = capfd.readouterr().err
    assert "[fleet] has an unknown key 'sample_per_s'; did you mean 'samples_per_s'?" in error

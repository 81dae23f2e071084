"""The answers of the first commands of a new user when something is missing or already exists. Real
processes and brokers.
"""

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgefl.cli import main as cli
from edgefl.protocol.transport.link import Link
from edgefl.protocol.wire.messages import Summary
from mqtt_broker.aggregator.results import describe_round
from tests.support.ports import choose_port

CONFIG = (
    '[federation]\nname = "hall"\nrounds = 2\nmin_clients = 1\n[model]\nname = "softmax"\ninput_shape = '
    "[4]\nnum_classes = 2\n"
)


def run_edgefl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgefl", *arguments], capture_output=True, text=True, timeout=200, check=False
    )


def test_aggregator_connects_to_the_broker_before_building_the_plan(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(CONFIG)
    result = run_edgefl(
        "aggregator",
        "start",
        "--config",
        str(tmp_path / "f.toml"),
        "--broker",
        f"mqtt://127.0.0.1:{choose_port()}",
        "--out",
        str(tmp_path / "out"),
    )
    assert result.returncode == 1
    assert "no broker at" in result.stderr and "edgefl broker start" in result.stderr
    assert "building the plan" not in result.stderr
    assert not (tmp_path / "out" / "plan").exists()


def test_broker_start_refuses_the_port_of_a_running_broker(
    mosquitto_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = mosquitto_url.rpartition(":")[2]
    assert cli.run_command(["broker", "start", "--port", port]) == 1
    errors = capsys.readouterr().err
    assert (
        "a broker answers there already" in errors
        and f"use mqtt://127.0.0.1:{port}" in errors
        and "--port 0" in errors
    )


def test_tls_without_enrolment_names_the_missing_option(secured: SimpleNamespace) -> None:
    """`edgefl monitor --broker mqtts://...` of a person without an enrolment."""
    with pytest.raises(Exception, match="cannot prove its identity") as caught:
        Link(f"mqtts://localhost:{secured.port}", "edgefl-test")
    assert "give --enrol" in str(caught.value) and "edgefl broker watcher" in str(caught.value)


def make_summary(**fields: Any) -> Summary:
    """Return the summary of a round of one second, without an accuracy."""
    without = {"accuracy_mean": math.nan, "accuracy_p10": math.nan, "accuracy_p90": math.nan}
    return Summary(**without, bytes_up=0, bytes_down=0, seconds=1.0, dropped=(), ts=0.0, **fields)


@pytest.mark.parametrize(("number", "expected"), [(10, "round 10/10 gate: "), (11, "gate: ")])
def test_log_omits_the_round_number_after_the_last_round(number: int, expected: str) -> None:
    """PFL-MF and other algorithms have additional phases after the rounds of the federation."""
    summary = make_summary(round=number, phase="gate", updates=2, loss=0.5)
    closed = SimpleNamespace(number=number, late=())
    assert describe_round(summary, closed, "gate", 10).startswith(expected)  # type: ignore[arg-type]


def test_round_without_losses_is_logged_without_a_loss() -> None:
    summary = make_summary(round=1, phase="federate", updates=3, loss=math.nan)
    closed = SimpleNamespace(number=1, late=())
    assert (
        describe_round(summary, closed, "federate", 2)
        == "round 1/2 federate: 3 updates, no loss reported, 1.00 s"
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("federate", "loss 0.5000, accuracy 87.5% (p10 80.0%, p90 95.0%)"),
        ("personalize", "accuracy 87.5% (p10 80.0%, p90 95.0%)"),
    ],
)
def test_round_log_contains_accuracy_and_spread_over_clients(phase: str, expected: str) -> None:
    summary = Summary(
        round=1,
        phase=phase,
        updates=3,
        loss=0.5,
        accuracy_mean=0.875,
        accuracy_p10=0.8,
        accuracy_p90=0.95,
        bytes_up=0,
        bytes_down=0,
        seconds=1.0,
        dropped=(),
        ts=0.0,
    )
    closed = SimpleNamespace(number=1, late=())
    assert describe_round(summary, closed, phase, 2).endswith(f"{phase}: 3 updates, {expected}, 1.00 s")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "logs_the_source", "expected"),
    [
        ("", True, "samples of shape [28, 28, 1], expected input_shape of [model], [4]"),
        ('[data]\nname = "npz:{folder}/own.npz"\n', False, "has no groups"),
    ],
    ids=["without-data", "own-file"],
)
def test_simulation_logs_its_data_source(
    data: str, logs_the_source: bool, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log comes before the data is checked. The simulation refuses either data set, so that it ends
    there.
    """
    np.savez(tmp_path / "own.npz", x=np.zeros((60, 4), np.float32), y=np.arange(60) % 2)
    file = tmp_path / "f.toml"
    file.write_text(f'{CONFIG}[partition]\nname = "group"\n{data.format(folder=tmp_path)}')
    assert cli.run_command(["simulate", str(file), "--out", str(tmp_path / "run")]) == 1
    errors = capsys.readouterr().err
    assert expected in errors
    assert (f"no [data] in {file}: using digits" in errors) == logs_the_source

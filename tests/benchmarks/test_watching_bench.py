"""Small runs of the monitor and dashboard benchmarks: a real broker, simulated devices, a terminal and a
browser's stream.
"""

import json

import pytest
from click.testing import CliRunner

from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.benchmarks import process
from tests.benchmarks.__main__ import benchmarks

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "figure"), [("monitor", "drawn_kb"), ("dashboard", "streamed_kb")])
def test_watching_benchmark_reports_processor_time_and_memory(command, figure, monkeypatch, tmp_path):
    if command == "monitor":
        pytest.importorskip("textual")
    monkeypatch.setattr(process, "SETTLE_S", 5.0)
    out = tmp_path / "result.json"
    ran = CliRunner().invoke(
        benchmarks,
        [command, "--devices", "20", "--period", "1", "--seconds", "2", "--out", str(out)],
        catch_exceptions=False,
    )
    assert ran.exit_code == 0, ran.output
    result = json.loads(out.read_text())
    assert (result["devices"], result["seconds"], result["command"].split()[:3]) == (
        20,
        2.0,
        ["python", "-m", "tests.benchmarks"],
    )
    # One of 20 devices is offline, so there are 20 statuses and 19 metrics a second. In a round of 20 s, 18
    # devices receive tasks and one of them does not answer
    assert result["messages_per_s"] == pytest.approx(39 + 3, abs=2)
    assert (
        result["peak_rss_mb"] >= result["rss_mb"] > 20 and result["core_percent"] > 0 and result[figure] > 0
    )
    for text in ("20 devices", f"edgefl {command}", "of a core", result["machine"]):
        assert text in ran.stdout

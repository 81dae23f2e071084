"""The benchmarks of monitor and dashboard run, small: a real broker, a fleet that speaks, a terminal, a
browser's stream.
"""

import json

import pytest
from click.testing import CliRunner

from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.benchmarks import process
from tests.benchmarks.__main__ import benchmarks

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


@pytest.mark.parametrize(("what", "also"), [("monitor", "drawn_kb"), ("dashboard", "streamed_kb")])
def test_what_watching_takes(what, also, monkeypatch, tmp_path):
    if what == "monitor":
        pytest.importorskip("textual")
    monkeypatch.setattr(process, "SETTLE_S", 5.0)
    out = tmp_path / "result.json"
    ran = CliRunner().invoke(
        benchmarks,
        [what, "--devices", "20", "--period", "1", "--seconds", "2", "--out", str(out)],
        catch_exceptions=False,
    )
    assert ran.exit_code == 0, ran.output
    result = json.loads(out.read_text())
    assert (result["devices"], result["seconds"], result["command"].split()[:3]) == (
        20,
        2.0,
        ["python", "-m", "tests.benchmarks"],
    )
    # of 20 devices one is offline: 20 statuses and 19 metrics a second; 18 that are asked, and one that does
    # not answer, a round of 20 s
    assert result["messages_per_s"] == pytest.approx(39 + 3, abs=2)
    assert result["peak_rss_mb"] >= result["rss_mb"] > 20 and result["core_percent"] > 0 and result[also] > 0
    for told in ("20 devices", f"edgefl {what}", "of a core", result["machine"]):
        assert told in ran.stdout

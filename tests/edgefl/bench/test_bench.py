"""Small runs of the benchmarks. Their results are in docs/results."""

import json

import pytest
from click.testing import CliRunner

from edgefl.bench import device
from edgefl.cli.commands.bench import bench

pytest.importorskip("tensorflow", reason="the aggregator extra is not installed")


@pytest.mark.slow
def test_device_bench_reports_time_and_memory(monkeypatch):
    monkeypatch.setitem(device.BENCH_MODELS, "lenet5-b10", ("lenet5", (28, 28, 1), 10, 3))
    result = CliRunner().invoke(
        bench, ["device", "--repeats", "1", "--model", "lenet5-b10", "--json"], catch_exceptions=False
    )
    (row,) = json.loads(result.stdout)["rows"]
    assert row["litert_ms"] > 0 and row["keras_mb"] > row["litert_mb"] > 20


@pytest.mark.slow
def test_wire_bench_compares_codecs_with_fp32(tmp_path):
    out = tmp_path / "wire"
    arguments = [
        "wire",
        "--codec",
        "int8",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--data",
        "digits",
        "--out",
        str(out),
        "--processes",
        "1",
    ]
    result = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    rows = {row["codec"]: row for row in json.loads((out / "wire.json").read_text())["rows"]}
    assert rows["int8"]["bytes_of_fp32"] < 0.27
    assert rows["fp32"]["points_from_fp32"] == 0
    assert "int8" in result.stdout and "points from fp32" in result.stdout

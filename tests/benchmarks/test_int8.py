"""The int8 benchmark: losses computed by hand, and a federation of two clients."""

import json

import pytest
from click.testing import CliRunner

from edgefl.base.errors import DataError
from tests.benchmarks.__main__ import int8
from tests.benchmarks.firmware.int8 import Row, render, summarize


def make_row(client: str, accuracy: float, device: float, converter: float) -> Row:
    return Row(
        kind="aem",
        data="uci-har",
        client=client,
        samples=100,
        accuracy_float=accuracy,
        device=device,
        converter=converter,
        agreement=0.99,
        mixing={"probabilities": 0.99, "logits": 0.97, "outside": 1.0},
    )


def test_losses_match_hand_computed_values() -> None:
    (federation,) = summarize([make_row("a", 90.0, 89.0, 90.5), make_row("b", 80.0, 80.5, 78.0)])
    assert (federation["device_mean"], federation["device_worst"]) == (0.25, 1.0)
    assert (federation["converter_mean"], federation["converter_worst"]) == (0.75, 2.0)
    assert federation["mixing"] == {"probabilities": 0.99, "logits": 0.97, "outside": 1.0}
    text = render({"machine": "m", "versions": {"numpy": "2"}, "federations": [federation]})
    assert "0.25" in text and "logits 0.9700" in text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_repeated_int8_benchmark_gives_the_same_rows(tmp_path) -> None:
    pytest.importorskip("tf_keras")
    arguments = [
        "--data",
        "uci-har",
        "--kind",
        "ifca",
        "--clients",
        "2",
        "--rounds",
        "1",
        "--out",
        str(tmp_path),
        "--json",
    ]
    done = CliRunner().invoke(int8, arguments)
    if isinstance(done.exception, DataError):
        pytest.skip(str(done.exception))
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "int8.json").read_text())
    assert [row["client"] for row in result["rows"]] == ["client-000", "client-001"]
    assert all(abs(row["device"] - row["converter"]) <= 1.0 for row in result["rows"])
    again = CliRunner().invoke(int8, arguments)
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "int8.json").read_text())["rows"] == result["rows"]

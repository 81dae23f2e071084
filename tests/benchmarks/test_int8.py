"""The table of what int8 costs: losses by hand, and a federation of two clients from end to end."""

import json

import pytest
from click.testing import CliRunner

from edgefl.errors import DataError
from tests.benchmarks.__main__ import int8
from tests.benchmarks.firmware.int8 import Row, render, summaries


def row(client: str, accuracy: float, device: float, converter: float) -> Row:
    return Row(
        "aem",
        "uci-har",
        client,
        100,
        accuracy,
        device,
        converter,
        0.99,
        {"probabilities": 0.99, "logits": 0.97, "outside": 1.0},
    )


def test_losses_by_hand() -> None:
    (found,) = summaries([row("a", 90.0, 89.0, 90.5), row("b", 80.0, 80.5, 78.0)])
    assert (found["device_mean"], found["device_worst"]) == (0.25, 1.0)
    assert (found["converter_mean"], found["converter_worst"]) == (0.75, 2.0)
    assert found["mixing"] == {"probabilities": 0.99, "logits": 0.97, "outside": 1.0}
    text = render({"machine": "m", "versions": {"numpy": "2"}, "federations": [found]})
    assert "0.25" in text and "logits 0.9700" in text


@pytest.mark.timeout(900)
def test_a_federation_from_end_to_end(tmp_path) -> None:
    pytest.importorskip("tf_keras")
    words = [
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
    done = CliRunner().invoke(int8, words)
    if isinstance(done.exception, DataError):
        pytest.skip(str(done.exception))
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "int8.json").read_text())
    assert [each["client"] for each in result["rows"]] == ["client-000", "client-001"]
    assert all(abs(each["device"] - each["converter"]) <= 1.0 for each in result["rows"])
    again = CliRunner().invoke(int8, words)
    assert json.loads((tmp_path / "int8.json").read_text())["rows"] == result["rows"], again.output

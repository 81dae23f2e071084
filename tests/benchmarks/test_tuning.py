"""The benchmark of tunings: gains computed by hand, and a federation of two clients."""

import json

import pytest
from click.testing import CliRunner

from edgefl.base.errors import DataError
from tests.benchmarks.__main__ import tuning
from tests.benchmarks.firmware.tuning import CONTROL, TUNINGS, UNTUNED, Row, render, summarize

QAT = "quantization-aware"


def make_row(client: str, name: str, weights: int, accuracy: float) -> Row:
    return Row(
        data="uci-har",
        client=client,
        tuning=name,
        weights=weights,
        samples=100,
        accuracy_float=90.0,
        accuracy=accuracy,
        weight_bytes=1000,
        deflated_bytes=2000,
    )


def test_gains_match_hand_computed_values() -> None:
    rows = [
        make_row(client, name, weights, accuracy)
        for client, name, weights, accuracy in (
            ("1/a", UNTUNED, 8, 90.0),
            ("1/b", UNTUNED, 8, 80.0),
            ("1/a", CONTROL, 8, 91.0),
            ("1/b", CONTROL, 8, 83.0),
            ("1/a", QAT, 8, 92.0),
            ("1/b", QAT, 8, 82.0),
            ("1/a", CONTROL, 3, 88.0),
            ("1/b", CONTROL, 3, 80.0),
            ("1/a", QAT, 3, 89.0),
            ("1/b", QAT, 3, 84.0),
        )
    ]
    summaries = summarize(rows)
    # The differences of 8 bits without tuning are -1 and -3: a standard deviation of sqrt(2), over sqrt(2)
    figures = {
        (row["weights"], row["tuning"]): (row["accuracy"], row["gain"], row["gain_error"])
        for row in summaries
    }
    assert figures == {
        (8, UNTUNED): (85.0, -2.0, pytest.approx(1.0)),
        (8, CONTROL): (87.0, 0.0, 0.0),
        (8, QAT): (87.0, 0.0, pytest.approx(1.0)),
        (3, CONTROL): (84.0, 0.0, 0.0),
        (3, QAT): (86.5, 2.5, pytest.approx(1.5)),
    }
    assert [row["weights"] for row in summaries] == [8, 8, 8, 3, 3]
    text = render({"machine": "m", "versions": {"numpy": "2"}, "tunings": summaries})
    assert "-2.00 +- 1.00" in text and "+2.50 +- 1.50" in text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_repeated_tuning_benchmark_tunes_no_client_again(tmp_path, monkeypatch) -> None:
    pytest.importorskip("tensorflow_model_optimization")
    monkeypatch.setattr("tests.benchmarks.firmware.tuning.TUNINGS", {QAT: TUNINGS[QAT]})
    options = {"--data": "uci-har", "--clients": "2", "--rounds": "1", "--seeds": "1", "--epochs": "1"}
    arguments = [*(part for option in options.items() for part in option), "--json", "--out"]
    done = CliRunner().invoke(tuning, [*arguments, str(tmp_path)])
    if isinstance(done.exception, DataError):
        pytest.skip(str(done.exception))
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "tuning.json").read_text())
    assert {row["client"] for row in result["rows"]} == {"1/client-000", "1/client-001"}
    assert {row["tuning"] for row in result["rows"]} == {UNTUNED, CONTROL, QAT}
    monkeypatch.setattr("tests.benchmarks.firmware.tuning.measure", None)
    again = CliRunner().invoke(tuning, [*arguments, str(tmp_path)])
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "tuning.json").read_text())["rows"] == result["rows"]

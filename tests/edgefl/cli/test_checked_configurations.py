"""Commands refuse a configuration that cannot work before they compile, read data or connect."""

import pytest

from edgefl.cli.main import run_command
from edgefl.protocol.server import config_check

TOO_FEW_ROUNDS_ERROR = "rounds is 20, expected 42 or more"


@pytest.fixture
def config_with_few_rounds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "federation.toml"
    path.write_text('[federation]\nrounds = 20\n[algorithm]\nname = "fedap"\npretrain_rounds = 40\n')
    return path


@pytest.mark.parametrize(
    "command",
    [
        "simulate federation.toml --out run",
        "plan build --config federation.toml -o plan",
        "aggregator start --broker mqtt://127.0.0.1:1 --out out",  # nothing listens on port 1
    ],
)
def test_command_rejects_a_configuration_with_too_few_rounds(command, config_with_few_rounds, capsys):
    assert run_command(command.split()) == 1
    err = capsys.readouterr().err
    assert TOO_FEW_ROUNDS_ERROR in err
    assert "Traceback" not in err
    assert [path.name for path in config_with_few_rounds.parent.iterdir()] == ["federation.toml"]


def test_init_does_not_write_an_invalid_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = "--algorithm clustered --rounds 1 --input-shape 28,28,1 --num-classes 10"
    assert run_command(["init", "--yes", *options.split()]) == 1
    assert "rounds is 1, expected 2 or more" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_init_warns_of_too_few_epochs(tmp_path, monkeypatch, capsys):
    """The default number of epochs causes no warning, so the test raises the limit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config_check, "MIN_PASSES", 11)
    options = "--algorithm fedmix --rounds 2 --input-shape 28,28,1 --num-classes 10"
    assert run_command(["init", "--yes", *options.split()]) == 0
    assert "warning: rounds x epochs is 10, expected 11 or more" in capsys.readouterr().err


def test_aggregator_connects_to_broker_before_it_compiles(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text("[federation]\nrounds = 5\n")
    assert run_command(["aggregator", "start", "--broker", "mqtt://127.0.0.1:1", "--out", "out"]) == 1
    err = capsys.readouterr().err
    assert "looking for the broker" in err or "127.0.0.1:1" in err
    assert "building the plan" not in err

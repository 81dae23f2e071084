import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any

import click
import pytest

from edgefl.base.errors import DataError
from edgefl.cli import main as cli


def make_raising_body(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


def register_entry_points(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = [
        EntryPoint(name=name, value=value, group=cli.ENTRY_POINT_GROUP) for name, value in values.items()
    ]
    monkeypatch.setattr(cli, "entry_points", lambda group: points)


def register_command(monkeypatch: pytest.MonkeyPatch, body: Callable[[], Any]) -> None:
    """Register `edgefl boom`, which runs the body."""
    register_entry_points(monkeypatch, boom="tests_boom:boom")
    module = type(sys)("tests_boom")
    module.boom = click.command("boom", short_help="Fails.")(body)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tests_boom", module)


def test_edgefl_without_arguments_prints_five_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command([]) == 0
    out = capsys.readouterr().out
    assert out.count("\n  edgefl ") == 5
    assert max(map(len, out.splitlines())) <= 80


def test_edgefl_without_arguments_imports_no_command() -> None:
    code = (
        "import sys\nfrom edgefl.cli.main import run_command\nrun_command([])\n"
        "print(sorted({'devices', 'numpy', 'paho', 'tensorflow'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_python_m_edgefl_prints_the_version() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "edgefl", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.startswith("edgefl, version ")


def test_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["dmeo"]) == 1
    assert capsys.readouterr().err == "edgefl: no command 'dmeo'; did you mean 'demo'?\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError("x is 3, expected 4; fix it"), 1, "edgefl: x is 3, expected 4; fix it\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (click.UsageError("no such thing"), 2, "no such thing"),
        (
            OSError(28, "No space left on device", "/tmp/x"),
            1,
            "No space left on device: '/tmp/x'; free some space",
        ),
        (
            ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow"),
            1,
            "pip install -e '.[aggregator]'",
        ),
        (
            ModuleNotFoundError("No module named 'amqtt'", name="amqtt.broker"),
            1,
            "pip install -e '.[broker]'",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_error_prints_one_message_and_returns_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    register_command(monkeypatch, make_raising_body(error))
    assert cli.run_command(["boom"]) == code
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_unexpected_exception_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    register_command(monkeypatch, make_raising_body(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.run_command(["boom"])


@pytest.mark.parametrize(("result", "code"), [(None, 0), (3, 3), ({"a": 1}, 0), (True, 0)])
def test_a_command_may_return_its_exit_code(monkeypatch: pytest.MonkeyPatch, result: Any, code: int) -> None:
    register_command(monkeypatch, lambda: result)
    assert cli.run_command(["boom"]) == code


def test_broken_plugin_does_not_hide_other_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register_entry_points(
        monkeypatch, gone="nowhere_at_all:x", odd="edgefl.base.errors:DataError", other="edgefl.cli.main:cli"
    )
    assert cli.run_command(["--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "gone (not available: No module named 'nowhere_at_all')" in out
    assert "expected a click command" in out
    assert "Train small networks" in out
    assert cli.run_command(["gone"]) == 1


def test_each_command_has_its_line_in_the_help() -> None:
    paths = cli.find_commands().values()
    summaries = {}
    for path in paths:
        module, _, attribute = path.partition(":")
        summaries[path] = getattr(import_module(module), attribute).get_short_help_str(100)
    assert summaries == cli.COMMAND_SUMMARIES


def test_each_command_is_in_one_group() -> None:
    grouped = [name for names in cli.COMMAND_GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(cli.find_commands())


def test_completion_of_a_command_that_cannot_be_imported_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed package has no edgefl.lab, so `edgefl reproduce` cannot be imported."""
    monkeypatch.setitem(sys.modules, "edgefl.lab.reproduce.experiment", None)
    monkeypatch.delitem(sys.modules, "edgefl.cli.commands.reproduce", raising=False)
    assert cli.run_command(["reproduce", "--list"]) == 1
    assert "run `make install` there" in capsys.readouterr().err
    for name, value in {
        "_EDGEFL_COMPLETE": "bash_complete",
        "COMP_WORDS": "edgefl reproduce ae",
        "COMP_CWORD": "2",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        cli.run_command([])
    printed = capsys.readouterr()
    assert ended.value.code == 0 and not printed.out.strip() and not printed.err


def test_help_imports_no_command_and_no_numpy() -> None:
    code = (
        "import sys; from edgefl.cli.main import run_command; run_command(['--help']); "
        "print([m for m in sys.modules if m.startswith(('edgefl.cli.commands.', 'devices.', 'numpy'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_plugin_cannot_replace_a_core_command(monkeypatch: pytest.MonkeyPatch) -> None:
    register_entry_points(monkeypatch, plan="evil:plan")
    assert cli.find_commands()["plan"] == cli.CORE_COMMANDS["plan"]


@pytest.mark.parametrize(
    "name",
    [
        "aggregator start",
        "broker start",
        "demo",
        "device start",
        "export",
        "infer",
        "init",
        "plan build",
        "plan inspect",
        "tune",
    ],
)
def test_each_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command([*name.split(), "--help"]) == 0
    assert f"edgefl {name.split()[0]}" in capsys.readouterr().out.partition("\n")[2]


def test_error_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register_command(monkeypatch, make_raising_body(DataError("phase \x1b[2J\u202e; two\nlines")))
    assert cli.run_command(["boom"]) == 1
    assert capsys.readouterr().err == "edgefl: phase \\x1b[2J\\x202e; two\nlines\n"
